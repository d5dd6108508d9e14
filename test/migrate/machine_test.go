//go:build e2e

package migrate

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/berthrun/berth/internal/require"
	"github.com/berthrun/berth/test/docs/scripts"
	"github.com/berthrun/berth/test/harness"
	"github.com/berthrun/berth/test/systemd"
)

const (
	repository  = "../.."
	berthSocket = "unix:///run/berth/berth.sock"
	// commandPatience is how long one command of a page may take: apply starts engines and pods.
	commandPatience = 5 * time.Minute
	podPatience     = 2 * time.Minute
)

// node is a machine with a former runtime, a kubelet and an installed berth.
type node struct {
	*systemd.Machine
	t *testing.T
	// shell is where the reader of a page types.
	shell *scripts.Shell
}

// kubectl records its calls, because the machines have no API server.
const kubectl = "#!/bin/sh\necho \"$*\" >> /root/kubectl.calls\n"

// boot boots a machine with a kubelet that does not run yet, on which `make install` has installed
// berth.
func boot(t *testing.T, add map[string]string) node {
	t.Helper()
	kubelet, err := filepath.Abs(filepath.Join(repository, "out/kube/kubelet"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(kubelet); err != nil {
		t.Fatalf("Kubernetes is not built: run test/kube/build.sh: %v", err)
	}
	files := map[string]string{"/usr/bin/kubelet": kubelet}
	for path, from := range add {
		files[path] = from
	}
	files["/opt/hello-image.tar"] = filepath.Join(harness.BinDir(t), "hello-image.tar")
	m := systemd.Boot(t, systemd.Options{Add: files})
	bin, err := filepath.Abs(harness.BinDir(t))
	if err != nil {
		t.Fatal(err)
	}
	// The programs are built already, and may be elsewhere than in bin.
	install := exec.CommandContext(t.Context(), "make", "-o", "build", "install", "DESTDIR="+m.Root)
	install.Dir = filepath.Dir(bin)
	if out, err := install.CombinedOutput(); err != nil {
		t.Fatalf("make install: %v\n%s", err, out)
	}
	m.Write("/usr/local/bin/kubectl", kubectl)
	m.Run("chmod", "755", "/usr/local/bin/kubectl")
	m.Run("systemctl", "daemon-reload")
	m.Run("mknod", "/dev/kmsg", "c", "1", "11") // which a kubelet reads
	return node{m, t, scripts.Open(t, m.Shell(context.WithoutCancel(t.Context()), scripts.Reader), commandPatience)}
}

// withoutSysctls is a command of a page that writes the node file, with a setting of the machines:
// /proc/sys is this host's.
func withoutSysctls(line string) scripts.Row {
	return scripts.Row{
		Line: line, Run: line + ` && printf 'kernel: {defaultSysctls: false, sysctls: {net.ipv4.ip_forward: "1"}}\n' >> ` + systemd.NodeFile,
		Why: "sysctls of the machine are those of this host",
	}
}

// install installs packages of the machine's cache. Their configuration files that exist stay.
func (n node) install(packages ...string) {
	n.t.Helper()
	n.Run(append([]string{"env", "DEBIAN_FRONTEND=noninteractive", "apt-get", "install", "-y", "-q", "--no-install-recommends", "-o", "Dpkg::Options::=--force-confold"}, packages...)...)
}

// called are the calls of kubectl.
func (n node) called() string {
	n.t.Helper()
	data, err := os.ReadFile(filepath.Join(n.Root, "root/kubectl.calls"))
	if err != nil {
		n.t.Fatal(err)
	}
	return string(data)
}

// kubeletFiles are those of kubeadm, with the endpoint of the former runtime.
func kubeletFiles(endpoint string) map[string]string {
	return map[string]string{
		"/var/lib/kubelet/kubeadm-flags.env":  "KUBELET_KUBEADM_ARGS=\"--container-runtime-endpoint=" + endpoint + " --v=0\"\n",
		"/etc/systemd/system/kubelet.service": systemd.KubeadmKubeletUnit,
		"/var/lib/kubelet/config.yaml": systemd.KubeadmKubeletConfig + `failSwapOn: false
oomScoreAdj: 0
featureGates: {KubeletInUserNamespace: true}
fileCheckFrequency: 1s
resolvConf: ""
evictionHard: {memory.available: "100Mi", nodefs.available: "1%", imagefs.available: "1%"}
`,
		"/etc/kubernetes/manifests/hello.yaml": systemd.HelloStaticPod,
	}
}

// cniNetwork is what the pod network of a cluster leaves on a node.
const cniNetwork = `{"cniVersion": "0.4.0", "name": "pods", "plugins": [
{"type": "bridge", "bridge": "cni0", "isGateway": true, "ipam": {"type": "host-local", "ranges": [[{"subnet": "10.88.7.0/24"}]], "routes": [{"dst": "0.0.0.0/0"}]}}]}
`

// startKubelet makes the machine a node with the static pod hello.
func (n node) startKubelet(endpoint string) {
	n.t.Helper()
	for path, text := range kubeletFiles(endpoint) {
		n.Write(path, text)
	}
	n.Run("systemctl", "daemon-reload")
	n.Run("systemctl", "enable", "-q", "--now", "kubelet.service")
}

// awaitPod waits until the kubelet's pod runs in the runtime at a socket.
func (n node) awaitPod(name, socket string) {
	n.t.Helper()
	ready := regexp.MustCompile(`default/` + name + `\s+ready\s+1/1`)
	deadline := time.Now().Add(require.Patience(podPatience))
	for {
		out, err := n.Try("berth", "pod", "ls", "--endpoint", socket)
		if err == nil && ready.MatchString(out) {
			return
		}
		if time.Now().After(deadline) {
			log, _ := n.Try("journalctl", "-n", "60", "-o", "cat", "-u", "kubelet.service", "-u", "berth.service")
			n.t.Fatalf("the pod %s does not run on %s: %v\n%s\n%s", name, socket, err, out, log)
		}
		time.Sleep(200 * time.Millisecond)
	}
}

// podRuns waits until the kubelet's pod hello runs, and requests its page.
func (n node) podRuns(socket string) {
	n.t.Helper()
	n.awaitPod("hello-node", socket)
	out := n.Run("berth", "pod", "inspect", "hello-node", "--endpoint", socket)
	address := regexp.MustCompile(`(?m)^IP: +([^\s,]+)`).FindStringSubmatch(out)
	if address == nil {
		n.t.Fatalf("the pod has no address:\n%s", out)
	}
	ask := "for i in {1..50}; do exec 3<>/dev/tcp/" + address[1] + "/8081 && break; sleep 0.1; done; printf 'GET / HTTP/1.0\\r\\n\\r\\n' >&3; head -1 <&3"
	if got := n.Run("bash", "-c", ask); !strings.Contains(got, " 200 ") {
		n.t.Errorf("the pod answers %q, want 200", got)
	}
}

// only checks that of two units the first runs and the second does not.
func (n node) only(runs, former string) {
	n.t.Helper()
	if out, err := n.Try("systemctl", "is-active", runs); err != nil {
		n.t.Errorf("%s is %s", runs, out)
	}
	if out, err := n.Try("systemctl", "is-active", former); err == nil {
		n.t.Errorf("%s still is %s", former, out)
	}
}

// says checks that a command's output has each of some texts.
func says(t *testing.T, output string, want ...string) {
	t.Helper()
	for _, text := range want {
		if !strings.Contains(output, text) {
			t.Errorf("the output does not have %q:\n%s", text, output)
		}
	}
}
