//go:build integration

package integration

import (
	"fmt"
	"strings"
	"testing"

	"github.com/berthrun/berth/internal/provision/node/distro"
	"github.com/berthrun/berth/test/systemd"
)

// TestNodeScript runs a rendered script on a machine. It does what apply does, starts what should
// run, and a second run restarts nothing.
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
	// apply has nothing to do after it.
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

// packagedForRender is a node of Debian's containerd that may change no setting of this host.
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

// startedOnce checks that the package did not start containerd before its configuration existed,
// and that the start policy is removed.
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

// TestNodeScriptOfPackages: Debian's package does not start containerd itself.
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

// TestNodeCloudInit passes user data to cloud-init itself. Its schema accepts that of every runtime
// on every distribution, and its stages set up the node.
func TestNodeCloudInit(t *testing.T) {
	m := systemd.BootNode(t, nil)
	m.Describe(packagedForRender)
	m.Run("/opt/berth", "node", "render", "--target", "cloud-init", "--distribution", "debian:12", "-o", "/opt/user-data", systemd.NodeFile)
	m.Run("apt-get", "install", "-y", "-q", "--no-install-recommends", "cloud-init")
	if out, err := m.Try("cloud-init", "schema", "--config-file", "/opt/user-data"); err != nil || !strings.Contains(out, "Valid cloud-config") {
		t.Errorf("the schema does not take the user data: %v\n%s", err, out)
	}
	cloudInitRows(t, m)
	m.Write("/etc/cloud/cloud.cfg.d/90-test.cfg", "datasource_list: [NoCloud]\n")
	m.Run("sh", "-c", "mkdir -p /var/lib/cloud/seed/nocloud && cp /opt/user-data /var/lib/cloud/seed/nocloud/ && echo 'instance-id: test' > /var/lib/cloud/seed/nocloud/meta-data")
	m.Write("/etc/apt/apt.conf.d/90-test", "APT::Install-Recommends \"false\";\n") // the image has no more
	for _, stage := range []string{"init --local", "init", "modules --mode=config", "modules --mode=final"} {
		// It reports that it could not fetch the lists of packages: there is no network.
		out, err := m.Try(append([]string{"cloud-init"}, strings.Fields(stage)...)...)
		t.Logf("cloud-init %s: %v\n%s", stage, err, out)
	}
	startedOnce(t, m)
	if out, err := m.Try("/opt/berth", "node", "diff"); err != nil {
		t.Errorf("cloud-init makes something else than apply: %v\n%s\n%s", err, out, m.Run("cat", "/var/log/cloud-init-output.log"))
	}
}

// cloudInitRows renders every runtime for every distribution, and checks all of them with
// cloud-init's schema at once, as its own command checks one.
func cloudInitRows(t *testing.T, m *systemd.Machine) {
	t.Helper()
	digest := "sha256:" + strings.Repeat("0", 64)
	asset := func(name string) string {
		return "{source: \"https://a.example/" + name + "\", digest: \"" + digest + "\"}"
	}
	rows := map[string]string{
		"berth":             "runtime: {name: berth}\nusers: [{name: web, system: true}]\nkernel: {swap: \"off\"}\n",
		"containerd":        "runtime: {name: containerd}\n",
		"containerd-assets": "runtime: {name: containerd, assets: [" + asset("containerd-2.4.2-linux-amd64.tar.gz") + ", " + asset("runc.amd64") + "]}\n",
		"crio":              "runtime: {name: crio}\n",
		"crio-assets":       "runtime: {name: crio, assets: [" + asset("cri-o.amd64.v1.36.3.tar.gz") + "]}\n",
		"docker":            "runtime: {name: docker}\nregistries: [{host: docker.io, mirrors: [{url: \"https://m.example\"}]}]\n",
		"docker-assets":     "runtime: {name: docker, version: \"28.5.1\", assets: [" + asset("docker-28.5.1.tgz") + "]}\n",
	}
	script := "mkdir -p /opt/rows\n"
	for row, text := range rows {
		m.Write("/opt/rows/"+row+".yaml", "apiVersion: berth.run/v1alpha1\nkind: Node\n"+text)
		for _, release := range distro.Releases() {
			release = strings.Replace(release, " ", ":", 1)
			out := "/opt/rows/" + release + "-" + row
			script += fmt.Sprintf("/opt/berth node render --target cloud-init --distribution %s -o %s.out --berth https://a.example/berth --berth-digest %s "+
				"--supervisor https://a.example/berth-supervisor --supervisor-digest %s /opt/rows/%s.yaml 2>%s.said || { echo %s; grep -Eq 'has no [a-z ]+;|brings its own|is too old|reads Ignition' %s.said || cat %s.said; }\n",
				release, out, digest, digest, row, out, out, out, out)
		}
	}
	m.Write("/opt/rows.sh", script)
	refused := strings.Split(strings.TrimSpace(m.Run("sh", "/opt/rows.sh")), "\n")
	const validate = `
import glob
from cloudinit.config.schema import get_schema, validate_cloudconfig_file
schema = get_schema()
files = sorted(glob.glob("/opt/rows/*.out"))
for file in files:
    try:
        validate_cloudconfig_file(file, schema)
    except Exception as e:
        print("%s: %s" % (file, e))
print("%d looked at" % len(files))
`
	m.Write("/opt/validate.py", validate)
	all := len(rows) * len(distro.Releases())
	if out, want := strings.TrimSpace(m.Run("python3", "/opt/validate.py")), fmt.Sprintf("%d looked at", all-len(refused)); out != want {
		t.Errorf("the schema says %q, want %q", out, want)
	}
	// Distributions without a package of a runtime; TestRows of package node lists them.
	if len(refused) > all/3 {
		t.Errorf("%d of %d are refused: %q", len(refused), all, refused)
	}
	for _, line := range refused {
		if !strings.HasPrefix(line, "/opt/rows/") || strings.Contains(line, " ") {
			t.Errorf("a row is refused for another reason than that there is no support: %s", line)
		}
	}
}
