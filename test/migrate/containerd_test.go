//go:build e2e

package migrate

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/berthrun/berth/test/docs/scripts"
	"github.com/berthrun/berth/test/systemd"
)

const containerdSocket = "unix:///run/containerd/containerd.sock"

// containerdConfig is of a containerd that somebody has set up. Its sandboxes are of an image that
// needs no registry, and it sets no oom_score_adj that this host refuses.
const containerdConfig = `version = 2
[plugins."io.containerd.grpc.v1.cri"]
sandbox_image = "berth.run/hello:demo"
restrict_oom_score_adj = true
[plugins."io.containerd.grpc.v1.cri".cni]
bin_dir = "/usr/lib/cni"
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
runtime_type = "io.containerd.runc.v2"
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
SystemdCgroup = true
`

// releasedUnit is that of containerd's release.
const releasedUnit = "[Service]\nExecStart=/usr/local/bin/containerd\nType=notify\nDelegate=yes\nKillMode=process\nLimitNOFILE=1048576\n[Install]\nWantedBy=multi-user.target\n"

// TestFromContainerd types docs/migrate/containerd.md on a node of kubeadm's kind with a containerd
// that berth has not set up: Debian's package, or a release in /usr/local.
func TestFromContainerd(t *testing.T) {
	t.Run("package", func(t *testing.T) {
		n := boot(t, nil)
		n.Write("/etc/containerd/config.toml", containerdConfig)
		n.Write("/etc/cni/net.d/10-pods.conflist", cniNetwork)
		n.install("containerd", "runc", "containernetworking-plugins")
		n.fromContainerd()
	})
	t.Run("release", func(t *testing.T) {
		assets, err := filepath.Abs(filepath.Join(repository, "out/systemd-assets"))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := os.Stat(assets); err != nil {
			t.Fatalf("the assets are not made: run test/systemd/containerd.sh out/systemd-assets: %v", err)
		}
		n := boot(t, map[string]string{"/opt/assets": assets + "/."})
		n.Write("/etc/containerd/config.toml", strings.Replace(containerdConfig, "/usr/lib/cni", "/opt/cni/bin", 1))
		n.Write("/etc/cni/net.d/10-pods.conflist", cniNetwork)
		n.Write("/etc/systemd/system/containerd.service", releasedUnit)
		n.Run("sh", "-ec", "tar -C /usr/local -xzf /opt/assets/containerd-*.tar.gz; install -m 755 /opt/assets/runc.* /usr/local/sbin/runc; "+
			"mkdir -p /opt/cni/bin; tar -C /opt/cni/bin -xzf /opt/assets/cni-plugins-*.tgz; systemctl daemon-reload; systemctl enable -q --now containerd")
		n.fromContainerd()
	})
}

// fromContainerd types the page on a machine without a node file.
func (n node) fromContainerd() {
	n.t.Helper()
	n.Run("ctr", "-n", "k8s.io", "images", "import", "/opt/hello-image.tar")
	n.startKubelet(containerdSocket)
	n.podRuns(containerdSocket)
	n.leavesContainerd(withoutSysctls("berth node init -f /etc/berth/node.yaml"))
}

// describedContainerd is a node of containerd. Its options are those of containerdConfig.
const describedContainerd = `apiVersion: berth.run/v1alpha1
kind: Node
runtime:
  name: containerd
  sandboxImage: berth.run/hello:demo
  config: {additions: {plugins."io.containerd.grpc.v1.cri".restrict_oom_score_adj: true}}
network: {mode: kubenet, podCIDRs: [10.88.7.0/24]}
kernel: {defaultSysctls: false, sysctls: {net.ipv4.ip_forward: "1"}}
`

// TestFromDescribedContainerd types docs/migrate/containerd.md on a machine whose containerd is of
// its node file, and goes back.
func TestFromDescribedContainerd(t *testing.T) {
	n := boot(t, nil)
	n.Write(systemd.NodeFile, describedContainerd)
	n.Run("berth", "node", "apply", "--yes")
	n.Run("ctr", "-n", "k8s.io", "images", "import", "/opt/hello-image.tar")
	n.startKubelet(containerdSocket)
	n.podRuns(containerdSocket)

	const change = "sed -i 's/name: containerd/name: berth/; /^  version:/d; /^  skipInstall:/d' /etc/berth/node.yaml"
	n.shell.Run("cp /etc/berth/node.yaml /root/node.yaml; " + change)
	out, status := n.shell.Try("berth node validate")
	if status == 0 {
		t.Error("validate finds no fault in fields that berth does not have")
	}
	says(t, out, "node.yaml:5:3: runtime.sandboxImage", "node.yaml:6:")
	n.shell.Run("cp /root/node.yaml /etc/berth/node.yaml")
	n.leavesContainerd(
		scripts.Row{Line: "berth node init -f /etc/berth/node.yaml", Why: "the machine has a node file"},
		scripts.Row{Line: change, Run: change + " && sed -i '/sandboxImage/d; /additions/d' /etc/berth/node.yaml", Why: "berth does not have these fields"},
	)
	n.shell.Run("berth node rollback --yes --allow-disruption")
	n.podRuns(containerdSocket)
	n.only("containerd.service", "berth.service")
}

// leavesContainerd types the page.
func (n node) leavesContainerd(instead ...scripts.Row) {
	n.t.Helper()
	out := scripts.Page(n.t, repository, "docs/migrate/containerd.md", "", instead).All(n.shell)
	says(n.t, out.Of(n.t, "berth node plan"),
		"pod default/hello-node is stopped in containerd; the kubelet starts it in berth", "is taken over from containerd by content, not pulled")
	says(n.t, n.called(), "drain NODE --ignore-daemonsets\nuncordon NODE\n", "cri-socket="+berthSocket)
	n.podRuns(berthSocket)
	n.only("berth.service", "containerd.service")
}
