//go:build e2e

package e2e

import (
	"context"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/berthrun/berth/internal/finding"
	"github.com/berthrun/berth/internal/require"
)

// database is a StatefulSet whose pod runs as a user of its own, with a claim of the default class.
// It names no node.
const database = `apiVersion: apps/v1
kind: StatefulSet
metadata: {name: db}
spec:
  serviceName: db
  replicas: 1
  selector: {matchLabels: {app: db}}
  template:
    metadata: {labels: {app: db}}
    spec:
      terminationGracePeriodSeconds: 0
      securityContext: {runAsUser: 1000, runAsNonRoot: true}
      containers:
      - name: db
        image: berth.run/hello:demo
        command: [serve, --listen, ":8080"]
        volumeMounts: [{name: data, mountPath: /data}]
  volumeClaimTemplates:
  - metadata: {name: data}
    spec: {accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Mi}}}
`

// refused is a claim that a directory cannot satisfy.
const refused = `apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: many, annotations: {volume.kubernetes.io/selected-node: parts-worker}}
spec: {accessModes: [ReadWriteMany], resources: {requests: {storage: 1Mi}}}
`

// TestClusterStorage, with TestClusterRegistry and the other parts beside Kubernetes: a cluster of
// one control plane and one worker, and its registry.
func TestClusterStorage(t *testing.T) { clusterWith(t, "", "10m", (*clusterHost).storage) }

func TestClusterRegistry(t *testing.T) {
	clusterWith(t, "registry: {enabled: true, port: 5001}\n", "10m", (*clusterHost).registry)
}

func TestClusterDoctor(t *testing.T) { clusterWith(t, "", "10m", (*clusterHost).doctor) }

// TestClusterOtherNetwork: no node is ready before a pod network is installed.
func TestClusterOtherNetwork(t *testing.T) {
	clusterWith(t, "networking: {disableDefaultCNI: true}\n", "0s", (*clusterHost).otherNetwork)
}

// clusterWith creates a cluster for a test, with additional lines in its description, and removes
// it.
func clusterWith(t *testing.T, more, wait string, test func(*clusterHost, *testing.T)) {
	h := newClusterHost(t, engine{"podman", podmanOnly})
	t.Log(h.cluster("build-image", "--kubernetes", h.bin, "--rootfs", "../../out/systemd/root"))
	file := filepath.Join(t.TempDir(), "cluster.yaml")
	description := "kind: Cluster\napiVersion: berth.run/v1alpha1\nname: parts\nnodes: [{role: control-plane}, {role: worker}]\n" + more
	if err := os.WriteFile(file, []byte(description), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Log(h.cluster("create", "--config", file, "--wait", wait))
	h.run("podman", "load", "-i", filepath.Join(filepath.Dir(h.berth), "hello-image.tar"))
	test(h, t)
	t.Log(h.cluster("delete", "parts"))
	h.nothingLeft("parts")
}

// apply applies documents with kubectl. An API server that has just started on a slow machine may
// not answer within kubectl's own minute.
func (h *clusterHost) apply(documents string) {
	h.t.Helper()
	for deadline := time.Now().Add(require.Patience(time.Minute)); ; {
		out, err := h.try([]byte(documents), filepath.Join(h.bin, "kubectl"), "apply", "-f", "-")
		if err == nil {
			return
		}
		if !strings.Contains(out, "(Timeout)") || time.Now().After(deadline) {
			h.t.Fatalf("%v\n%s", err, out)
		}
	}
}

// storage: a claim is bound on its pod's node and keeps files over a restart of the nodes. Its
// directory is removed with it.
func (h *clusterHost) storage(t *testing.T) {
	h.cluster("load", "--name", "parts", "berth.run/hello:demo")
	if got := h.kubectl("get", "storageclass", "-o", `jsonpath={.items[*].metadata.name} {.items[*].metadata.annotations.storageclass\.kubernetes\.io/is-default-class}`); got != "standard true" {
		t.Errorf("classes: %q", got)
	}
	h.apply(database)
	h.kubectl("rollout", "status", "statefulset/db", "--timeout=10m")
	h.kubectl("exec", "db-0", "--", "sh", "-c", "echo kept > /data/file")
	volume := h.kubectl("get", "pvc", "data-db-0", "-o", "jsonpath={.spec.volumeName}")
	node := h.kubectl("get", "pod", "db-0", "-o", "jsonpath={.spec.nodeName}")
	if where := h.kubectl("get", "pv", volume, "-o", "jsonpath={.spec.nodeAffinity.required.nodeSelectorTerms[0].matchExpressions[0].values[0]} {.spec.local.path}"); where != node+" /var/lib/berth-volumes/"+volume {
		t.Errorf("the pod is on %s, its volume on %s", node, where)
	}
	t.Log(h.cluster("restart", "parts", "--wait", "10m"))
	h.until(t, "kept", "exec", "db-0", "--", "cat", "/data/file")
	h.apply(refused)
	h.until(t, "cannot give ReadWriteMany", "get", "events", "--field-selector=involvedObject.name=many,reason=ProvisioningFailed")
	h.kubectl("delete", "statefulset/db", "pvc/data-db-0", "pvc/many")
	h.kubectl("wait", "--for=delete", "pv/"+volume, "--timeout=5m")
	if left := h.run("podman", "exec", node, "ls", "/var/lib/berth-volumes"); left != "" {
		t.Errorf("left in %s: %s", node, left)
	}
}

// until runs kubectl until its output has the wanted text.
func (h *clusterHost) until(t *testing.T, wanted string, args ...string) {
	t.Helper()
	deadline := time.Now().Add(10 * time.Minute)
	for {
		said, err := h.try(nil, append([]string{filepath.Join(h.bin, "kubectl")}, args...)...)
		if err == nil && strings.Contains(said, wanted) {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("kubectl %s: %q, %v; want %q", strings.Join(args, " "), said, err, wanted)
		}
	}
}

// registry: an image that was pushed on the host runs in the cluster under the same name, on nodes
// that it was not loaded into. It is still there after a restart of the registry.
func (h *clusterHost) registry(t *testing.T) {
	if got := h.cluster("registry", "status"); !strings.Contains(got, "localhost:5001") || !strings.Contains(got, "running") {
		t.Errorf("status:\n%s", got)
	}
	h.run("podman", "tag", "berth.run/hello:demo", "localhost:5001/team/hello:1")
	h.run("podman", "push", "--tls-verify=false", "localhost:5001/team/hello:1")
	h.cluster("registry", "stop")
	h.cluster("registry", "start")
	h.run("podman", "rmi", "localhost:5001/team/hello:1")
	h.run("podman", "pull", "--tls-verify=false", "localhost:5001/team/hello:1")
	h.apply(strings.NewReplacer("berth.run/hello:demo", "localhost:5001/team/hello:1").Replace(workload1))
	h.kubectl("rollout", "status", "deployment/web", "--timeout=10m")
	if got := h.kubectl("-n", "kube-public", "get", "configmap", "local-registry-hosting", "-o", `jsonpath={.data.localRegistryHosting\.v1}`); !strings.Contains(got, `host: "localhost:5001"`) {
		t.Errorf("the cluster reports %q", got)
	}
	h.cluster("registry", "delete")
	if _, err := h.try(nil, h.berth, "cluster", "registry", "status", "--provider", "podman"); err == nil {
		t.Error("it is there after its deletion")
	}
}

// workload1 is a pod that is not on the node of its pusher.
const workload1 = `apiVersion: apps/v1
kind: Deployment
metadata: {name: web}
spec:
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec:
      terminationGracePeriodSeconds: 0
      containers:
      - {name: web, image: "berth.run/hello:demo", command: [serve, --listen, ":8080"]}
`

// doctor: a healthy cluster has no problem. Each problem of an unhealthy one is reported.
func (h *clusterHost) doctor(t *testing.T) {
	h.kubectl("-n", "kube-system", "rollout", "status", "deployment/coredns", "--timeout=10m")
	if text, sick := h.examine(t); sick {
		t.Errorf("a cluster that is well:\n%s", text)
	}
	h.run("podman", "exec", "parts-worker", "systemctl", "stop", "kubelet.service")
	if text, sick := h.examine(t); !sick || !strings.Contains(text, "parts-worker: kubelet.service is inactive") {
		t.Errorf("a kubelet that is stopped:\n%s", text)
	}
	h.run("podman", "exec", "parts-control-plane", "sh", "-c", "mv /etc/kubernetes/manifests/kube-apiserver.yaml /root/")
	h.run("podman", "stop", "-t", "30", "parts-worker")
	deadline := time.Now().Add(5 * time.Minute)
	for {
		text, _ := h.examine(t)
		if strings.Contains(text, "the API server does not answer") && strings.Contains(text, "parts-worker is exited") {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("an API server that is gone:\n%s", text)
		}
	}
	logs := t.TempDir()
	h.cluster("logs", "--name", "parts", logs)
	for _, name := range []string{"parts-control-plane/journal.log", "parts-control-plane/pods", "parts-control-plane/images.log", "parts-worker/serial.log", "parts-control-plane/cluster-events.txt"} {
		if info, err := os.Stat(filepath.Join(logs, name)); err != nil || info.Size() == 0 {
			t.Errorf("%s: %v, %v", name, info, err)
		}
	}
	if found, err := filepath.Glob(filepath.Join(logs, "parts-control-plane/pods/kube-system_etcd-*/etcd/0.log")); err != nil || len(found) != 1 {
		t.Errorf("the log of etcd: %q, %v", found, err)
	}
}

// examine returns the doctor's output, and whether its exit status reports a problem.
func (h *clusterHost) examine(t *testing.T) (text string, sick bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, "nsenter", "--net=/run/netns/"+h.namespace, h.berth, "cluster", "doctor", "parts", "--provider", "podman", "-o", "json")
	cmd.Env = append(os.Environ(), "KUBECONFIG="+h.kubeconfig)
	out, err := cmd.Output()
	var all []finding.Finding
	if json.Unmarshal(out, &all) != nil {
		t.Fatalf("%v: %s", err, out)
	}
	if finding.HasProblem(all) != (err != nil) {
		t.Errorf("the exit status is %v with %+v", err, all)
	}
	for _, f := range all {
		text += string(f.Level) + " " + f.Check + ": " + f.Evidence + " => " + f.Fix + "\n"
	}
	return text, err != nil
}
