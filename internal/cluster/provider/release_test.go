package provider

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/berthrun/berth/internal/errs"
)

// TestRelease: the container is removed. Its volume stays for the next container with its name,
// even if the creation of that one fails. Without Reuse the volume counts as left over and is
// removed.
func TestRelease(t *testing.T) {
	f := newFake()
	e := engine(t, "podman", f)
	r := request(t, e)
	if err := e.Create(t.Context(), r); err != nil {
		t.Fatal(err)
	}
	attempt := f.volumes["dev-worker-var"][LabelAttempt]
	if err := e.Release(t.Context(), "dev-worker", "dev-absent"); err != nil || f.containers["dev-worker"] != nil || f.volumes["dev-worker-var"] == nil || len(f.containers) != 3 {
		t.Fatalf("%v; %v and %v are left", err, f.containers, f.volumes)
	}
	if !slices.Contains(f.called("stop"), "stop -t 30 dev-worker") {
		t.Errorf("%q: systemd does not end first what writes", f.called("stop"))
	}
	i := slices.IndexFunc(r.Specs, func(s Spec) bool { return s.Name == "dev-worker" })
	r.Specs = r.Specs[i : i+1]
	r.Specs[0].Reuse = true
	f.on = func(args []string) error {
		if args[0] == "run" {
			return errors.New("Error: no space left on device")
		}
		return nil
	}
	if err := e.Create(t.Context(), r); !errors.Is(err, errs.Exhausted) || f.volumes["dev-worker-var"] == nil {
		t.Errorf("%v; %v are left", err, f.volumes)
	}
	f.on = nil
	if err := e.Create(t.Context(), r); err != nil || f.volumes["dev-worker-var"][LabelAttempt] != attempt {
		t.Errorf("%v; %v, want the volume of %s", err, f.volumes, attempt)
	}
	if err := e.Release(t.Context(), "dev-worker"); err != nil {
		t.Fatal(err)
	}
	r.Specs[0].Reuse = false
	if err := e.Create(t.Context(), r); err != nil || f.volumes["dev-worker-var"][LabelAttempt] == attempt {
		t.Errorf("%v; %v, want another volume than of %s", err, f.volumes, attempt)
	}
	// The deletion of the cluster removes a volume without a container.
	if err := e.Release(t.Context(), "dev-worker"); err != nil {
		t.Fatal(err)
	}
	if err := e.DeleteCluster(t.Context(), "dev"); err != nil || len(f.volumes) > 0 || strings.Contains(strings.Join(f.calls, "\n"), "rm -v dev-worker-var") {
		t.Errorf("%v; %v", err, f.volumes)
	}
}
