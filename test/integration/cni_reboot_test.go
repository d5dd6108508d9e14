//go:build integration

package integration

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/berthrun/berth/internal/require"
	"github.com/berthrun/berth/test/harness"
)

// TestHostLocalOverReboot: after a reboot berth releases the addresses that the plugin host-local
// keeps on disk. A range that was full has room for as many pods again.
func TestHostLocalOverReboot(t *testing.T) {
	for _, plugin := range []string{"bridge", "host-local"} {
		require.Binary(t, "/usr/lib/cni/"+plugin)
	}
	dir := t.TempDir()
	conf := fmt.Sprintf(`{"cniVersion":"1.0.0","name":"real","plugins":[{"type":"bridge","bridge":"cni0","isGateway":true,
 "ipam":{"type":"host-local","dataDir":%q,"ranges":[[{"subnet":"10.96.9.0/29"}]]}}]}`, filepath.Join(dir, "ipam"))
	if err := os.WriteFile(filepath.Join(dir, "10-real.conflist"), []byte(conf), 0o600); err != nil {
		t.Fatal(err)
	}
	b := harness.Start(t, harness.Options{
		NoImages: true, BinDir: harness.Bootable(t), Args: []string{"--network", "cni"},
		Config: fmt.Sprintf("[network]\nconf_dir = %q\nbin_dirs = [\"/usr/lib/cni\"]\n", dir),
	})
	const room = 5
	fill := func(when string) {
		for i := range room {
			b.RunSandbox(b.Sandbox(fmt.Sprintf("%s-%d", when, i)))
		}
	}
	kept := func() int {
		files, err := filepath.Glob(filepath.Join(dir, "ipam", "real", "10.*"))
		if err != nil {
			t.Fatal(err)
		}
		return len(files)
	}
	fill("before")
	if kept() != room {
		t.Fatalf("%d addresses are allocated", kept())
	}
	b.Reboot()
	if kept() != room {
		t.Fatalf("%d addresses are allocated on disk after the restart", kept())
	}
	b.StartDaemon()
	attachmentsGo(b)
	fill("after")
	b.RemoveAllPods()
	if kept() != 0 {
		t.Errorf("%d addresses stay allocated", kept())
	}
}
