//go:build e2e

package e2e

import (
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/berthrun/berth/test/systemd"
)

// kubeletOptions are the flags that any kubelet needs on this host.
const kubeletOptions = `failSwapOn: false
oomScoreAdj: 0
featureGates: {KubeletInUserNamespace: true}
fileCheckFrequency: 1s
resolvConf: ""
evictionHard: {memory.available: "100Mi", nodefs.available: "1%", imagefs.available: "1%"}
`

// withKubelet is a node of a runtime.
const withKubelet = `
apiVersion: berth.run/v1alpha1
kind: Node
runtime: @RUNTIME@
network: {mode: kubenet, podCIDRs: [10.88.7.0/24]}
kernel: {defaultSysctls: false, sysctls: {net.ipv4.ip_forward: "1"}}
images:
- {source: /opt/hello-image.tar, digest: "sha256:@HELLO@", names: ["berth.run/hello:demo"]}
`

// Kubelets by origin: berth's own, and one that was set up as kubeadm does.
const (
	ownKubelet = "kubelet:\n  enabled: true\n  config:\n    @OPTIONS@\n"

	foreignFlags = "KUBELET_KUBEADM_ARGS=\"--container-runtime-endpoint=unix:///run/containerd/containerd.sock --v=0\"\n"
)

// TestNodeSwitchUnderAKubelet: berth replaces containerd while a kubelet runs, and containerd
// replaces berth. The kubelet's static pod runs before and after, in the current runtime.
func TestNodeSwitchUnderAKubelet(t *testing.T) {
	kubelet := os.Getenv("KUBELET")
	if kubelet == "" {
		t.Fatal("KUBELET is not set: run `make e2e`, or test/kube/build.sh and set it to the kubelet")
	}
	const containerdSocket, berthSocket = "unix:///run/containerd/containerd.sock", "unix:///run/berth/berth.sock"
	containerd := strings.Replace(withKubelet, "@RUNTIME@", `{name: containerd, sandboxImage: "berth.run/hello:demo", config: `+
		`{additions: {plugins."io.containerd.grpc.v1.cri".restrict_oom_score_adj: true}}}`, 1)
	berth := strings.Replace(withKubelet, "@RUNTIME@", "{name: berth}", 1)
	for _, c := range []struct{ name, part string }{
		{"kubelet of the node file", strings.Replace(ownKubelet, "@OPTIONS@", strings.ReplaceAll(strings.TrimSpace(kubeletOptions), "\n", "\n    "), 1)},
		{"kubelet of somebody", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			m := systemd.BootNode(t, map[string]string{"/usr/bin/kubelet": kubelet})
			m.Run("mknod", "/dev/kmsg", "c", "1", "11") // which a kubelet reads
			m.Write("/etc/kubernetes/manifests/hello.yaml", systemd.HelloStaticPod)
			if c.part == "" {
				m.Describe(containerd)
				m.Run("/opt/berth", "node", "apply", "--yes")
				m.Write("/var/lib/kubelet/config.yaml", systemd.KubeadmKubeletConfig+kubeletOptions)
				m.Write("/var/lib/kubelet/kubeadm-flags.env", foreignFlags)
				m.Write("/etc/systemd/system/kubelet.service", systemd.KubeadmKubeletUnit)
				m.Run("systemctl", "daemon-reload")
				m.Run("systemctl", "enable", "-q", "--now", "kubelet.service")
			}
			m.Applied(containerd + c.part)
			runs(t, m, containerdSocket)

			for _, step := range []struct{ text, socket, from, other string }{
				{berth, berthSocket, "containerd", containerdSocket},
				{containerd, containerdSocket, "berth", berthSocket},
			} {
				m.Describe(step.text + c.part)
				plan := m.Run("/opt/berth", "node", "plan")
				if want := "pod default/hello-node is stopped in " + step.from + "; the kubelet starts it in "; !strings.Contains(plan, want) {
					t.Errorf("the plan does not say %q:\n%s", want, plan)
				}
				if out, err := m.Try("/opt/berth", "node", "apply", "--yes"); err == nil || !strings.Contains(out, "nothing was changed") {
					t.Errorf("apply stops the kubelet's pods without consent: %v\n%s", err, out)
				}
				m.Run("/opt/berth", "node", "apply", "--yes", "--allow-disruption")
				runs(t, m, step.socket)
				if out, err := m.Try("systemctl", "is-active", step.from+".service"); err == nil {
					t.Errorf("%s still is %s", step.from, out)
				}
				if out := m.Run("/opt/berth", "node", "apply", "--yes"); !strings.Contains(out, "Nothing to change.") {
					t.Errorf("a second apply changes something:\n%s", out)
				}
			}
		})
	}
}

// podPatience is how long a kubelet may take until a static pod runs.
const podPatience = 2 * time.Minute

// runs checks that the kubelet's pod runs in the runtime at a socket, and answers.
func runs(t *testing.T, m *systemd.Machine, socket string) {
	t.Helper()
	ready := regexp.MustCompile(`default/hello-node\s+ready\s+1/1`)
	deadline := time.Now().Add(podPatience)
	for {
		out, err := m.Try("/opt/berth", "pod", "ls", "--endpoint", socket)
		if err == nil && ready.MatchString(out) {
			break
		}
		if time.Now().After(deadline) {
			log, _ := m.Try("journalctl", "-n", "60", "-o", "cat", "-u", "kubelet.service")
			t.Fatalf("the kubelet's pod does not run on %s: %v\n%s\n%s", socket, err, out, log)
		}
		time.Sleep(200 * time.Millisecond)
	}
	m.NamedPodAnswers("hello-node", socket, 8081)
}
