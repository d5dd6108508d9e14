//go:build e2e

package migrate

import (
	"path/filepath"
	"testing"

	"github.com/berthrun/berth/internal/require"
	"github.com/berthrun/berth/test/docs/scripts"
	"github.com/berthrun/berth/test/systemd"
)

const crioSocket = "unix:///run/crio/crio.sock"

// crioConfig is of a CRI-O that somebody has set up. Its sandboxes are of an image that needs no
// registry.
const crioConfig = `[crio.runtime]
default_runtime = "runc"
cgroup_manager = "systemd"
[crio.runtime.runtimes.runc]
runtime_path = "/usr/sbin/runc"
[crio.image]
pause_image = "berth.run/hello:demo"
pause_command = "/bin/hello"
[crio.network]
plugin_dirs = ["/usr/lib/cni"]
`

const crioUnit = "[Service]\nExecStart=/usr/local/bin/crio\nType=notify\nDelegate=yes\nKillMode=process\n[Install]\nWantedBy=multi-user.target\n"

// TestFromCRIO types docs/migrate/cri-o.md on a node of kubeadm's kind with the release of CRI-O that
// CRIO names (cri-o.amd64.v1.36.0.tar.gz), because no package source here has it.
func TestFromCRIO(t *testing.T) {
	archive := require.Given(t, "CRIO", "an archive of CRI-O's release")
	debs, err := filepath.Glob(filepath.Join(repository, "out/systemd-debs/*.deb"))
	if err != nil || len(debs) == 0 {
		t.Fatalf("the packages are not there: run test/systemd/debs.sh out/systemd-debs conmon podman: %v", err)
	}
	files := map[string]string{"/opt/crio.tar.gz": archive}
	for _, deb := range debs {
		files["/var/cache/apt/archives/"+filepath.Base(deb)] = deb
	}
	n := boot(t, files)
	n.Write("/etc/crio/crio.conf.d/10-node.conf", crioConfig)
	n.Write("/etc/containers/policy.json", `{"default": [{"type": "insecureAcceptAnything"}]}`)
	n.Write("/etc/cni/net.d/10-pods.conflist", cniNetwork)
	n.Write("/etc/systemd/system/crio.service", crioUnit)
	n.install("conmon", "podman", "runc", "containernetworking-plugins")
	n.Run("sh", "-ec", "tar -C /opt -xzf /opt/crio.tar.gz; install -m 755 /opt/cri-o/bin/crio /opt/cri-o/bin/pinns /usr/local/bin; "+
		"podman load -i /opt/hello-image.tar; systemctl daemon-reload; systemctl enable -q --now crio")
	n.startKubelet(crioSocket)
	n.podRuns(crioSocket)

	const change = "sed -i 's/name: crio/name: berth/; /^  version:/d; /^  skipInstall:/d' /etc/berth/node.yaml"
	n.Describe("@HELLO@") // the hash of the image, for the node file
	out := scripts.Page(t, repository, "docs/migrate/cri-o.md", "", []scripts.Row{
		{Line: "berth node init -f /etc/berth/node.yaml", Run: "mv /etc/berth/node.yaml /root/sum; berth node init -f /etc/berth/node.yaml", Why: "the test needs the hash of an image"},
		{
			Line: change, Run: change + ` && printf 'kernel: {defaultSysctls: false, sysctls: {net.ipv4.ip_forward: "1"}}\nimages:\n- {source: /opt/hello-image.tar, digest: "sha256:%s", names: ["berth.run/hello:demo"]}\n' $(cat /root/sum) >> ` + systemd.NodeFile,
			Why: "sysctls of the machine are those of this host, and it reaches no registry",
		},
	}).All(n.shell)
	says(t, out.Of(t, "berth node plan"), "pod default/hello-node is stopped in crio; the kubelet starts it in berth")
	says(t, n.called(), "drain NODE --ignore-daemonsets\nuncordon NODE\n", "cri-socket="+berthSocket)
	n.podRuns(berthSocket)
	n.only("berth.service", "crio.service")
}
