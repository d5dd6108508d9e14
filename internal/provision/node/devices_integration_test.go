//go:build integration

package node

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/berthrun/berth/internal/require"
)

// TestGPUsHaveTheirLinks: after `systemctl daemon-reload` systemd looks up a container's devices
// below /dev/char. The script creates the links. A second run has the same result, and it works
// without a GPU.
func TestGPUsHaveTheirLinks(t *testing.T) {
	require.Root(t)
	unshare := require.Binary(t, "unshare")
	target, err := Build(load(t, "runtime: {name: berth, nvidia: {enabled: true}}\n"), factsOf(t, "debian 12"))
	if err != nil {
		t.Fatal(err)
	}
	script := filepath.Join(t.TempDir(), "script")
	if err := os.WriteFile(script, []byte(contentOf(target, deviceScript)), 0o700); err != nil {
		t.Fatal(err)
	}
	// A separate /dev, in a separate mount namespace.
	world := `set -e
mount --make-rprivate /
mount -t tmpfs tmpfs /dev
sh "$0"
mkdir /dev/nvidia-caps
mknod /dev/nvidia0 c 195 0
mknod /dev/nvidiactl c 195 255
mknod /dev/nvidia-caps/nvidia-cap1 c 510 1
: > /dev/nvidia-file
sh "$0"
sh "$0"
cd /dev/char
for link in *; do echo "$link $(readlink "$link")"; test -c "$link"; done`
	out, err := exec.CommandContext(t.Context(), unshare, "--mount", "sh", "-c", world, script).CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	want := "195:0 ../nvidia0\n195:255 ../nvidiactl\n510:1 ../nvidia-caps/nvidia-cap1\n"
	if diff := cmp.Diff(want, string(out)); diff != "" {
		t.Error(diff)
	}
}
