//go:build e2e

package e2e

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	provisioning "github.com/berthrun/berth/internal/provision/reconciler"
	"github.com/berthrun/berth/test/harness/crash"
	"github.com/berthrun/berth/test/systemd"
)

// manyKinds is a node with an object of nearly every kind that a machine has, including packages.
const manyKinds = `
apiVersion: berth.run/v1alpha1
kind: Node
runtime: {name: berth}
network: {masquerade: {enabled: true, nonMasqueradeCIDRs: [10.0.0.0/8]}}
kernel: {defaultSysctls: false, sysctls: {net.ipv4.conf.default.accept_redirects: "0"}}
registries: [{host: docker.io, mirrors: [{url: "https://mirror.example"}]}]
groups: [{name: helpers, gid: 3000}]
users: [{name: ops, uid: 2000, groups: [helpers], shell: /bin/sh}]
files:
- {path: /etc/own, type: directory, mode: "0750"}
- {path: /etc/own/file, content: x, owner: ops}
- {path: /etc/own/link, type: symlink, target: file}
units:
- {name: own.service, content: "[Service]\nType=oneshot\nRemainAfterExit=yes\nExecStart=/bin/true\n[Install]\nWantedBy=multi-user.target\n"}
hooks: [{name: last, command: [/bin/true], when: after}]
images:
- {source: /opt/hello-image.tar, digest: "sha256:@HELLO@", names: ["berth.run/hello:demo"]}
`

// stateOnly is where a failed apply may leave files: its journal, and what it fetched.
var stateOnly = []string{filepath.Dir(provisioning.StateDir)}

// TestNodeKilledAnywhere kills an apply after each record of its journal (it has one before and
// after every task), and a moment later, in the middle of the next tasks. The next apply completes
// the node, and a reset leaves the disk as before.
func TestNodeKilledAnywhere(t *testing.T) {
	seed := crash.Seed(t)
	if seed == 0 {
		seed = rand.Uint64()
	}
	t.Logf("BERTH_CRASH_SEED=%d", seed)
	rng := rand.New(rand.NewPCG(seed, 0))
	m := systemd.BootNode(t, nil)
	m.Describe(manyKinds)
	before := m.Tree(systemd.Volatile()...)
	sysctl := m.Run("sysctl", "net.ipv4.conf.default.accept_redirects")
	journal := filepath.Join(m.Root, provisioning.StateDir, "journal")
	interrupted := 0
	for n := 1; ; n++ {
		written := func() bool {
			data, err := os.ReadFile(journal)
			return err == nil && bytes.Count(data, []byte("\n")) >= n
		}
		killed, out, err := m.Begin("/opt/berth", "node", "apply", "--yes").KillWhen(written, time.Duration(rng.Int64N(int64(60*time.Millisecond))))
		if err != nil && !killed {
			t.Fatalf("record %d: apply ends with %v, neither well nor killed:\n%s", n, err, out)
		}
		if strings.Contains(m.Run("/opt/berth", "node", "status"), "was interrupted; the next apply continues") {
			interrupted++
		}
		if out, err := m.Try("/opt/berth", "node", "apply", "--yes"); err != nil {
			t.Fatalf("record %d: the next apply does not carry on: %v\n%s", n, err, out)
		}
		if out, err := m.Try("/opt/berth", "node", "diff"); err != nil {
			t.Fatalf("record %d: after the next apply: %v\n%s", n, err, out)
		}
		m.Run("/opt/berth", "node", "reset", "--yes", "--allow-disruption")
		m.IsAs(before, fmt.Sprintf("a reset after a kill at record %d", n))
		if now := m.Run("sysctl", "net.ipv4.conf.default.accept_redirects"); now != sysctl {
			t.Errorf("record %d: after the reset %s", n, now)
		}
		if t.Failed() || !killed && err == nil {
			break
		}
	}
	t.Logf("%d applies were interrupted", interrupted)
	if interrupted < 30 {
		t.Errorf("%d applies were interrupted, want at least 30: there are as many tasks", interrupted)
	}
}

// TestNodeDiskFull applies on a disk with too little room, and with a little more each time, until
// it is enough. An apply that does not fit leaves the node as it was.
func TestNodeDiskFull(t *testing.T) {
	m := systemd.BootNodeOf(t, systemd.Options{Disk: 3 << 30})
	m.Describe(manyKinds)
	before := m.Tree(systemd.Volatile()...)
	rooms := []int64{0, 16 << 10, 256 << 10, 1 << 20, 4 << 20, 12 << 20, 24 << 20, 36 << 20, 48 << 20, 56 << 20, 72 << 20, 96 << 20, 128 << 20, 192 << 20}
	refused := 0
	for _, free := range rooms {
		m.Fill(free)
		out, err := m.Try("/opt/berth", "node", "apply", "--yes")
		if err == nil {
			t.Logf("%d bytes are enough", free)
			break
		}
		refused++
		if !strings.Contains(strings.ToLower(out), "no space left on device") && !strings.Contains(out, "enough free space") {
			t.Errorf("with %d bytes free apply ends with %v, and does not say that the disk is full:\n%s", free, err, out)
		}
		// dpkg keeps the names of packages that were to be installed and are not.
		m.IsAs(before, fmt.Sprintf("an apply with %d bytes free", free), append(stateOnly, systemd.Filler, "/var/lib/dpkg/status")...)
		// Without any room apt cannot run, not even to list what it would do.
		if out, err := m.Try("/opt/berth", "node", "status"); err != nil && free > 0 || strings.Contains(out, "failed") {
			t.Errorf("with %d bytes free the apply was not undone: %v\n%s", free, err, out)
		}
	}
	if refused == 0 || refused == len(rooms) {
		t.Errorf("%d of %d applies were refused, want some", refused, len(rooms))
	}
	m.Empty()
	m.Applied(manyKinds)
	m.WasReset(before, "--allow-disruption")
}

// TestNodeAssetServer fetches from a web server with faults.
func TestNodeAssetServer(t *testing.T) {
	m := systemd.BootNode(t, nil)
	content := strings.Repeat("an asset\n", 1<<16)
	var requests atomic.Int64
	var answer atomic.Pointer[http.HandlerFunc]
	say := func(h http.HandlerFunc) { requests.Store(0); answer.Store(&h) }
	good := func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, content) }
	say(good)
	const address = "127.0.0.1:8099"
	server := m.Serve(address, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		requests.Add(1)
		(*answer.Load())(w, r)
	}))
	m.Write("/opt/asset", content)
	sum := strings.Fields(m.Run("sha256sum", "/opt/asset"))[0]
	m.Run("rm", "/opt/asset")
	text := func(name, digest string) string {
		return strings.Replace(manyKinds, "files:\n", "files:\n- {path: /etc/own/"+name+", source: {source: \"http://"+address+"/asset\", digest: \"sha256:"+digest+"\"}}\n", 1)
	}
	m.Describe(text("asset", sum))
	before := m.Tree(systemd.Volatile()...)
	refused := func(what string, wants ...string) {
		t.Helper()
		out, err := m.Try("/opt/berth", "node", "apply", "--yes", "--retry-for", "2s")
		for _, want := range append(wants, "nothing was changed", "http://"+address+"/asset") {
			if err == nil || !strings.Contains(out, want) {
				t.Errorf("%s: apply ends with %v, and does not say %q:\n%s", what, err, want, out)
			}
		}
		m.IsAs(before, what, stateOnly...)
	}

	say(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusServiceUnavailable) })
	refused("a server that is overloaded", "503 Service Unavailable")
	if n := requests.Load(); n < 2 {
		t.Errorf("an overloaded server was asked %d times, want to be asked again", n)
	}
	say(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNotFound) })
	refused("a server that has no such file", "404 Not Found")
	if n := requests.Load(); n != 1 {
		t.Errorf("a server that has no such file was asked %d times, want once", n)
	}
	say(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Length", fmt.Sprint(len(content)))
		fmt.Fprint(w, content[:len(content)/2])
	})
	refused("a server that breaks off", "the connection broke")
	say(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, content[1:]) })
	refused("a server with another content", "refused: its hash is sha256:", "not sha256:"+sum)

	// Retries succeed after a bad start.
	say(func(w http.ResponseWriter, r *http.Request) {
		if requests.Load() < 3 {
			w.WriteHeader(http.StatusBadGateway)
			return
		}
		good(w, r)
	})
	m.Run("/opt/berth", "node", "apply", "--yes")
	m.Run("/opt/berth", "node", "diff")

	// Assets are fetched once only. A missing one cannot be fetched without a server.
	server.Close()
	m.Run("rm", "/etc/own/asset")
	m.Run("/opt/berth", "node", "apply", "--yes")
	m.Run("/opt/berth", "node", "diff")
	m.Describe(text("other", strings.Repeat("0", 64)))
	before = m.Tree(systemd.Volatile()...)
	refused("a server that is down", "connection refused")
	m.Run("/opt/berth", "node", "reset", "--yes", "--allow-disruption")
}

// TestNodeHealthGate applies configurations to a containerd with a pod. The binary accepts them,
// but runs without CRI. After the restart the health check fails and says why, apply restores the
// old configuration, and the pod has kept running.
func TestNodeHealthGate(t *testing.T) {
	const endpoint = "unix:///run/containerd/containerd.sock"
	m := systemd.BootNode(t, nil)
	m.Write("/etc/hello-pod.yaml", webPod)
	m.Applied(containerdOfPackages)
	m.Run("/opt/berth", "pod", "run", "-d", "-f", "/etc/hello-pod.yaml", "--endpoint", endpoint)
	m.PodAnswers(endpoint, 8081)
	pod := func() string { return m.Run("pgrep", "-o", "-f", "serve --listen") }
	first := pod()
	before := m.Tree(append(systemd.Volatile(), volatileOfContainerd...)...)

	for _, c := range []struct{ addition, says string }{
		{`disabled_plugins: ["io.containerd.grpc.v1.cri"]`, "is it disabled (disabled_plugins)?"},
		{`plugins."io.containerd.grpc.v1.cri".stream_idle_timeout: nonsense`, "serves no CRI: io.containerd.grpc.v1.cri: invalid plugin config: invalid stream idle timeout"},
	} {
		m.Describe(strings.Replace(containerdOfPackages, "additions: {", "additions: {"+c.addition+", ", 1))
		out, err := m.Try("/opt/berth", "node", "apply", "--yes")
		for _, want := range []string{"containerd.service is not healthy", c.says, "journalctl", "rolled back"} {
			if err == nil || !strings.Contains(out, want) {
				t.Errorf("apply ends with %v, and does not say %q:\n%s", err, want, out)
			}
		}
		m.Describe(containerdOfPackages)
		m.IsAs(before, "an apply whose health gate fails", append(append(stateOnly, volatileOfContainerd...), systemd.NodeFile)...)
		m.Run("/opt/berth", "node", "diff")
		m.PodAnswers(endpoint, 8081)
		if now := pod(); now != first {
			t.Errorf("the pod's process was %s and is %s", first, now)
		}
	}
}

// volatileOfContainerd is what a running containerd writes by itself.
var volatileOfContainerd = []string{"/var/lib/containerd", "/var/lib/cni"}
