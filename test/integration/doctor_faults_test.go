//go:build integration

package integration

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/berthrun/berth/internal/finding"
	"github.com/berthrun/berth/internal/require"
	"github.com/berthrun/berth/test/harness"
)

// machineFaults are faults of one machine, all at once: the files to write, of which %T is a directory of the test's.
func machineFaults() map[string]string {
	return map[string]string{
		"/etc/berth/doctor.toml": `listen = "unix:///run/` + strings.Repeat("x", 120) + `"
root = "%T/root"
state = "%T/state"
[runtime]
supervisor = "/no/such/supervisor"
seccomp_profile = "/no/such/seccomp.json"
hooks_dirs = ["/etc/berth/hooks"]
[network]
mode = "builtin"
subnets = ["10.2.0.0/25"]
[page]
listen = "127.0.0.1:7001"
tls_cert_file = "/no/such/page.crt"
tls_key_file = "/no/such/page.key"
[metrics]
listen = "127.0.0.1:7002"
tls_cert_file = "/dev/null"
tls_key_file = "/dev/null"
[stream]
tls_cert = "/no/such/stream.crt"
tls_key = "/no/such/stream.key"
tls = "files"
`,
		"/etc/berth/hooks/bad.json":                 `{"version": "1.0.0", "hook": {"path": "/bin/true"}, "when": {"always": true}, "stages": ["later"]}`,
		"/etc/berth/certs.d/one.example/hosts.toml": "server = \n",
		"/etc/berth/certs.d/two.example/hosts.toml": "[host.\"https://m\"]\nca = \"ca.crt\"\n",
		"/etc/systemd/system/kubelet.service":       "[Service]\nExecStart=/no/such/kubelet --config=/var/lib/kubelet/config.yaml\n",
		"/etc/subuid":                               "kubelet:65536:7208960\n",
		"/etc/subgid":                               "kubelet:131072:7208960\n",
		"%T/root/pods/quarantine/a.json":            "{",
		"%T/root/images/quarantine/meta.db":         "x",
		"%T/state/pods/sandboxes/a1.json":           `{"version":1,`,
		"%T/state/pods/containers/b2.json":          `{"version":99}`,
		"%T/state/network/attachments/a1.json":      "",
		"/var/lib/kubelet/config.yaml": `imageServiceEndpoint: unix:///run/other.sock
containerRuntimeEndpoint: unix:///run/nobody.sock
podPidsLimit: 9000000
evictionHard: {nodefs.available: 0Mi}
resolvConf: /no/such/resolv.conf
`,
	}
}

// TestDoctorOnAMachineWithManyFaults: the program itself finds each fault of a machine that has many, says what to do, and
// names the section of its docs. --repair changes none of them, as no finding says that it does.
func TestDoctorOnAMachineWithManyFaults(t *testing.T) {
	require.Root(t)
	bin, dir := harness.BinDir(t), t.TempDir()
	in := strings.NewReplacer("%T", dir+"/t")
	// All that is written is in a tmpfs of a mount namespace of the test's, which also hides runtimes and kubelets of this
	// machine.
	var script strings.Builder
	fmt.Fprintf(&script, "set -e\nmount -t tmpfs tmpfs /run\nmount -t tmpfs tmpfs %s\ncd %[1]s\nmkdir t\n", dir)
	for i, over := range []string{"/etc", "/var/lib"} {
		fmt.Fprintf(&script, "mkdir upper%d work%[1]d\nmount -t overlay overlay -o lowerdir=%s,upperdir=upper%[1]d,workdir=work%[1]d %[2]s\n", i, over)
	}
	script.WriteString("rm -rf /etc/systemd/system/kubelet.service.d\necho 0 > /proc/sys/net/ipv4/ip_forward\n")
	for file, content := range machineFaults() {
		file = in.Replace(file)
		fmt.Fprintf(&script, "mkdir -p %s\ncat > %s <<'END'\n%sEND\n", filepath.Dir(file), file, in.Replace(content+"\n"))
	}
	fmt.Fprintf(&script, `state() { find t upper0 upper1 ! -name daemon.lock -type f -exec cksum {} + | sort; }
state > before
%s/berth doctor --config /etc/berth/doctor.toml --repair -o json || test $? = 1
state > after
cmp before after >&2
`, bin)
	cmd := exec.Command("unshare", "--mount", "--net", "--pid", "--fork", "--mount-proc", "--propagation", "private", "sh", "-c", script.String())
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%v: %s%s", err, out, stderr.String())
	}
	var all []finding.Finding
	if err := json.Unmarshal(out, &all); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	for _, want := range []struct{ id, object, evidence string }{
		{"runtime", "CRI socket", "no runtime answers"},
		{"kubelet", "/no/such/kubelet", "kubelet.service starts /no/such/kubelet, which is not there"},
		{"kubelet-runtime", "/run/nobody.sock", "where no runtime answers"},
		{"kubelet-images", "imageServiceEndpoint", "pulls images through unix:///run/other.sock"},
		{"kubelet-max-pods", "podPidsLimit", "podPidsLimit is 9000000"},
		{"kubelet-eviction", "nodefs.available", "has no limit for nodefs.available"},
		{"kubelet-seccomp", "/no/such/seccomp.json", "which is not there"},
		{"kubelet-userns", "/etc/subuid", "the same one range"},
		{"kernel", "net.ipv4.ip_forward", "net.ipv4.ip_forward is 0"},
		{"name-resolution", "/no/such/resolv.conf", "which is not there"},
		{"berth-config", "/etc/berth/doctor.toml", "doctor.toml:1: listen: "},
		{"berth-config", "/etc/berth/doctor.toml", "a socket path has at most 107 bytes"},
		{"berth-config", "/etc/berth/doctor.toml", "runtime.hooks_dirs"},
		{"berth-config", "/etc/berth/doctor.toml", "/no/such/page.crt"},
		{"berth-config", "/etc/berth/doctor.toml", "metrics.tls_cert_file: "},
		{"berth-config", "/etc/berth/doctor.toml", "/no/such/stream.crt"},
		{"berth-programs", "/no/such/supervisor", "which is not there: berth does not start"},
		{"records", "%T/root/pods/quarantine", "could not read are in"},
		{"records", "%T/root/images/quarantine", "meta.db"},
		{"records", "%T/state/pods/sandboxes/a1.json", "the record of sandbox a1 cannot be read"},
		{"records", "%T/state/pods/containers/b2.json", "has version 99"},
		{"records", "%T/state/network/attachments/a1.json", "the record of the network of sandbox a1"},
		{"image-store", "%T/root", "is on tmpfs ("},
		{"registries", "/etc/berth/certs.d/one.example/hosts.toml", "is no TOML"},
		{"registries", "/etc/berth/certs.d/two.example/hosts.toml", "ca.crt, which is not there"},
	} {
		found := false
		for _, f := range all {
			found = found || f.ID == want.id && f.Level != finding.OK && f.Object == in.Replace(want.object) && strings.Contains(f.Evidence, want.evidence) &&
				f.Fix != "" && f.Docs == "docs/doctor.md#"+want.id && f.Repair == ""
		}
		if !found {
			t.Errorf("no finding of %s about %s says %q", want.id, in.Replace(want.object), want.evidence)
		}
	}
	if t.Failed() {
		for _, f := range all {
			t.Logf("%+v", f)
		}
		if _, err := os.Stat("/etc/berth/doctor.toml"); err == nil {
			t.Error("the test has written to this machine")
		}
	}
}
