//go:build e2e

package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// otherNetworkConf is a pod network as the plugins of the CNI project create it. The argument is
// the node's range.
const otherNetworkConf = `{"cniVersion": "1.0.0", "name": "other", "plugins": [
  {"type": "bridge", "bridge": "other0", "isGateway": true, "ipMasq": true, "hairpinMode": true,
   "ipam": {"type": "host-local", "ranges": [[{"subnet": "%s"}]], "routes": [{"dst": "0.0.0.0/0"}]}},
  {"type": "portmap", "capabilities": {"portMappings": true}}
]}`

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
}
