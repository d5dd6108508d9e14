//go:build integration

package integration

import (
	"os"
	"strings"
	"testing"

	"github.com/berthrun/berth/test/systemd"
)

// TestClusterUnit tests the unit of nodes whose provider is berth. It reports a node that cannot
// start, and stays active to stop the others. A restart of the daemon does not affect it.
func TestClusterUnit(t *testing.T) {
	m := systemd.BootNode(t, nil)
	m.Write(systemd.NodeFile, "")
	m.Applied(berthFile)
	const unit = "berth-cluster.service"
	text, err := os.ReadFile("../../build/" + unit)
	if err != nil {
		t.Fatal(err)
	}
	m.Write("/etc/systemd/system/"+unit, strings.ReplaceAll(string(text), "@BINDIR@", "/usr/local/bin"))
	m.Run("mkdir", "-p", "/var/lib/berth-cluster/dev-worker")
	m.Write("/var/lib/berth-cluster/dev-worker/node.json", "{")
	m.Run("systemctl", "enable", "--now", unit)
	m.Run("systemctl", "is-active", unit)
	said := func() int {
		m.Run("journalctl", "--sync")
		return strings.Count(m.Run("journalctl", "--no-pager", "-u", unit), "cannot read what is known of the node dev-worker")
	}
	if n := said(); n != 1 {
		t.Errorf("up reported the node %d times", n)
	}
	m.Run("systemctl", "restart", "berth.service")
	m.Run("systemctl", "is-active", unit)
	if n := said(); n != 1 {
		t.Errorf("with the daemon, the unit was restarted: it reported the node %d times", n)
	}
	m.Run("systemctl", "stop", unit)
	if n := said(); n != 2 {
		t.Errorf("up and down reported the node %d times", n)
	}
	m.Run("rm", "-r", "/var/lib/berth-cluster")
	m.Run("systemctl", "start", unit)
	m.Run("systemctl", "stop", unit)
	if out := m.Run("systemctl", "show", "-p", "Result", "--value", unit); strings.TrimSpace(out) != "success" {
		t.Errorf("without nodes: %s", out)
	}
}
