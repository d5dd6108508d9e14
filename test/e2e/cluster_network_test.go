//go:build e2e

package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/berthrun/berth/internal/require"
)

// otherNetworkConf is a pod network as the plugins of the CNI project create it, with a chain of
// others. The nodes get programs of the first two plugins only. The argument is the node's range.
const otherNetworkConf = `{"cniVersion": "1.0.0", "name": "other", "plugins": [
  {"type": "bridge", "bridge": "other0", "isGateway": true, "ipMasq": true, "hairpinMode": true,
   "ipam": {"type": "host-local", "ranges": [[{"subnet": "%s"}]], "routes": [{"dst": "0.0.0.0/0"}]}},
  {"type": "portmap", "capabilities": {"portMappings": true}},
  {"type": "tuning", "sysctl": {"net.core.somaxconn": "517"}},
  {"type": "bandwidth", "capabilities": {"bandwidth": true}}
]}`

// chainedPod is a pod that the plugins tuning and bandwidth are for.
const chainedPod = `apiVersion: v1
kind: Pod
metadata:
  name: chained
  annotations: {kubernetes.io/ingress-bandwidth: 20M, kubernetes.io/egress-bandwidth: 10M}
spec:
  nodeName: parts-worker
  terminationGracePeriodSeconds: 0
  containers:
  - name: main
    image: berth.run/hello:demo
    command: [serve, --listen, ":8080"]
    ports: [{containerPort: 8080, hostPort: 30090}]
    readinessProbe: {httpGet: {path: /healthz, port: 8080}, periodSeconds: 1}
`

// otherNetwork: nodes become ready, and pods answer across nodes, once a pod network is installed
// that is not part of berth.
func (h *clusterHost) otherNetwork(t *testing.T) {
	archives, err := filepath.Glob("../../out/systemd-assets/cni-plugins-*.tgz")
	if err != nil || len(archives) != 1 {
		t.Fatalf("the plugins are not built: run test/systemd/containerd.sh out/systemd-assets: %q, %v", archives, err)
	}
	plugins, err := os.ReadFile(archives[0])
	if err != nil {
		t.Fatal(err)
	}
	h.until(t, "cni", "get", "node", "parts-worker", "-o", `jsonpath={.status.conditions[?(@.type=="Ready")].message}`)
	nodes := []string{"parts-control-plane", "parts-worker"}
	ranges, addresses := map[string]string{}, map[string]string{}
	for _, node := range nodes {
		ranges[node] = h.kubectl("get", "node", node, "-o", "jsonpath={.spec.podCIDR}")
		addresses[node] = h.kubectl("get", "node", node, "-o", `jsonpath={.status.addresses[?(@.type=="InternalIP")].address}`)
	}
	inside := func(node string, input []byte, command ...string) {
		t.Helper()
		if out, err := h.try(input, append([]string{"podman", "exec", "-i", node}, command...)...); err != nil {
			t.Fatalf("%s: %q: %v\n%s", node, command, err, out)
		}
	}
	for i, node := range nodes {
		other := nodes[1-i]
		inside(node, nil, "ip", "route", "add", ranges[other], "via", addresses[other])
		inside(node, plugins, "sh", "-c", "mkdir -p /opt/cni/bin && tar -C /opt/cni/bin -xz")
		inside(node, []byte(fmt.Sprintf(otherNetworkConf, ranges[node])), "sh", "-c", "mkdir -p /etc/cni/net.d && cat > /etc/cni/net.d/10-other.conflist")
	}
	h.kubectl("wait", "--for=condition=Ready", "nodes", "--all", "--timeout="+h.patience())
	h.cluster("load", "--name", "parts", "berth.run/hello:demo")
	h.deploy(1)
	for _, at := range strings.Fields(h.kubectl("get", "pods", "-l", "app=web", "-o", "jsonpath={.items[*].status.podIP}")) {
		inside("parts-worker", nil, "sh", "-c", "ip route get "+at+" | grep -q other0")
	}
	h.answers(t, addresses["parts-control-plane"], addresses["parts-worker"])
	h.chain(t, addresses["parts-worker"])
}

// chained prints what the plugins of the chain hold in a node: addresses, limits, tuned namespaces, and
// rules of the pod's host port.
const chained = `echo addresses $(ls /var/lib/cni/networks/other | grep '^[0-9]')
echo limits $(tc qdisc show | grep -o 'tbf.* rate [^ ]*' | sed 's/.* //')
echo tuned $(for n in /run/netns/*; do nsenter --net=$n cat /proc/sys/net/core/somaxconn; done 2>/dev/null | grep -c '^517$')
echo ports $({ iptables-save -t nat; nft list ruleset; } 2>/dev/null | grep -c 30090)`

// chain: each plugin of the chain does its part for a pod, and undoes it when the pod is deleted.
func (h *clusterHost) chain(t *testing.T, address string) {
	t.Helper()
	worker := func(script string) string {
		t.Helper()
		return h.run("podman", "exec", "parts-worker", "sh", "-c", script)
	}
	before := worker(chained)
	h.apply(chainedPod)
	h.kubectl("wait", "--for=condition=Ready", "pod/chained", "--timeout="+h.patience())
	during := worker(chained)
	t.Logf("before the pod:\n%s\nwith it:\n%s\n%s", before, during, worker("berth net ls"))
	for i, line := range strings.Split(during, "\n") {
		if other := strings.Split(before, "\n")[i]; other == line {
			t.Errorf("with the pod, as without it: %s", line)
		}
	}
	if !strings.Contains(during, "20Mbit") || !strings.Contains(during, "10Mbit") {
		t.Errorf("want limits of 20 and 10 Mbit:\n%s", during)
	}
	if got := h.kubectl("exec", "deployment/web", "--", "get", "http://"+address+":30090/"); !strings.Contains(got, "hello") {
		t.Errorf("at the host port answers %q", got)
	}
	h.kubectl("delete", "pod/chained")
	after := ""
	for deadline := time.Now().Add(require.Patience(time.Minute)); after != before && time.Now().Before(deadline); {
		after = worker(chained)
	}
	if after != before {
		t.Errorf("after the pod:\n%s\nbefore it:\n%s", after, before)
	}
}
