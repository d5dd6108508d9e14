//go:build integration

package integration

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/berthrun/berth/internal/figures"
	"github.com/berthrun/berth/test/harness"
)

// TestNamespacesBelowTheStateDirectory: the daemon unmounts both directories at its end if no pod is left.
func TestNamespacesBelowTheStateDirectory(t *testing.T) {
	b := harness.Start(t, harness.Options{Config: "[log]\nlevel = 'debug'\n"})
	b.StopDaemon()
	config := fmt.Sprintf("[network]\nnetns_dir = %q\n", filepath.Join(b.State, "netns"))
	must(t, os.WriteFile(filepath.Join(b.Dir, "berth.toml"), []byte(config), 0o600))
	b.StartDaemon()
	// The file of the host's own berth is not that of a test.
	if shown := b.MustCLI("config", "dump", "--running", "--endpoint", "unix://"+b.Socket); !strings.Contains(shown, "routes_file = '"+b.Dir+"/routes'") {
		t.Errorf("the daemon follows another file of routes: %s", shown)
	}
	pod := b.RunPod("short", "exec sleep 1000")
	b.StopDaemon()
	mounts := func() string {
		data, err := os.ReadFile("/proc/self/mountinfo")
		must(t, err)
		var below []string
		for line := range strings.Lines(string(data)) {
			if strings.Contains(line, " "+b.State+" ") || strings.Contains(line, " "+b.State+"/") {
				below = append(below, line)
			}
		}
		return strings.Join(below, "")
	}
	if !strings.Contains(mounts(), b.State+"/netns/") {
		t.Errorf("with a pod, its namespace is not mounted: %s", mounts())
	}
	b.StartDaemon()
	b.RemovePod(pod.Sandbox)
	b.StopDaemon()
	if left := mounts(); left != "" {
		t.Errorf("without pods:\n%s", left)
	}
	b.StartDaemon()
}

// TestPoolsOff: with pools of size 0, pods start, and nothing is made ahead.
func TestPoolsOff(t *testing.T) {
	b := harness.Start(t, harness.Options{Config: "[pools]\nnetwork_namespaces = 0\nroot_filesystems = 0\n"})
	b.RunPod("web", "exec sleep 1000")
	var shown struct {
		Info struct{ Pools []figures.Pool }
	}
	must(t, json.Unmarshal([]byte(b.MustCLI("info", "-o", "json")), &shown))
	if len(shown.Info.Pools) != 2 {
		t.Errorf("berth info has the pools %+v", shown.Info.Pools)
	}
	for _, pool := range shown.Info.Pools {
		if pool.Size != 0 || pool.Ready != 0 || pool.Hits != 0 || pool.Misses == 0 {
			t.Errorf("a pool that is off: %+v", pool)
		}
	}
	if ahead, err := filepath.Glob(filepath.Join(b.Root, "images", "pool", "*")); err != nil || len(ahead) > 0 {
		t.Errorf("directories that were made ahead: %v, %v", ahead, err)
	}
	if text := b.MustCLI("pod", "inspect", "web"); !strings.Contains(text, "Starter:") {
		t.Errorf("berth pod inspect: %s", text)
	}
	if out := b.MustCLI("image", "fsck", "--repair"); strings.Contains(out, "pool") {
		t.Errorf("a check without a pool: %s", out)
	}
}
