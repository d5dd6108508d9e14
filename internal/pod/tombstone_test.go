package pod_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/berthrun/berth/internal/pod"
	"github.com/berthrun/berth/internal/pod/podtest"
)

// TestNoTombstoneWithoutItsSandbox: at any power loss, the tombstone of a container on disk has its
// sandbox's tombstone beside it, while pods are created and removed.
func TestNoTombstoneWithoutItsSandbox(t *testing.T) {
	w := podtest.NewWorld(t, podtest.Fake())
	w.Limits = pod.Limits{Batch: 100 * time.Millisecond} // one batch for all pods
	var seen atomic.Int32
	script := podtest.NewScript(func(_ int, name string) error {
		if name != "after disk.Write" && name != "after disk.Remove" {
			return nil
		}
		files, err := filepath.Glob(filepath.Join(w.RootDir, "tombstones", "containers", "[0-9a-f]*.json"))
		if err != nil {
			t.Error(err)
		}
		for _, file := range files {
			var head struct{ Record struct{ SandboxID string } }
			data, err := os.ReadFile(file)
			if err != nil {
				continue // just removed
			}
			if err := json.Unmarshal(data, &head); err != nil {
				t.Error(err)
			}
			seen.Add(1)
			sandbox := filepath.Join(w.RootDir, "tombstones", "sandboxes", head.Record.SandboxID+".json")
			if _, err := os.Stat(sandbox); err != nil {
				if _, err := os.Stat(file); err == nil {
					t.Errorf("%s: %s is there without %s", name, filepath.Base(file), sandbox)
				}
			}
		}
		return nil
	})
	b := &bed{World: w, T: t, script: script, s: w.Daemon(script)}
	for i := range 8 {
		id := b.mustRun(b.SandboxConfig(fmt.Sprintf("pod-%d", i)))
		if err := b.s.StartContainer(t.Context(), b.mustCreate(id, "c", b.Programs.Sleep)); err != nil {
			t.Fatal(err)
		}
	}
	podtest.Eventually(t, "tombstones are written", func() bool { return seen.Load() > 8 })
	b.clear()
	podtest.Eventually(t, "tombstones are gone", func() bool {
		left, err := filepath.Glob(filepath.Join(w.RootDir, "tombstones", "*", "*.json"))
		return err == nil && len(left) == 0
	})
}

// TestRecordsThatALossOfPowerTook: a loss of power leaves empty files of records that were not synced. They are no damage,
// and the pods whose records are whole are restored.
func TestRecordsThatALossOfPowerTook(t *testing.T) {
	b := newBed(t, nil)
	sandbox := b.mustRun(b.SandboxConfig("web"))
	done := b.mustStart(sandbox, "done", b.Programs.Exit(7))
	podtest.Eventually(t, "its tombstones are written", func() bool { return b.tombstones(sandbox, "") && b.tombstones(done, `"exited"`) })
	b.script.Kill()
	var lost []string
	for _, dir := range []string{"tombstones/sandboxes", "tombstones/containers", "attachments"} {
		file, before := filepath.Join(b.RootDir, dir, strings.Repeat("c", 64)+".json"), time.Unix(0, 0)
		if err := errors.Join(os.WriteFile(file, nil, 0o600), os.Chtimes(file, before, before)); err != nil {
			t.Fatal(err)
		}
		lost = append(lost, file)
	}
	b.reboot(true)
	b.assertExit(done, 7, "Error")
	for _, file := range lost {
		podtest.Eventually(t, file+" is gone", func() bool { _, err := os.Stat(file); return errors.Is(err, os.ErrNotExist) })
	}
	if found, err := os.ReadDir(filepath.Join(b.RootDir, "quarantine")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the quarantine has %v, %v", found, err)
	}
	b.clear()
}
