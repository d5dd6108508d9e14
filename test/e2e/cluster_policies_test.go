//go:build e2e

package e2e

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/berthrun/berth/internal/require"
)

// policed are a server and two clients on the first worker, and a server and a client on the second.
const policed = `apiVersion: v1
kind: Pod
metadata: {name: %[1]s, labels: {role: %[2]s}}
spec:
  nodeName: %[3]s
  terminationGracePeriodSeconds: 0
  containers:
  - name: main
    image: berth.run/hello:demo
    command: [serve, --listen, ":8080"]
    ports: [{name: web, containerPort: 8080}]
    readinessProbe: {httpGet: {path: /healthz, port: 8080}, periodSeconds: 1}
---
`

const policedService = `apiVersion: v1
kind: Service
metadata: {name: web}
spec:
  selector: {role: server}
  ports: [{port: 80, targetPort: 8080}]
`

// onlyClients lets pods of the role client reach servers.
const onlyClients = `apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: only-clients}
spec:
  podSelector: {matchLabels: {role: server}}
  ingress: [{from: [{podSelector: {matchLabels: {role: client}}}], ports: [{port: web}]}]
`

const noEgress = `apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: no-egress}
spec: {podSelector: {matchLabels: {role: client}}, policyTypes: [Egress]}
`

// TestClusterNetworkPolicies: policies hold between the pods of one node and of two, through a service,
// for the kubelet's probes, after a restart of the nodes, and on a node that is added.
func TestClusterNetworkPolicies(t *testing.T) {
	h := newClusterHost(t, engine{"podman", podmanOnly})
	t.Log(h.cluster("build-image", "--kubernetes", h.bin, "--rootfs", "../../out/systemd/root"))
	t.Log(h.cluster("create", "--config", h.write("name: pol\nnodes: [{}, {role: worker}, {role: worker}]\n"), "--wait", h.patience()))
	h.run("podman", "load", "-i", filepath.Join(filepath.Dir(h.berth), "hello-image.tar"))
	h.cluster("load", "--name", "pol", "berth.run/hello:demo")
	h.kubectl("-n", "kube-system", "rollout", "status", "daemonset/berth-net-policy", "--timeout="+h.patience())

	text := policedService + "---\n"
	for _, pod := range [][3]string{
		{"server1", "server", "pol-worker"},
		{"client1", "client", "pol-worker"},
		{"other1", "other", "pol-worker"},
		{"server2", "server", "pol-worker2"},
		{"client2", "client", "pol-worker2"},
		{"other2", "other", "pol-worker2"},
	} {
		text += fmt.Sprintf(policed, pod[0], pod[1], pod[2])
	}
	h.apply(text)
	h.kubectl("wait", "--for=condition=Ready", "pods", "--all", "--timeout="+h.patience())

	everyone, clients := []string{"client1", "client2", "other1", "other2"}, []string{"client1", "client2"}
	h.reach(t, everyone, everyone)
	h.apply(onlyClients)
	h.reach(t, everyone, clients)
	h.kubectl("wait", "--for=condition=Ready", "pods", "--all", "--timeout="+h.patience()) // the node's probes pass

	t.Log(h.cluster("restart", "pol", "--wait", h.patience()))
	h.kubectl("-n", "kube-system", "rollout", "status", "daemonset/berth-net-policy", "--timeout="+h.patience())
	h.kubectl("wait", "--for=condition=Ready", "pods", "--all", "--timeout="+h.patience())
	h.reach(t, everyone, clients)

	h.apply(noEgress)
	h.reach(t, everyone, nil)
	h.kubectl("delete", "networkpolicy", "--all")
	h.reach(t, everyone, everyone)

	t.Log(h.cluster("node", "add", "--name", "pol"))
	h.until(t, "4 4", "-n", "kube-system", "get", "daemonset/berth-net-policy", "-o", "jsonpath={.status.desiredNumberScheduled} {.status.numberReady}")
	t.Log(h.cluster("delete", "pol"))
	h.nothingLeft("pol")
}

// reach waits until of some pods only those that are allowed reach the servers of both nodes, directly
// and through their service.
func (h *clusterHost) reach(t *testing.T, pods, allowed []string) {
	t.Helper()
	targets := []string{h.kubectl("get", "service", "web", "-o", "jsonpath={.spec.clusterIP}")}
	for _, server := range []string{"server1", "server2"} {
		targets = append(targets, h.kubectl("get", "pod", server, "-o", "jsonpath={.status.podIP}")+":8080")
	}
	var asked sync.WaitGroup // a request without an answer takes ten seconds
	for _, pod := range pods {
		want := slices.Contains(allowed, pod)
		for _, target := range targets {
			asked.Go(func() {
				got, last := !want, ""
				for deadline := time.Now().Add(require.Patience(2 * time.Minute)); got != want && time.Now().Before(deadline); {
					answer, err := h.try(nil, filepath.Join(h.bin, "kubectl"), "exec", pod, "--", "get", "http://"+target+"/")
					got, last = err == nil && strings.Contains(answer, "hello"), answer
				}
				if got != want {
					t.Errorf("%s reaches %s: %v, want %v; the last answer: %s", pod, target, got, want, last)
				}
			})
		}
	}
	asked.Wait()
}
