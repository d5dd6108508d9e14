package record

import (
	"context"
	"errors"
	"log/slog"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berthrun/berth/internal/store"
)

// writes is a disk that notes what is done to tombstones.
type writes struct {
	store.FileSystem
	root string
	// failSync is how many syncs fail.
	failSync int

	mu   sync.Mutex
	made []string
}

func (w *writes) note(what, path string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if below, ok := strings.CutPrefix(path, filepath.Join(w.root, "tombstones")+"/"); ok {
		w.made = append(w.made, what+" "+below)
	}
}

func (w *writes) all() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.made)
}

func (w *writes) Write(path string, data []byte) error {
	w.note("write", path)
	return w.FileSystem.Write(path, data)
}

func (w *writes) WriteWhole(path string, data []byte) error {
	w.note("whole", path)
	return w.FileSystem.WriteWhole(path, data)
}

func (w *writes) Sync(dir string) error {
	if w.failSync > 0 {
		w.failSync--
		return errors.New("injected")
	}
	w.note("sync", dir)
	return w.FileSystem.Sync(dir)
}

// TestTombstonesAreDurable: in one batch, whole and synced sandboxes come before their containers, and directories are
// synced once. Only the tombstones of containers that have exited are synced, and those of their sandboxes: s2 has none.
// A sync that fails is repeated first.
func TestTombstonesAreDurable(t *testing.T) {
	for name, failures := range map[string]int{"at once": 0, "after syncs that fail": 2} {
		t.Run(name, func(t *testing.T) {
			root := t.TempDir()
			disk := &writes{root: root, failSync: failures}
			records, err := Open(Options{StateDir: filepath.Join(root, "state"), RootDir: root, Disk: disk, Log: slog.New(slog.DiscardHandler)})
			if err != nil {
				t.Fatal(err)
			}
			tombstones := NewTombstones(records, TombstoneOptions{Dir: filepath.Join(root, "tombstones"), Batch: time.Millisecond, Retry: time.Millisecond})
			for _, id := range []string{"s1", "s2"} {
				must(t, records.Sandboxes.Create(id, &Sandbox{ID: id, State: SandboxReady, Config: store.MessageOf(&runtimeapi.PodSandboxConfig{
					Metadata: &runtimeapi.PodSandboxMetadata{Name: id},
				})}))
			}
			for id, state := range map[string]ContainerState{"done": ContainerExited, "up": ContainerRunning} {
				must(t, records.Containers.Create(id, &Container{ID: id, SandboxID: "s1", State: state, Config: store.MessageOf(&runtimeapi.ContainerConfig{
					Metadata: &runtimeapi.ContainerMetadata{Name: id},
				})}))
				tombstones.Touch(id) // that of its sandbox is written as well
			}
			tombstones.Touch("s2")
			ctx, end := context.WithCancel(t.Context())
			var group sync.WaitGroup
			tombstones.Start(ctx, &group)
			for deadline := time.Now().Add(10 * time.Second); !slices.Contains(disk.all(), "sync containers") && time.Now().Before(deadline); {
				time.Sleep(time.Millisecond)
			}
			end()
			group.Wait()
			got := disk.all()
			at := func(what string) int { return slices.Index(got, what) }
			synced := at("sync sandboxes")
			for _, first := range []string{"whole sandboxes/s1.json", "write sandboxes/s2.json"} {
				if i := at(first); i < 0 || i > synced {
					t.Errorf("%s is not before the sync of sandboxes: %q", first, got)
				}
			}
			for _, then := range []string{"whole containers/done.json", "write containers/up.json"} {
				if i := at(then); i < synced || i > at("sync containers") {
					t.Errorf("%s is not between the two syncs: %q", then, got)
				}
			}
			if n := len(slices.DeleteFunc(got, func(what string) bool { return !strings.HasPrefix(what, "sync ") })); n != 2 {
				t.Errorf("%d syncs, want one of each directory", n)
			}
		})
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
