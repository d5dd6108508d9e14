//go:build integration && e2e

package all_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/containernetworking/cni/libcni"
	"github.com/google/go-cmp/cmp"
)

// TestMixed: a host changes from the reference's plugins to berth's, or back, while it has pods. Each side finds the
// rules of the other, adds to its chains and removes what it left. The rules are as if the reference had done all.
func TestMixed(t *testing.T) {
	bin := referencePlugins(t, "v1.9.1")
	conf := list("1.0.0", with("bridge", `"isDefaultGateway":true,"ipMasq":true`, hostLocal(rangesBoth)),
		with("portmap", `"capabilities":{"portMappings":true}`), with("firewall", `"backend":"iptables"`))
	want := mixed(t, newWorld(t, bin, false), conf, []bool{false, false})
	for _, inProcess := range [][]bool{{true, true}, {true, false}, {false, true}} {
		t.Run(fmt.Sprint(inProcess), func(t *testing.T) {
			got := mixed(t, newWorld(t, bin, false), conf, inProcess)
			for i := range want {
				if diff := cmp.Diff(want[i], got[i]); diff != "" {
					t.Errorf("step %d (-reference +mixed):\n%s", i, diff)
				}
			}
		})
	}
}

// mixed adds two pods and removes them. inProcess is for the ADD of each pod; the DEL is the other pod's way.
func mixed(t *testing.T, w *world, conf string, inProcess []bool) []string {
	t.Helper()
	list, err := libcni.NetworkConfFromBytes([]byte(strings.ReplaceAll(conf, "%DIR%", w.dir)))
	if err != nil {
		t.Fatal(err)
	}
	var states []string
	look := func() {
		_, rules, _ := strings.Cut(w.look(w.host, newNames(w)), "== firewall\n")
		if !strings.Contains(rules, "-A POSTROUTING") {
			t.Errorf("there are no rules: %s", rules)
		}
		states = append(states, rules)
	}
	var pods []*libcni.RuntimeConf
	for i, own := range inProcess {
		rt := &libcni.RuntimeConf{
			ContainerID: fmt.Sprintf("pod%060d", i), NetNS: w.netns(fmt.Sprintf("pod%d", i)), IfName: "eth0",
			CapabilityArgs: map[string]any{"portMappings": []map[string]any{
				{"hostPort": 8080 + i, "containerPort": 80, "protocol": "tcp"},
				{"hostPort": 5300 + i, "containerPort": 53, "protocol": "udp"},
				{"hostPort": 9000 + i, "containerPort": 90, "protocol": "sctp", "hostIP": "127.0.0.1"},
			}},
		}
		pods = append(pods, rt)
		w.inProcess = own
		if _, err := w.lib.AddNetworkList(t.Context(), list, rt); err != nil {
			t.Fatal(err)
		}
		look()
	}
	for i, rt := range pods {
		w.inProcess = inProcess[1-i]
		if err := w.lib.CheckNetworkList(t.Context(), list, rt); err != nil {
			t.Error(err)
		}
		if err := w.lib.DelNetworkList(t.Context(), list, rt); err != nil {
			t.Error(err)
		}
		look()
	}
	return states
}
