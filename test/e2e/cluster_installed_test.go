//go:build e2e && vm

package e2e

import (
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/berthrun/berth/internal/cluster/provider/berth"
	"github.com/berthrun/berth/internal/require"
	"github.com/berthrun/berth/test/harness"
)

// TestClusterOfInstalledBerth: one node that is a system container of the berth that the machine's
// systemd runs. The test restarts the node, does what the unit does when the host shuts down and
// boots, and restarts berth, until nothing is left. The node image was built on another machine.
func TestClusterOfInstalledBerth(t *testing.T) {
	b := harness.Installed(t)
	require.CgroupV2(t)
	bin := harness.BinDir(t)
	t.Setenv("BERTH_ENDPOINT", "unix://"+b.Socket)
	h := &clusterHost{
		t: t, engine: "berth", nodes: b.Root + "-cluster", berth: filepath.Join(bin, "berth"), bin: bin,
		kubeconfig: filepath.Join(t.TempDir(), "kubeconfig"),
	}
	t.Log(h.run(h.berth, "image", "import", require.Given(t, "BERTH_NODE_IMAGE", "archive of an image of nodes")))
	before := hold(t)
	h.life(b, 0, []change{
		{"restart", func() { t.Log(h.cluster("restart", "e2e", "--wait", h.patience())) }},
		{"shutdown and boot", func() {
			t.Cleanup(func() { harness.Systemctl(t, "stop", berth.BootUnit) })
			harness.Systemctl(t, "start", berth.BootUnit) // all nodes run already
			harness.Systemctl(t, "stop", berth.BootUnit)
			if said, err := h.try(nil, h.berth, "pod", "exec", "berth-cluster/e2e-control-plane", "--", "true"); err == nil {
				t.Errorf("the node runs still: %s", said)
			}
			harness.Systemctl(t, "start", berth.BootUnit)
			h.eventually("the API after a boot", "get", "nodes")
		}},
		{"restart of berth", func() {
			harness.Systemctl(t, "daemon-reload")
			harness.Systemctl(t, "restart", harness.SupervisorUnit, harness.DaemonUnit)
			b.AwaitAnswer()
		}},
	})
	// The kernel removes cgroups and namespaces asynchronously.
	now := hold(t)
	for deadline := time.Now().Add(require.Patience(20 * time.Second)); !slices.Equal(now, before) && time.Now().Before(deadline); now = hold(t) {
		time.Sleep(time.Second)
	}
	if !slices.Equal(now, before) {
		t.Errorf("there are %q, and were %q", now, before)
	}
}

// hold returns what nodes use of the host while they exist: cgroups, mounts, network namespaces.
// The cgroup in which the daemon unpacks images belongs to the daemon.
func hold(t *testing.T) []string {
	t.Helper()
	all := append(groups(t), strings.Fields(host(t, "findmnt", "-rn", "-o", "TARGET")+" "+host(t, "ls", "/run/netns"))...)
	slices.Sort(all)
	return slices.DeleteFunc(all, func(name string) bool {
		return !strings.Contains(name, "berth") && !strings.Contains(name, "kube") || strings.HasSuffix(name, "-unpack")
	})
}
