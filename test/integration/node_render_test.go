//go:build integration

package integration

import (
	"strings"
	"testing"

	"github.com/berthrun/berth/test/systemd"
)

// TestNodeScript runs a rendered script on a machine: it makes what apply makes,
// starts what should run, and a second run restarts nothing.
func TestNodeScript(t *testing.T) {
	m := systemd.BootNode(t, nil)
	m.Describe(`
apiVersion: berth.run/v1alpha1
kind: Node
runtime: {name: berth}
network: {mode: builtin}
kernel: {defaultSysctls: false}
packages: {install: [conntrack]}
groups: [{name: ops, gid: 2000}]
users: [{name: ops, uid: 2000, group: ops, home: /home/ops, shell: /bin/sh}]
files:
- {path: /etc/own, type: directory, mode: "2775", group: ops}
- {path: /etc/own/file, content: "no newline", mode: "4750", owner: ops}
hooks: [{name: first, command: [/usr/bin/touch, "/etc/own/it ran"]}]
`)
	m.Run("install", "/opt/berth", "/opt/berth-supervisor", "/usr/local/bin")
	m.Run("berth", "node", "render", "--target", "script", "--distribution", "debian:12", "-o", "/opt/node.sh", systemd.NodeFile)
	m.Run("/opt/node.sh")
	m.Run("test", "-e", "/etc/own/it ran")
	// apply finds nothing to do after it.
	if out, err := m.Try("berth", "node", "diff"); err != nil {
		t.Errorf("the script makes something else than apply: %v\n%s", err, out)
	}
	since := func() string {
		t.Helper()
		return m.Run("systemctl", "show", "-p", "MainPID,ActiveEnterTimestampMonotonic", "berth.service", "berth-supervisor.service")
	}
	first := since()
	m.Run("/opt/node.sh")
	if second := since(); second != first {
		t.Errorf("a second run restarts:\n%swas\n%s", second, first)
	}

	m.Write(systemd.NodeFile, strings.Replace(m.Run("cat", systemd.NodeFile), "mode: builtin", "mode: cni", 1))
	m.Run("berth", "node", "render", "--target", "script", "--distribution", "debian:12", "-o", "/opt/node.sh", systemd.NodeFile)
	m.Run("/opt/node.sh")
	if third := since(); third == first {
		t.Errorf("another configuration restarts nothing:\n%s", third)
	}
	m.Run("berth", "node", "diff")
}

// packagedForRender is a containerd of Debian that may change no setting of this host.
const packagedForRender = `
apiVersion: berth.run/v1alpha1
kind: Node
runtime: {name: containerd}
network: {mode: kubenet, podCIDRs: [10.88.7.0/24]}
kernel: {defaultSysctls: false, sysctls: {net.ipv4.ip_forward: "1"}}
groups: [{name: ops, gid: 2000}]
users: [{name: ops, uid: 2000, group: ops, home: /home/ops, shell: /bin/sh}]
files:
- {path: /etc/own/odd, content: "\u03d4 it's $HOME", owner: ops}
`

// startedOnce wants that the package did not start containerd before its configuration was
// there, and that what kept it from that is gone.
func startedOnce(t *testing.T, m *systemd.Machine) {
	t.Helper()
	if n := strings.Count(m.Run("journalctl", "-o", "cat", "-u", "containerd.service"), "Started containerd.service"); n != 1 {
		t.Errorf("containerd was started %d times, want once, with our configuration:\n%s", n, m.Run("journalctl", "-u", "containerd.service"))
	}
	if out, err := m.Try("cat", "/usr/sbin/policy-rc.d"); err == nil {
		t.Errorf("a policy is left:\n%s", out)
	}
	if got := m.Run("cat", "/etc/own/odd"); got != "\u03d4 it's $HOME" {
		t.Errorf("the user's file has %q", got)
	}
}

// TestNodeScriptOfPackages: Debian's package starts no containerd of its own.
func TestNodeScriptOfPackages(t *testing.T) {
	m := systemd.BootNode(t, nil)
	m.Describe(packagedForRender)
	m.Run("/opt/berth", "node", "render", "--target", "script", "--distribution", "debian:12", "-o", "/opt/node.sh", systemd.NodeFile)
	m.Run("/opt/node.sh")
	startedOnce(t, m)
	m.Run("/opt/node.sh")
	startedOnce(t, m)
	if out, err := m.Try("/opt/berth", "node", "diff"); err != nil {
		t.Errorf("the script makes something else than apply: %v\n%s", err, out)
	}
}

// TestNodeCloudInit gives user data to cloud-init itself: its schema takes them, and its
// stages make the node.
func TestNodeCloudInit(t *testing.T) {
	m := systemd.BootNode(t, nil)
	m.Describe(packagedForRender)
	m.Run("/opt/berth", "node", "render", "--target", "cloud-init", "--distribution", "debian:12", "-o", "/opt/user-data", systemd.NodeFile)
	m.Run("apt-get", "install", "-y", "-q", "--no-install-recommends", "cloud-init")
	valid := func(file string) {
		t.Helper()
		if out, err := m.Try("cloud-init", "schema", "--config-file", file); err != nil || !strings.Contains(out, "Valid cloud-config") {
			t.Errorf("the schema does not take %s: %v\n%s", file, err, out)
		}
	}
	valid("/opt/user-data")
	digest := "sha256:" + strings.Repeat("0", 64)
	for distribution, text := range map[string]string{
		"rocky:9":   "runtime: {name: containerd, assets: [{source: \"https://a.example/containerd-2.4.2-linux-amd64.tar.gz\", digest: \"" + digest + "\"}]}\n",
		"debian:13": "runtime: {name: berth}\nusers: [{name: web, system: true}]\npackages: {install: [chrony=4.3]}\nkernel: {swap: \"off\"}\n",
		"fedora:44": "runtime: {name: docker}\nregistries: [{host: docker.io, mirrors: [{url: \"https://m.example\"}]}]\n",
	} {
		m.Write("/opt/other.yaml", "apiVersion: berth.run/v1alpha1\nkind: Node\n"+text)
		m.Run("/opt/berth", "node", "render", "--target", "cloud-init", "--distribution", distribution, "-o", "/opt/"+distribution,
			"--berth", "https://a.example/berth", "--berth-digest", digest, "--supervisor", "https://a.example/berth-supervisor", "--supervisor-digest", digest, "/opt/other.yaml")
		valid("/opt/" + distribution)
	}
	m.Write("/etc/cloud/cloud.cfg.d/90-test.cfg", "datasource_list: [NoCloud]\n")
	m.Run("sh", "-c", "mkdir -p /var/lib/cloud/seed/nocloud && cp /opt/user-data /var/lib/cloud/seed/nocloud/ && echo 'instance-id: test' > /var/lib/cloud/seed/nocloud/meta-data")
	m.Write("/etc/apt/apt.conf.d/90-test", "APT::Install-Recommends \"false\";\n") // the image has no more
	for _, stage := range []string{"init --local", "init", "modules --mode=config", "modules --mode=final"} {
		// It tells that the lists of packages could not be fetched: there is no network.
		out, err := m.Try(append([]string{"cloud-init"}, strings.Fields(stage)...)...)
		t.Logf("cloud-init %s: %v\n%s", stage, err, out)
	}
	startedOnce(t, m)
	if out, err := m.Try("/opt/berth", "node", "diff"); err != nil {
		t.Errorf("cloud-init makes something else than apply: %v\n%s\n%s", err, out, m.Run("cat", "/var/log/cloud-init-output.log"))
	}
}
