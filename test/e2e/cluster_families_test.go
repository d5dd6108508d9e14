//go:build e2e

package e2e

import (
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/berthrun/berth/test/harness"
)

// TestClusterFamilies: clusters of IPv6 alone and of both families. Nodes, pods and services are
// reachable by each of their addresses.
func TestClusterFamilies(t *testing.T) {
	for _, e := range engines() {
		t.Run(e.name, func(t *testing.T) { testFamilies(t, newClusterHost(t, e)) })
	}
	t.Run("berth", func(t *testing.T) {
		testFamilies(t, hostOf(t, harness.Start(t, harness.Options{NoImages: true, BinDir: harness.Bootable(t)})))
	})
}

func testFamilies(t *testing.T, h *clusterHost) {
	t.Log(h.cluster("build-image", "--kubernetes", h.bin, "--rootfs", "../../out/systemd/root"))
	const one, two = "{role: control-plane}, ", "{role: control-plane}, {role: control-plane}, "
	t.Run("ipv6", func(t *testing.T) { h.families(t, two, "ipFamily: ipv6, kubeProxyMode: iptables", "6") })
	t.Run("dual", func(t *testing.T) { h.families(t, one, "ipFamily: dual, kubeProxyMode: nftables", "46") })
}

// families creates a cluster of control planes, a worker and a network, and requires addresses of
// these IP families.
func (h *clusterHost) families(t *testing.T, controlPlanes, networking, want string) {
	file := filepath.Join(t.TempDir(), "cluster.yaml")
	description := fmt.Sprintf("kind: Cluster\napiVersion: kind.x-k8s.io/v1alpha4\nname: e2e\nnetworking: {%s}\nnodes: [%s{role: worker}]\n", networking, controlPlanes)
	if err := os.WriteFile(file, []byte(description), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Log(h.cluster("create", "--config", file, "--wait", "10m"))
	h.cluster("load", "--name", "e2e", "--archive", filepath.Join(filepath.Dir(h.berth), "hello-image.tar"))
	h.deploy(1)
	h.kubectl("patch", "service", "web", "-p", `{"spec":{"ipFamilyPolicy":"PreferDualStack"}}`)
	check := func(t *testing.T) {
		addresses := func(jsonpath string, args ...string) []string {
			t.Helper()
			said := h.kubectl(append(append([]string{"get"}, args...), "-o", "jsonpath="+jsonpath)...)
			return ofFamilies(t, want, strings.Fields(said))
		}
		var nodes []string
		for _, node := range strings.Fields(h.kubectl("get", "nodes", "-o", "jsonpath={.items[*].metadata.name}")) {
			nodes = append(nodes, addresses(`{.status.addresses[?(@.type=="InternalIP")].address}`, "node", node)...)
		}
		h.answers(t, nodes...)
		pods := strings.Fields(h.kubectl("get", "pods", "-l", "app=web", "-o", "jsonpath={.items[*].metadata.name}"))
		for _, at := range addresses("{.status.podIPs[*].ip}", "pod", pods[0]) {
			h.until(t, "hello", "exec", pods[1], "--", "get", "http://"+at+":8080/")
		}
		for _, at := range addresses("{.spec.clusterIPs[*]}", "service", "web") {
			h.until(t, "hello", "exec", pods[0], "--", "get", "http://"+at+"/")
		}
	}
	t.Run("answers", check)
	t.Run("restart", func(t *testing.T) {
		t.Log(h.cluster("restart", "e2e", "--wait", "10m"))
		h.kubectl("rollout", "status", "deployment/web", "--timeout="+h.patience())
		check(t)
	})
	t.Log(h.cluster("delete", "e2e"))
	h.nothingLeft("e2e")
}

// ofFamilies checks that there is one address of each family, in this order, and returns them in
// the form for URLs.
func ofFamilies(t *testing.T, want string, texts []string) []string {
	t.Helper()
	got, hosts := "", []string(nil)
	for _, text := range texts {
		at, err := netip.ParseAddr(text)
		if err != nil {
			t.Fatal(err)
		}
		if at.Is4() {
			got, hosts = got+"4", append(hosts, text)
		} else {
			got, hosts = got+"6", append(hosts, "["+text+"]")
		}
	}
	if got != want {
		t.Fatalf("addresses: %q, want families %s", texts, want)
	}
	return hosts
}
