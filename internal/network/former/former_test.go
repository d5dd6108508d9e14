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
}

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
