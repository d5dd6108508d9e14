package berth

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/berthrun/berth/internal/engine"
	"github.com/berthrun/berth/internal/errs"
)

// TestRelease: a released node keeps its volumes for the next node with its name, but no files that
// depend on the image. Meanwhile no list has the node. The deletion of the cluster removes the
// volumes.
func TestRelease(t *testing.T) {
	m := newMachine(t)
	if err := m.create(spec("dev-worker")); err != nil {
		t.Fatal(err)
	}
	kept := filepath.Join(m.own.nodeDir("dev-worker"), storage, storageVolumes, "var")
	other := filepath.Join(m.own.nodeDir("dev-worker"), storage, "upper")
	for _, dir := range []string{kept, other} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for range 2 {
		if err := m.own.Release(t.Context(), "dev-worker", "dev-absent"); err != nil {
			t.Fatal(err)
		}
	}
	m.wantNodes("dev")
	if left := append(m.engine.Left(), m.net.Left()...); len(left) > 0 {
		t.Errorf("left: %q", left)
	}
	exists := func(path string, want bool) {
		t.Helper()
		if _, err := os.Stat(path); (err == nil) != want {
			t.Errorf("%s: %v, want it there: %v", path, err, want)
		}
	}
	exists(kept, true)
	exists(other, false)
	next := spec("dev-worker")
	next.Reuse = true
	m.engine.mu.Lock()
	m.engine.refuse = func(*engine.ContainerSpec) error { return errRefused }
	m.engine.mu.Unlock()
	if err := m.create(next); !errors.Is(err, errs.Invalid) {
		t.Errorf("%v, want a refusal", err)
	}
	exists(kept, true)
	m.engine.mu.Lock()
	m.engine.refuse = nil
	m.engine.mu.Unlock()
	if err := m.create(next); err != nil {
		t.Fatal(err)
	}
	exists(kept, true)
	if got := m.nodes("dev"); len(got) != 1 {
		t.Errorf("nodes %q", got)
	}
	if err := m.own.Release(t.Context(), "dev-worker"); err != nil {
		t.Fatal(err)
	}
	if err := m.own.DeleteCluster(t.Context(), "dev"); err != nil {
		t.Fatal(err)
	}
	m.wantNothing()
}
