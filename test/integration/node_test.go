//go:build integration

package integration

import (
	"errors"
	"fmt"
	"os/exec"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/berthrun/berth/test/systemd"
)

// berthFile is a node of berth with its own network. It may change no setting of this host.
const berthFile = `
apiVersion: berth.run/v1alpha1
kind: Node
runtime: {name: berth}
network: {mode: builtin}
kernel: {defaultSysctls: false}
packages: {install: [conntrack]}
images:
- {source: /opt/hello-image.tar, digest: "sha256:@HELLO@", names: ["berth.run/hello:demo"]}
`

// helloPod runs until it is stopped.
const helloPod = `
apiVersion: v1
kind: Pod
metadata: {name: hello}
spec:
  restartPolicy: Never
  containers:
  - {name: web, image: "berth.run/hello:demo", command: [serve, --listen, ":8080"]}
`

func exitCode(err error) int {
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		return exit.ExitCode()
	}
	return -1
}

// TestNodeOfBerth follows one machine through its owner's changes.
func TestNodeOfBerth(t *testing.T) {
	m := systemd.BootNode(t, nil)
	m.Describe(berthFile)
	m.Write("/etc/hello-pod.yaml", helloPod)
	before, running := m.Tree(systemd.Volatile()...), m.Run("sh", "-c", ofTheRuntime)
	berth := func(args ...string) string { t.Helper(); return m.Run(append([]string{"/opt/berth"}, args...)...) }

	berth("node", "apply", "--yes")
	berth("pod", "run", "-d", "-f", "/etc/hello-pod.yaml")
	pod := func() string { t.Helper(); return berth("pod", "exec", "hello", "--", "hostname") }
	if got := strings.TrimSpace(pod()); got != "hello" {
		t.Errorf("the pod says that its host is %q, not hello", got)
	}
	m.PodAnswers("unix:///run/berth/berth.sock", 8080)
	// On cgroup v1 systemd moves the first container of a slice out of its own cgroup of the devices.
	if out := m.Run("sh", "-c", "cat /sys/fs/cgroup/devices/berth_*.slice/*/cgroup.procs 2>&- || true"); strings.TrimSpace(out) != "" {
		t.Errorf("processes of pods are not in the devices cgroup of their containers: %s", out)
	}
	if out := berth("node", "apply", "--yes"); !strings.Contains(out, "Nothing to change.") {
		t.Errorf("a second apply changes something:\n%s", out)
	}
	berth("node", "diff")

	t.Run("drift", func(t *testing.T) {
		m.Run("systemctl", "stop", "berth.service")
		m.Run("rm", "/etc/berth/berth.toml")
		m.Run("chmod", "600", "/usr/local/bin/berth")
		out, err := m.Try("/opt/berth", "node", "diff")
		if exitCode(err) != 2 {
			t.Errorf("diff ends with %v, want exit code 2", err)
		}
		for _, want := range []string{"unit berth.service does not run", "file /etc/berth/berth.toml is not there", "mode: 0600 → 0755"} {
			if !strings.Contains(out, want) {
				t.Errorf("diff does not say %q:\n%s", want, out)
			}
		}
		berth("node", "apply", "--yes")
		berth("node", "diff")
		pod()
	})

	t.Run("a change restarts once and pods go on", func(t *testing.T) {
		m.Describe(strings.Replace(berthFile, "{name: berth}", "{name: berth, logLevel: debug}", 1))
		out := berth("node", "apply", "--yes")
		if n := strings.Count(out, "done  restart berth.service"); n != 1 {
			t.Errorf("berth.service was restarted %d times, want once:\n%s", n, out)
		}
		pod()
	})

	t.Run("what fails is undone", func(t *testing.T) {
		good := m.Run("sha256sum", "/etc/berth/berth.toml")
		m.Describe(berthFile + `
units:
- {name: bad.service, content: "[Service]\nType=oneshot\nExecStart=/bin/false\n", running: true, enabled: true}
`)
		out, err := m.Try("/opt/berth", "node", "apply", "--yes")
		if err == nil || !strings.Contains(out, "journalctl -u bad.service") || !strings.Contains(out, "rolled back") {
			t.Errorf("apply says %v; want an error with the log of bad.service, and that everything was undone:\n%s", err, out)
		}
		if !strings.Contains(out, systemd.NodeFile+":12:3: this field requires it") {
			t.Errorf("apply does not say where bad.service is asked for:\n%s", out)
		}
		if now := m.Run("sha256sum", "/etc/berth/berth.toml"); now != good {
			t.Error("the configuration is not what it was before the apply that failed")
		}
		pod()
	})

	t.Run("killed", func(t *testing.T) {
		m.Describe(berthFile)
		interrupted := 0
		for step := 1; ; step++ {
			m.Run("rm", "-f", "/etc/crictl.yaml", "/usr/local/bin/berth-supervisor", "/etc/berth/berth.toml")
			killed := killAt(t, m, step)
			if strings.Contains(berth("node", "status"), "was interrupted; the next apply continues") {
				interrupted++
				if !killed {
					t.Errorf("apply was not killed at its step %d, and still was interrupted", step)
				}
			}
			berth("node", "apply", "--yes", "--wait")
			berth("node", "diff")
			if !killed {
				break
			}
		}
		// Three files, one binary, their check and a restart are more steps than these.
		if interrupted < 4 {
			t.Errorf("apply was interrupted at %d steps, want at least 4", interrupted)
		}
		pod()
	})

	t.Run("rollback is guarded", func(t *testing.T) {
		m.Describe(strings.Replace(berthFile, "{name: berth}", "{name: berth, logLevel: debug}", 1))
		berth("node", "apply", "--yes")
		debug := m.Run("sha256sum", "/etc/berth/berth.toml")
		m.Write("/var/lib/kubelet/config.yaml", "cgroupDriver: cgroupfs\n")
		out, err := m.Try("/opt/berth", "node", "rollback", "1", "--yes")
		if err == nil || !strings.Contains(out, "kubelet cgroup driver") || !strings.Contains(out, "rolled back") {
			t.Errorf("rollback says %v; want one that is stopped by the kubelet's cgroup driver, and undone:\n%s", err, out)
		}
		if now := m.Run("sha256sum", "/etc/berth/berth.toml"); now != debug {
			t.Error("the configuration is not what it was before the rollback that failed")
		}
		m.Run("rm", "-r", "/var/lib/kubelet")
		out = berth("node", "rollback", "1", "--yes")
		for _, want := range []string{"restart berth.service  (for ", "running pods keep running", "done  the runtime on unix:///run/berth/berth.sock starts a sandbox"} {
			if !strings.Contains(out, want) {
				t.Errorf("rollback does not say %q:\n%s", want, out)
			}
		}
		m.Describe(berthFile)
		pod()
	})
	if _, err := m.Try("/opt/berth", "node", "reset", "--yes"); err == nil {
		t.Error("reset stops a pod without consent")
	}
	out := berth("node", "reset", "--yes", "--allow-disruption")
	m.Run("rm", "-rf", "/var/lib/berth-pods")
	if diff := cmp.Diff(before, m.Tree(systemd.Volatile()...)); diff != "" {
		t.Errorf("reset leaves the machine different (-before +after):\n%s\n%s", diff, out)
	}
	if diff := cmp.Diff(running, m.Run("sh", "-c", ofTheRuntime)); diff != "" {
		t.Errorf("reset leaves what dies at reboot (-before +after):\n%s\n%s", diff, out)
	}
}

// ofTheRuntime lists what a runtime creates outside of the disk: files in /run, mounts, links,
// rules and processes.
const ofTheRuntime = `
ls /run | grep -v -e '^systemd$' -e '^dbus$' -e '^log$'
find /run -name '*berth*'
cut -d' ' -f5 /proc/self/mountinfo | grep berth
ip -o link | cut -d: -f2
nft list tables
cat /proc/[0-9]*/comm | grep -e berth -e pause
true`

// killAt starts an apply and kills it after that many steps. It returns false if the apply ended
// before.
func killAt(t *testing.T, m *systemd.Machine, steps int) bool {
	t.Helper()
	out, err := m.Try("bash", "-c", fmt.Sprintf(`
exec 3< <(exec /opt/berth node apply --yes 2>&1); pid=$!; n=0
while read -r line <&3; do
  echo "$line"
  case $line in "done "*) n=$((n+1)); [ $n -ne %d ] || kill -KILL $pid ;; esac
done
wait $pid`, steps))
	const killed = 128 + 9
	if code := exitCode(err); err != nil && code != killed {
		t.Fatalf("apply ended with %v, neither well nor killed:\n%s", err, out)
	}
	return err != nil
}
