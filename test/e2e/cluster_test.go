//go:build e2e

package e2e

import (
	"bytes"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/berthrun/berth/internal/require"
)

// workload is spread over both workers. The test reaches it by the name of its service.
const workload = `apiVersion: apps/v1
kind: Deployment
metadata: {name: web}
spec:
  replicas: 2
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec:
      terminationGracePeriodSeconds: 0
      topologySpreadConstraints:
      - {maxSkew: 1, topologyKey: kubernetes.io/hostname, whenUnsatisfiable: DoNotSchedule, nodeTaintsPolicy: Honor, labelSelector: {matchLabels: {app: web}}}
      containers:
      - name: web
        image: berth.run/hello:demo
        command: [serve, --listen, ":8080"]
        readinessProbe: {httpGet: {path: /healthz, port: 8080}, periodSeconds: 1}
---
apiVersion: v1
kind: Service
metadata: {name: web}
spec:
  type: NodePort
  selector: {app: web}
  ports: [{port: 80, targetPort: 8080, nodePort: 30080}]
`

// engine is a container engine that clusters are created with.
type engine struct {
	name string
	// start puts an engine of the test's own into PATH, and returns its network namespace.
	start func(t *testing.T) (namespace string)
}

func engines() []engine {
	return []engine{{"podman", podmanOnly}, {"docker", dockerOnly}, {"nerdctl", nerdctlOnly}}
}

// clusterHost is an engine of the test's own and the commands that run beside it, in its network
// namespace, or "" in the machine's.
type clusterHost struct {
	t         *testing.T
	engine    string
	namespace string
	// nodes is the directory of nodes, of berth only.
	nodes      string
	berth, bin string
	kubeconfig string
	// before are the links, routes and rules of the namespace without a cluster.
	before []string
}

func newClusterHost(t *testing.T, e engine) *clusterHost {
	t.Helper()
	return (&clusterHost{t: t, engine: e.name, namespace: e.start(t)}).equipped()
}

// equipped has the programs of berth and Kubernetes, and no cluster yet.
func (h *clusterHost) equipped() *clusterHost {
	h.t.Helper()
	var err error
	if h.bin, err = filepath.Abs("../../out/kube"); err != nil {
		h.t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(h.bin, "coredns")); err != nil {
		h.t.Fatalf("Kubernetes is not built: run test/kube/build.sh: %v", err)
	}
	h.berth = filepath.Join(os.Getenv("BERTH_BIN"), "berth")
	h.kubeconfig = filepath.Join(h.t.TempDir(), "kubeconfig")
	h.before = h.networkState()
	return h
}

// run runs a program in the engine's namespace, and fails the test when it fails.
func (h *clusterHost) run(args ...string) string {
	h.t.Helper()
	out, err := h.try(nil, args...)
	if err != nil {
		h.t.Fatalf("%s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return out
}

func (h *clusterHost) try(stdin []byte, args ...string) (string, error) {
	// Machines that run other tests at the same time are slow.
	return h.tryFor(require.Patience(20*time.Minute), stdin, args...)
}

// patience is how long nodes and pods may take, in the format of the commands.
func (h *clusterHost) patience() string { return require.Patience(10 * time.Minute).String() }

func (h *clusterHost) tryFor(time time.Duration, stdin []byte, args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(h.t.Context()), time)
	defer cancel()
	if h.namespace != "" {
		args = append([]string{"nsenter", "--net=/run/netns/" + h.namespace}, args...)
	}
	cmd := exec.CommandContext(ctx, args[0], args[1:]...)
	cmd.Stdin = bytes.NewReader(stdin)
	// The cache records messages that are shown once.
	cmd.Env = append(os.Environ(), "KUBECONFIG="+h.kubeconfig, "XDG_CACHE_HOME="+filepath.Join(filepath.Dir(h.kubeconfig), "cache"))
	out, err := cmd.CombinedOutput()
	return strings.TrimSpace(string(out)), err
}

func (h *clusterHost) cluster(verb string, args ...string) string {
	h.t.Helper()
	return h.run(append([]string{h.berth, "cluster", verb, "--provider", h.engine}, args...)...)
}

func (h *clusterHost) kubectl(args ...string) string {
	h.t.Helper()
	return h.run(append([]string{filepath.Join(h.bin, "kubectl")}, args...)...)
}

// TestCluster: one control plane and two workers, from building their image until nothing is left,
// with every engine.
func TestCluster(t *testing.T) {
	for _, e := range engines() {
		t.Run(e.name, func(t *testing.T) { testCluster(t, e) })
	}
}

func testCluster(t *testing.T, e engine) {
	h := newClusterHost(t, e)
	t.Log(h.cluster("build-image", "--kubernetes", h.bin, "--rootfs", "../../out/systemd/root"))
	file := filepath.Join(t.TempDir(), "cluster.yaml")
	description := "kind: Cluster\napiVersion: kind.x-k8s.io/v1alpha4\nname: e2e\nnodes: [{role: control-plane}, {role: worker}, {role: worker}]\n"
	if err := os.WriteFile(file, []byte(description), 0o600); err != nil {
		t.Fatal(err)
	}
	begun := time.Now()
	t.Log(h.cluster("create", "--config", file, "--wait", "10m"))
	t.Logf("all nodes were Ready after %s", time.Since(begun).Round(100*time.Millisecond))
	if got := h.kubectl("config", "current-context"); got != "kind-e2e" {
		t.Errorf("the context is %q", got)
	}
	if got := h.cluster("nodes", "e2e"); strings.Count(got, "running") != 3 {
		t.Errorf("nodes:\n%s", got)
	}
	archive := filepath.Join(filepath.Dir(h.berth), "hello-image.tar")
	h.run(h.engine, "load", "-i", archive)
	t.Log(h.cluster("load", "--name", "e2e", "--nodes", "e2e-worker", "berth.run/hello:demo"))
	t.Log(h.cluster("load", "--name", "e2e", "--archive", archive))
	h.deploy(2)
	all := h.nodeAddresses("e2e-control-plane", "e2e-worker", "e2e-worker2")
	t.Run("answers", func(t *testing.T) { h.answers(t, all...) })
	t.Run("tools", func(t *testing.T) { h.nodeTools(t, archive) })
	t.Run("restart", func(t *testing.T) {
		t.Log(h.cluster("restart", "e2e", "--wait", "10m"))
		h.kubectl("rollout", "status", "deployment/web", "--timeout="+h.patience())
		h.answers(t, all...)
	})
	logs := t.TempDir()
	h.cluster("logs", "--name", "e2e", logs)
	if text, err := os.ReadFile(filepath.Join(logs, "e2e-worker", "kubelet.log")); err != nil || len(text) == 0 {
		t.Errorf("the kubelet's log: %d bytes, %v", len(text), err)
	}
	for range 2 {
		t.Log(h.cluster("delete", "e2e"))
	}
	h.nothingLeft("e2e")
}

// deploy runs two pods, spread over as many workers.
func (h *clusterHost) deploy(workers int) {
	h.t.Helper()
	h.apply(workload)
	h.kubectl("rollout", "status", "deployment/web", "--timeout="+h.patience())
	h.kubectl("-n", "kube-system", "rollout", "status", "deployment/coredns", "--timeout="+h.patience())
	nodes := strings.Fields(h.kubectl("get", "pods", "-l", "app=web", "-o", "jsonpath={.items[*].spec.nodeName}"))
	slices.Sort(nodes)
	if len(slices.Compact(nodes)) != workers {
		h.t.Errorf("the pods are on %q", nodes)
	}
}

// nodeAddresses returns the names by which pods reach nodes, or addresses if the engine has no
// resolver, as nerdctl, which writes names into the nodes' /etc/hosts.
func (h *clusterHost) nodeAddresses(nodes ...string) []string {
	h.t.Helper()
	if h.engine != "nerdctl" {
		return nodes
	}
	var all []string
	for _, node := range nodes {
		all = append(all, h.kubectl("get", "node", node, "-o", `jsonpath={.status.addresses[?(@.type=="InternalIP")].address}`))
	}
	return all
}

// answers requests the service from a pod, by its name, until both pods have answered, and by a
// port of each node, by name or address.
func (h *clusterHost) answers(t *testing.T, nodes ...string) {
	t.Helper()
	h.kubectl("-n", "kube-system", "rollout", "status", "deployment/coredns", "--timeout="+h.patience())
	pods := strings.Fields(h.kubectl("get", "pods", "-l", "app=web", "-o", "jsonpath={.items[*].metadata.name}"))
	if len(pods) != 2 {
		t.Fatalf("pods: %q", pods)
	}
	heard, last := map[string]bool{}, ""
	// Controllers and proxies may lag behind that long, and they must make progress meanwhile.
	const while = time.Minute
	pause := func() { time.Sleep(require.Patience(100 * time.Millisecond)) }
	for deadline := time.Now().Add(require.Patience(while)); len(heard) < 2 && time.Now().Before(deadline); pause() {
		// A node refuses packets for a service whose new pods its kube-proxy does not know yet.
		answer, _ := h.try(nil, filepath.Join(h.bin, "kubectl"), "exec", pods[0], "--", "get", "http://web.default.svc.cluster.local/")
		last = answer
		for _, pod := range pods {
			if strings.Contains(answer, pod) {
				heard[pod] = true
			}
		}
	}
	if len(heard) != 2 {
		t.Errorf("of %q these have answered: %v; the last answer: %s", pods, heard, last)
	}
	for _, node := range nodes {
		answer := ""
		for deadline := time.Now().Add(require.Patience(while)); !strings.Contains(answer, "hello") && time.Now().Before(deadline); pause() {
			answer, _ = h.try(nil, filepath.Join(h.bin, "kubectl"), "exec", pods[1], "--", "get", "http://"+node+":30080/")
		}
		if !strings.Contains(answer, "hello") {
			t.Errorf("the port of %s: %q", node, answer)
		}
	}
	if log := h.kubectl("logs", pods[0]); !strings.Contains(log, "serving") {
		t.Errorf("the log of a pod: %q", log)
	}
}
