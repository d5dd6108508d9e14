package podcmd

import (
	"errors"
	"strings"
	"testing"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berthrun/berth/internal/errs"
)

func sandbox(id, namespace, name string, created int64, ready bool) *runtimeapi.PodSandbox {
	state := runtimeapi.PodSandboxState_SANDBOX_NOTREADY
	if ready {
		state = runtimeapi.PodSandboxState_SANDBOX_READY
	}
	return &runtimeapi.PodSandbox{
		Id: id, State: state, CreatedAt: created,
		Metadata: &runtimeapi.PodSandboxMetadata{Name: name, Namespace: namespace},
	}
}

func TestChoosePod(t *testing.T) {
	all := []*runtimeapi.PodSandbox{
		sandbox("aa11", "default", "web", 1, false),
		sandbox("aa22", "default", "web", 3, true),
		sandbox("bb11", "default", "old", 1, false),
		sandbox("bb22", "default", "old", 2, false),
		sandbox("cc11", "one", "both", 1, true),
		sandbox("cc22", "two", "both", 1, true),
		sandbox("dd11", "default", "aa1", 1, true),
	}
	for name, want := range map[string]string{
		"web": "aa22", "default/web": "aa22", "aa11": "aa11", "old": "bb22", "bb1": "bb11",
		"one/both": "cc11", "two/both": "cc22", "cc2": "cc22", "aa1": "dd11",
	} {
		got, err := choosePod(all, name)
		if err != nil || got.Id != want {
			t.Errorf("%s: got %v, %v", name, got.GetId(), err)
		}
	}
	for name, want := range map[string]error{"both": errs.Invalid, "aa": errs.Invalid, "nosuch": errs.NotFound, "": errs.Invalid} {
		if got, err := choosePod(all, name); !errors.Is(err, want) {
			t.Errorf("%q: got %v, %v", name, got.GetId(), err)
		}
	}
	if _, err := choosePod(all, "both"); !strings.Contains(err.Error(), "one/both (cc11) or two/both (cc22)") {
		t.Errorf("got %v", err)
	}
}

func TestRemotePorts(t *testing.T) {
	got, err := remotePorts([]string{"8080:80", ":53", "443"})
	if err != nil || len(got) != 3 || got[0] != 80 || got[1] != 53 || got[2] != 443 {
		t.Errorf("got %v, %v", got, err)
	}
	for _, bad := range []string{"", "http", "80:", "1:70000", "0"} {
		if _, err := remotePorts([]string{bad}); !errors.Is(err, errs.Invalid) {
			t.Errorf("%q: got %v", bad, err)
		}
	}
}

// The creator of the pod chooses the names. No name may make a removal delete other paths.
func TestOwnNames(t *testing.T) {
	for uid, want := range map[string]bool{"u-1": true, "": false, "..": false, "../../etc": false, "a/b": false, "a\x00": false} {
		if got := ownNames(&runtimeapi.PodSandboxMetadata{Uid: uid, Namespace: "n", Name: "p"}); got != want {
			t.Errorf("%q: got %v", uid, got)
		}
	}
}
