package native

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/berthrun/berth/internal/engine"
)

// TestRecordsOfSandboxes: the engine reads sandbox records, including those of earlier versions.
func TestRecordsOfSandboxes(t *testing.T) {
	e := &Engine{}
	for record, want := range map[string]struct {
		namespaces, left string
		unsafe           bool
	}{
		`{"cgroupParent":"/p"}`: {left: `{"cgroupParent":"/p"}`},
		`{"netns":"/n","utsns":"/u","ipcns":"/i","cgroupParent":"/p","processLabel":"l:1","mountLabel":"l:2"}`: {
			namespaces: "network=/n ipc=/i uts=/u", left: `{"cgroupParent":"/p","mountLabel":"l:2","processLabel":"l:1"}`,
		},
		`{"pid":7,"pidns":"/pid","userns":"/user","podInit":1}`: {namespaces: "pid=/pid user=/user", left: `{}`},
		`{"pid":7,"pidns":"/pid"}`:                              {namespaces: "pid=/pid", left: `{}`, unsafe: true},
	} {
		var sb engine.Sandbox
		if err := json.Unmarshal([]byte(record), &sb); err != nil {
			t.Fatal(err)
		}
		view := e.ViewSandbox(&sb)
		var namespaces []string
		for _, ns := range view.Namespaces {
			namespaces = append(namespaces, ns.Type+"="+ns.Path)
		}
		if got := strings.Join(namespaces, " "); got != want.namespaces || (view.Unsafe != "") != want.unsafe {
			t.Errorf("%s: namespaces %q, unsafe %q; want %q, unsafe %t", record, got, view.Unsafe, want.namespaces, want.unsafe)
		}
		left, err := json.Marshal(e.ReleasedSandbox(&sb))
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want.left, string(left)); diff != "" {
			t.Errorf("%s: what is left when it is released:\n%s", record, diff)
		}
		if again := e.ViewSandbox(e.ReleasedSandbox(&sb)); len(again.Namespaces) > 0 || again.Unsafe != "" {
			t.Errorf("%s: a released sandbox has %+v", record, again)
		}
	}
}
