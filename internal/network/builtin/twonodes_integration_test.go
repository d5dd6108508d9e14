//go:build integration

package builtin_test

import (
	"net/netip"
	"os"
	"path/filepath"
	"testing"

	"github.com/berthrun/berth/internal/network"
)

// TestTwoNodes: two nodes, each with a network of its own and a file with the routes. Where they share the cluster's subnets, pods
// reach the pods of the other node with their own addresses. Otherwise a pod is seen as its node.
func TestTwoNodes(t *testing.T) {
	for name, cluster := range map[string][]netip.Prefix{
		"own addresses": {netip.MustParsePrefix("10.71.0.0/16"), netip.MustParsePrefix("fd71::/16")}, "masquerade": nil,
	} {
		t.Run(name, func(t *testing.T) { testTwoNodes(t, cluster) })
	}
}

func testTwoNodes(t *testing.T, cluster []netip.Prefix) {
	one, two := newLab(t), newLab(t)
	two.host = one.outside()
	type node struct {
		l    *lab
		wire [2]string // its addresses between the nodes
		pods [2]string // its subnets
		ips  []netip.Addr
		pod  *network.Attachment
	}
	nodes := []*node{
		{l: one, wire: [2]string{"192.0.2.1", "2001:db8::1"}, pods: [2]string{"10.71.1.0/24", "fd71:1::/64"}},
		{l: two, wire: [2]string{"192.0.2.2", "2001:db8::2"}, pods: [2]string{"10.71.2.0/24", "fd71:2::/64"}},
	}
	for _, node := range nodes {
		cfg := node.l.config()
		cfg.Cluster = cluster
		for _, subnet := range node.pods {
			cfg.Subnets = append(cfg.Subnets, netip.MustParsePrefix(subnet))
		}
		// All nodes of a cluster may have one file.
		cfg.RoutesFile = filepath.Join(node.l.dir, "routes")
		var file string
		for _, to := range nodes {
			for family, subnet := range to.pods {
				file += subnet + " via " + to.wire[family] + "\n"
			}
		}
		if err := os.WriteFile(cfg.RoutesFile, []byte(file), 0o600); err != nil {
			t.Fatal(err)
		}
		n := node.l.open(cfg)
		defer n.Close()
		if info := n.Info(); info["routes"] != "2" || info["routesFault"] != "" {
			t.Errorf("%v", info)
		}
		node.pod = node.l.pod(network.Port{Protocol: "tcp", HostPort: 8080, ContainerPort: 80})
		node.ips = node.l.attach(n, node.pod).IPs
		node.l.serve(node.pod.NetNS, 80, "pod")
	}
	for i, node := range nodes {
		other := nodes[1-i]
		for family := range node.wire {
			seen := node.wire[family]
			if cluster != nil {
				seen = node.ips[family].String()
			}
			node.l.wantAnswer(node.pod.NetNS, "tcp", other.ips[family].String(), 80, "pod", seen)
			node.l.wantAnswer(node.pod.NetNS, "udp", other.ips[family].String(), 80, "pod", seen)
			// A host port of the other node is outside of the cluster's subnets.
			node.l.wantAnswer(node.pod.NetNS, "tcp", other.wire[family], 8080, "pod", node.wire[family])
		}
	}
}
