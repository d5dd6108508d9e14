//go:build e2e

package e2e

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/berthrun/berth/test/systemd"
)

// printingPod prints its name, and ends.
const printingPod = `apiVersion: v1
kind: Pod
metadata: {name: prints, namespace: default}
spec:
  restartPolicy: Never
  containers:
  - {name: it, image: "berth.run/hello:demo", imagePullPolicy: IfNotPresent, command: [hostname]}
`

// containerOf is docker's id of the container web of the kubelet's pod.
func containerOf(m *systemd.Machine) string {
	return strings.TrimSpace(m.Run("docker", "ps", "-q", "--no-trunc", "--filter", "name=k8s_web_hello-node_default"))
}

// setTunables sets what a kubelet sets in the kernel at its start, and cannot in a machine: /proc/sys
// is read-only there.
func setTunables(t *testing.T) {
	t.Helper()
	for name, value := range map[string]string{"vm/overcommit_memory": "1", "kernel/panic": "10", "kernel/panic_on_oops": "1"} {
		file := filepath.Join("/proc/sys", name)
		before, err := os.ReadFile(file)
		if err == nil {
			err = os.WriteFile(file, []byte(value), 0)
		}
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := os.WriteFile(file, before, 0); err != nil {
				t.Error(err)
			}
		})
	}
}

// eventually waits until a condition of a machine holds.
func eventually(t *testing.T, what string, holds func() bool) {
	t.Helper()
	for deadline := time.Now().Add(podPatience); !holds(); time.Sleep(200 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("waited in vain for %s", what)
		}
	}
}

// TestNodeOfDockerUnderAKubelet: a node file with docker and a kubelet runs the kubelet's pod in
// docker. The pod survives restarts of docker, of berth and of the kubelet; the kubelet replaces a
// container that ends. Then berth's native engine replaces docker under the kubelet, and docker
// that.
func TestNodeOfDockerUnderAKubelet(t *testing.T) {
	kubelet := os.Getenv("KUBELET")
	if kubelet == "" {
		t.Fatal("KUBELET is not set: run `make e2e`, or test/kube/build.sh and set it to the kubelet")
	}
	const socket = berthSocket
	m := systemd.BootNode(t, map[string]string{"/usr/bin/kubelet": kubelet})
	m.Run("mknod", "/dev/kmsg", "c", "1", "11") // which a kubelet reads
	setTunables(t)
	m.Write("/etc/kubernetes/manifests/hello.yaml", systemd.HelloStaticPod)
	part := strings.Replace(ownKubelet, "@OPTIONS@", strings.ReplaceAll(strings.TrimSpace(kubeletOptions), "\n", "\n    "), 1)
	docker := strings.Replace(withKubelet, "@RUNTIME@", "{name: docker, "+m.DockerRuntime()+"}", 1) + part
	berth := strings.Replace(withKubelet, "@RUNTIME@", "{name: berth}", 1) + part

	m.Applied(docker)
	runs(t, m, socket)
	m.IsWell()
	if order := m.Run("systemctl", "show", "--value", "-p", "After", "kubelet.service"); !strings.Contains(order, "berth.service") {
		t.Errorf("the kubelet does not start after berth, but after %s", order)
	}
	container := containerOf(m)
	printed := regexp.MustCompile(`(?m)^\S+ stdout F prints-node$`)
	m.Write("/etc/kubernetes/manifests/prints.yaml", printingPod)
	eventually(t, "the log of a pod", func() bool {
		log, err := m.Try("sh", "-c", "cat /var/log/pods/default_prints-node_*/it/0.log")
		return err == nil && printed.MatchString(log)
	})
	m.Run("rm", "/etc/kubernetes/manifests/prints.yaml")
	if out := strings.TrimSpace(m.Run("/opt/berth", "pod", "exec", "hello-node", "--", "hostname")); out == "" {
		t.Error("exec prints nothing")
	}
	for _, unit := range []string{"docker.service", "berth.service", "kubelet.service"} {
		m.Run("systemctl", "restart", unit)
		runs(t, m, socket)
		if now := containerOf(m); now != container {
			t.Errorf("after the restart of %s docker runs container %q, not %q", unit, now, container)
		}
	}
	m.Run("docker", "kill", container)
	eventually(t, "another container", func() bool { now := containerOf(m); return now != "" && now != container })
	runs(t, m, socket)

	for _, step := range []struct{ name, from, text string }{{"berth", "docker", berth}, {"docker", "berth", docker}} {
		m.Describe(step.text)
		plan := m.Run("/opt/berth", "node", "plan")
		if want := "pod default/hello-node is stopped in " + step.from + "; the kubelet starts it in " + step.name; !strings.Contains(plan, want) {
			t.Errorf("the plan does not say %q:\n%s", want, plan)
		}
		m.Run("/opt/berth", "node", "apply", "--yes", "--allow-disruption")
		runs(t, m, socket)
		if out := m.Run("/opt/berth", "node", "apply", "--yes"); !strings.Contains(out, "Nothing to change.") {
			t.Errorf("a second apply changes something:\n%s", out)
		}
		if out, err := m.Try("systemctl", "is-active", "docker.service"); (err == nil) != (step.name == "docker") {
			t.Errorf("with %s, docker is %s", step.name, out)
		}
	}
}
