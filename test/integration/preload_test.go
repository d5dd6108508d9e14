//go:build integration

package integration

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/berthrun/berth/internal/require"
	"github.com/berthrun/berth/test/harness"
)

// TestPreloadedImages: pods use an image that the machine came with, without a pull or an import.
func TestPreloadedImages(t *testing.T) {
	require.Root(t)
	dir := filepath.Join(t.TempDir(), "preloaded")
	b := harness.New(t, harness.Options{Config: fmt.Sprintf("[image]\npreloaded_dirs = [%q]\n", dir)})
	archive := harness.BusyboxArchive(b)
	if out := b.MustCLI("image", "preload", dir, archive); !strings.Contains(out, harness.Busybox) {
		t.Errorf("it made %q", out)
	}
	for _, wrong := range []struct {
		args []string
		says string
	}{
		{[]string{dir, archive}, dir + " is there already"},
		{[]string{dir + "2", "nosuch.tar"}, "open nosuch.tar"},
		{[]string{dir + "2", "/etc/hostname"}, "/etc/hostname: "},
		{[]string{dir + "2"}, "requires at least 2 arg"},
	} {
		if _, said, err := b.CLI(append([]string{"image", "preload"}, wrong.args...)...); err == nil || !strings.Contains(said, wrong.says) {
			t.Errorf("preload %q: %v, %s", wrong.args, err, said)
		}
	}
	if entries, err := os.ReadDir(filepath.Dir(dir)); err != nil || len(entries) != 1 {
		t.Errorf("left: %v, %v", entries, err)
	}

	b.StartDaemon()
	sandbox := b.Sandbox("preloaded")
	pod := b.RunSandbox(sandbox)
	container := b.Create(pod, b.Container("c", "echo here > /written; exec sleep 100000"), sandbox)
	b.StartContainer(container)
	b.Await("the file", func() bool { return b.Exec(container, "cat /written").ExitCode == 0 })
	if out := b.MustCLI("image", "ls", "-o", "json"); strings.Count(out, `"pinned": true`) != 1 {
		t.Errorf("images: %s", out)
	}
	b.StopDaemon()
	b.StartDaemon()
	if out := b.ExecOut(container, "cat /written"); out != "here" {
		t.Errorf("after a start: %q", out)
	}
	if out := b.MustCLI("image", "ls"); !strings.Contains(out, strings.TrimSuffix(harness.Busybox, ":latest")) {
		t.Errorf("images after a start: %s", out)
	}
}
