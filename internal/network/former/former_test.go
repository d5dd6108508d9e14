package former_test

import (
	"context"
	"reflect"
	"slices"
	"testing"

	"github.com/berthrun/berth/internal/network"
	"github.com/berthrun/berth/internal/network/former"
)

// plugged is a network whose pods plugins have attached. It answers with them all, as it is asked for all.
type plugged struct {
	network.Adopter
	pods []network.Checked
	info map[string]string
}

func (p plugged) Info() map[string]string { return p.info }

func (p plugged) Check(context.Context, []string) ([]network.Checked, error) {
	return slices.Clone(p.pods), nil
}

// TestCheck: pods of former networks are reported although new pods have a network without plugins.
func TestCheck(t *testing.T) {
	pending := network.Checked{SandboxID: "1", Namespace: "b", Name: "web", Skipped: "it is being detached"}
	adopted := network.Checked{SandboxID: "2", Namespace: "a", Name: "web", Skipped: "only detached"}
	var own network.Network
	all := former.NewAdopting(former.New(own, plugged{pods: []network.Checked{pending}}), plugged{pods: []network.Checked{adopted}})
	for _, c := range []struct {
		asked []string
		want  []network.Checked
	}{
		{nil, []network.Checked{adopted, pending}},
		{[]string{"1"}, []network.Checked{pending}},
		{[]string{"3", "2"}, []network.Checked{{SandboxID: "3", Skipped: "no CNI plugin has attached it"}, adopted}},
	} {
		if got, err := all.Check(t.Context(), c.asked); err != nil || !reflect.DeepEqual(got, c.want) {
			t.Errorf("%q: %+v, %v, want %+v", c.asked, got, err, c.want)
		}
	}
}

// TestInfo: the pods of former networks are counted, and those whose DEL fails.
func TestInfo(t *testing.T) {
	own := plugged{info: map[string]string{"mode": "builtin", "attachments": "5"}}
	before := plugged{info: map[string]string{"mode": "cni", "attachments": "2", "pendingDeletes": "1"}}
	none := plugged{info: map[string]string{"mode": "cni", "attachments": "0"}}
	all := former.NewAdopting(former.New(own, before), before)
	want := map[string]string{"mode": "builtin", "attachments": "5", "formerAttachments": "4", "pendingDeletes": "2"}
	if got := all.Info(); !reflect.DeepEqual(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
	if got := former.New(own, none).Info(); !reflect.DeepEqual(got, own.info) {
		t.Errorf("without former pods: %v, want %v", got, own.info)
	}
}
