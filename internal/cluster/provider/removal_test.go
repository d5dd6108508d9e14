package provider

import (
	"slices"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/util/version"
)

// TestRemovalDoesNotWait: by default podman waits ten seconds for each node.
func TestRemovalDoesNotWait(t *testing.T) {
	for at, want := range map[string]string{
		"podman 4.3.1": "rm -f -v -t 0 a b", "podman 3.4.4": "rm -f -v a b", "docker 20.10.24": "rm -f -v a b", "nerdctl 2.0.0": "rm -f -v a b",
	} {
		tool, number, _ := strings.Cut(at, " ")
		d, err := dialectOf(tool)
		if err != nil {
			t.Fatal(err)
		}
		e := &CLI{dialect: d, version: version.MustParseGeneric(number)}
		if got := strings.Join(e.removal("a", "b"), " "); got != want {
			t.Errorf("%s: %q, want %q", at, got, want)
		}
	}
}

// TestRemovalOfStopped: containerd may restart a killed container while nerdctl removes it, so
// berth stops it first.
func TestRemovalOfStopped(t *testing.T) {
	for tool, want := range map[string][]string{"nerdctl": {"stop -t 0 a", "rm -f -v a"}, "docker": {"rm -f -v a"}} {
		f := newFake()
		f.containers["a"] = map[string]string{}
		if err := engine(t, tool, f).Delete(t.Context(), "a"); err != nil {
			t.Fatal(err)
		}
		got := slices.DeleteFunc(f.called(""), func(call string) bool { return !strings.HasPrefix(call, "stop") && !strings.HasPrefix(call, "rm") })
		if !slices.Equal(got, want) {
			t.Errorf("%s: %q, want %q", tool, got, want)
		}
	}
}

// TestStopTime: systemd in a node gets the time that it needs, which is more than the engines'
// default. Other containers handle their own stop signals.
func TestStopTime(t *testing.T) {
	f := newFake()
	e := engine(t, "podman", f)
	if err := e.Stop(t.Context(), "a", "b"); err != nil {
		t.Fatal(err)
	}
	if got := f.called("stop"); len(got) != 1 || got[0] != "stop -t 30 a b" {
		t.Errorf("calls: %q", got)
	}
	for _, spec := range planned(t, e.PlanHost(Network{Name: "kind"}), "nodes: [{}, {}]") {
		args, err := e.runArgs(Request{}, spec, nil, "ATTEMPT")
		if err != nil {
			t.Fatal(err)
		}
		want := "SIGRTMIN+3"
		if spec.Command != nil {
			want = "SIGTERM"
		}
		if i := slices.Index(args, "--stop-signal"); i < 0 || args[i+1] != want {
			t.Errorf("%s: %q, want %s", spec.Name, args, want)
		}
	}
}
