//go:build integration

package integration

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/berthrun/berth/internal/require"
	"github.com/berthrun/berth/test/harness"
	"github.com/berthrun/berth/test/systemd"
)

// TestNodeKeepsItself: the boot unit applies the node file, and the timer finds drift by itself.
func TestNodeKeepsItself(t *testing.T) {
	m := systemd.BootNode(t, nil)
	m.Write(systemd.NodeFile, "")
	before := m.Tree(systemd.Volatile()...)
	m.Applied(berthFile + "boot: {enabled: true, driftInterval: 1m}\n")
	for _, unit := range []string{"berth-node.service", "berth-node.timer"} {
		m.Run("systemctl", "is-enabled", unit)
	}
	m.Run("rm", "/etc/crictl.yaml")
	m.Run("systemctl", "start", "berth-node.service") // as at boot
	m.Run("test", "-e", "/etc/crictl.yaml")
	m.Run("rm", "/etc/crictl.yaml")
	// The timer's own minute, and its random delay, are long.
	m.Write("/etc/systemd/system/berth-node.timer.d/test.conf", "[Timer]\nOnActiveSec=\nOnUnitInactiveSec=\nOnActiveSec=1s\nRandomizedDelaySec=0\n")
	m.Run("sh", "-c", "systemctl daemon-reload && systemctl restart berth-node.timer")
	if out, err := m.Try("timeout", "120", "sh", "-c", "until test -e /etc/crictl.yaml; do sleep 0.2; done"); err != nil {
		t.Errorf("the timer repairs nothing: %v %s\n%s", err, out, m.Run("systemctl", "status", "--no-pager", "berth-node.timer", "berth-node.service"))
	}
	m.Run("sh", "-c", "rm -r /etc/systemd/system/berth-node.timer.d && systemctl daemon-reload && systemctl restart berth-node.timer")
	m.Run("/opt/berth", "node", "apply", "--yes", "--wait")
	m.Write(systemd.NodeFile, "")
	m.WasReset(before)
}

// TestNodeGivesUp: a boot unit whose node file has a lasting error retries a few times, and stays
// failed.
func TestNodeGivesUp(t *testing.T) {
	m := systemd.BootNode(t, nil)
	m.Applied(berthFile + "boot: {enabled: true}\n")
	m.Write(systemd.NodeFile, "kind: Pod\n")
	// The time between two retries is long.
	m.Write("/etc/systemd/system/berth-node.service.d/test.conf", "[Service]\nRestartSec=100ms\n")
	m.Run("systemctl", "daemon-reload")
	if out, err := m.Try("systemctl", "start", "berth-node.service"); err == nil {
		t.Errorf("the unit takes a node file with a fault:\n%s", out)
	}
	m.Run("timeout", "120", "sh", "-c", "until systemctl is-failed berth-node.service; do sleep 0.2; done")
	out := m.Run("systemctl", "show", "-p", "NRestarts,SubState", "berth-node.service")
	if !strings.Contains(out, "NRestarts=7\n") && !strings.Contains(out, "NRestarts=8\n") || !strings.Contains(out, "SubState=failed") {
		t.Errorf("after the start and 7 restarts the unit should have given up; it is\n%s\n%s", out, m.Run("journalctl", "--no-pager", "-u", "berth-node.service"))
	}
}

// TestNodeOfARoot works on the root directory of a machine that does not run: files, units by
// links, and packages. reset undoes all of it.
func TestNodeOfARoot(t *testing.T) {
	require.Root(t)
	root := systemd.CopyRoot(t, systemd.Debian12, filepath.Join(t.TempDir(), "root"))
	file := filepath.Join(t.TempDir(), "node.yaml")
	text := strings.Replace(berthFile, "images:\n- {source: /opt/hello-image.tar, digest: \"sha256:@HELLO@\", names: [\"berth.run/hello:demo\"]}\n", "", 1)
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	before := systemd.Tree(t, root, systemd.Volatile()...)
	berth := func(args ...string) string {
		t.Helper()
		var out bytes.Buffer
		cmd := exec.CommandContext(t.Context(), filepath.Join(harness.BinDir(t), "berth"), append([]string{"node", args[0], "--root", root}, args[1:]...)...)
		cmd.Stdout, cmd.Stderr = &out, &out
		if err := cmd.Run(); err != nil {
			t.Fatalf("berth node %s: %v\n%s", strings.Join(args, " "), err, &out)
		}
		return out.String()
	}
	berth("apply", "--yes", "--file", file)
	if out := berth("apply", "--yes", "--file", file); !strings.Contains(out, "Nothing to change.") {
		t.Errorf("a second apply changes something:\n%s", out)
	}
	berth("diff", "--file", file)
	for _, name := range []string{
		"/usr/local/bin/berth", "/usr/local/bin/berth-supervisor", "/etc/berth/berth.toml", "/usr/sbin/conntrack",
		"/etc/systemd/system/berth.service", "/etc/systemd/system/multi-user.target.wants/berth.service",
	} {
		if _, err := os.Lstat(filepath.Join(root, name)); err != nil {
			t.Errorf("apply makes no %s: %v", name, err)
		}
	}
	out := berth("reset", "--yes")
	if diff := cmp.Diff(before, systemd.Tree(t, root, systemd.Volatile()...)); diff != "" {
		t.Errorf("reset leaves the root directory different (-before +after):\n%s\n%s", diff, out)
	}
}
