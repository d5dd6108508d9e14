//go:build e2e

package e2e

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/berthrun/berth/internal/require"
)

// bogus is a cluster whose API server gets an unknown flag.
const bogus = `kind: Cluster
apiVersion: berth.run/v1alpha1
name: bogus
kubeadmConfigPatches:
- |
  kind: ClusterConfiguration
  apiServer: {extraArgs: [{name: bogus-flag, value: x}]}
`

// TestClusterChanges: apply refuses what cannot be created before it changes anything. A worker
// whose ports change keeps its disk. Neither needs the environment in which the cluster was
// created. Only the host can push to the registry. create reports an API server that cannot run at
// once.
func TestClusterChanges(t *testing.T) {
	t.Setenv("HTTPS_PROXY", "http://me:geheim@192.0.2.1:3128")
	clusterWith(t, "registry: {enabled: true, port: 5001}\n", "10m", func(h *clusterHost, t *testing.T) {
		if got := h.run("podman", "exec", "parts-worker", "printenv", "HTTPS_PROXY"); got != "http://me:geheim@192.0.2.1:3128" {
			t.Errorf("nodes have the proxy %q", got)
		}
		t.Setenv("HTTPS_PROXY", "http://other:3128")
		h.nodesPushNothing(t)
		h.cluster("registry", "delete")
		h.refusedFirst(t)
		h.portsChange(t)
		h.logsAreClean(t)
		h.bogusFlag(t)
	})
}

// nodesPushNothing: the host may push, as the test of the registry checks, too; nodes may only
// pull.
func (h *clusterHost) nodesPushNothing(t *testing.T) {
	h.run("podman", "tag", "berth.run/hello:demo", "localhost:5001/team/hello:1")
	h.run("podman", "push", "--tls-verify=false", "localhost:5001/team/hello:1")
	inNode := func(script string) string { return h.run("podman", "exec", "parts-worker", "bash", "-c", script) }
	h.hostWrites(inNode)
	if got := inNode(requestScript("berth-registry", "5000", "GET /v2/team/hello/manifests/1")); !strings.Contains(got, "200") {
		t.Errorf("a node that pulls: %q", got)
	}
}

// requestScript is a script that makes a request, and prints the status of its answer.
func requestScript(host, port, request string) string {
	return "exec 3<>/dev/tcp/" + host + "/" + port + "; printf '" + request + ` HTTP/1.0\r\nHost: registry\r\nContent-Length: 0\r\n\r\n' >&3; head -n 1 <&3`
}

// hostWrites: the registry accepts images from this host, and from no node.
func (h *clusterHost) hostWrites(inNode func(script string) string) {
	h.t.Helper()
	if got := h.run("bash", "-c", requestScript("127.0.0.1", "5001", "POST /v2/team/other/blobs/uploads/")); !strings.Contains(got, "202") {
		h.t.Errorf("the host may not push: %q", got)
	}
	for _, request := range []string{"PUT /v2/team/hello/manifests/1", "POST /v2/team/hello/blobs/uploads/", "DELETE /v2/team/hello/manifests/1"} {
		if got := inNode(requestScript("berth-registry", "5000", request)); !strings.Contains(got, "403") {
			h.t.Errorf("%s from a node: %q", request, got)
		}
	}
}

// TestClusterRegistryOfDocker: docker forwards ports of the host in another way than podman.
func TestClusterRegistryOfDocker(t *testing.T) {
	h := newClusterHost(t, engine{"docker", dockerOnly})
	t.Log(h.cluster("build-image", "--kubernetes", h.bin, "--rootfs", "../../out/systemd/root"))
	t.Log(h.cluster("create", "--config", h.write("name: parts\nnodes: [{}]\nregistry: {enabled: true, port: 5001}\n"), "--wait", h.patience()))
	h.hostWrites(func(script string) string {
		return h.run("docker", "exec", "parts-control-plane", "bash", "-c", script)
	})
	h.cluster("registry", "delete")
	t.Log(h.cluster("delete", "parts"))
	h.nothingLeft("parts")
}

// applied writes a description and applies it to the cluster.
func (h *clusterHost) applied(t *testing.T, worker string) (string, error) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "cluster.yaml")
	text := "kind: Cluster\napiVersion: berth.run/v1alpha1\nname: parts\nregistry: {enabled: true, port: 5001}\nnodes: [{role: control-plane}, {role: worker" + worker + "}]\n"
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return h.try(nil, h.berth, "cluster", "apply", "--provider", "podman", "-f", file, "--yes", "--wait", h.patience())
}

func (h *clusterHost) refusedFirst(t *testing.T) {
	if out, err := h.applied(t, ""); err != nil || !strings.Contains(out, "the cluster parts matches its file") {
		t.Errorf("from another shell: %v\n%s", err, out)
	}
	h.run("podman", "run", "--name", "newer", "--entrypoint", "sh", "localhost/berth/node:latest", "-c", "echo v1.99.0 > /usr/share/berth/kubernetes-version")
	h.run("podman", "commit", "-q", "newer", "localhost/newer:1")
	h.run("podman", "rm", "newer")
	for image, want := range map[string]string{"localhost/newer:1": "has Kubernetes v1.99.0", "berth.run/hello:demo": "is neither of berth cluster build-image nor of kindest/node"} {
		before := h.run("podman", "inspect", "--format", "{{.Id}}", "parts-worker")
		out, err := h.applied(t, `, image: "`+image+`"`)
		if err == nil || !strings.Contains(out, want) {
			t.Errorf("%s: %v\n%s", image, err, out)
		}
		if after, err := h.try(nil, "podman", "inspect", "--format", "{{.Id}}", "parts-worker"); err != nil || after != before {
			t.Fatalf("%s: the worker is %s, and was %s: %v", image, after, before, err)
		}
		if left := h.run("podman", "ps", "-a", "--format", "{{.Names}}"); strings.Contains(left, "trial") {
			t.Errorf("left: %s", left)
		}
	}
	h.kubectl("wait", "--for=condition=Ready", "node/parts-worker", "--timeout=10s")
}

func (h *clusterHost) portsChange(t *testing.T) {
	h.cluster("load", "--name", "parts", "berth.run/hello:demo")
	h.apply(database)
	h.kubectl("rollout", "status", "statefulset/db", "--timeout="+h.patience())
	h.kubectl("exec", "db-0", "--", "sh", "-c", "echo kept > /data/file")
	out, err := h.applied(t, ", extraPortMappings: [{containerPort: 30080, hostPort: 8080}]")
	if err != nil || !strings.Contains(out, "extraPortMappings is 0.0.0.0:8080 to 30080/TCP, and was none") {
		t.Fatalf("%v\n%s", err, out)
	}
	t.Log(out)
	if got := h.run("podman", "port", "parts-worker"); !strings.Contains(got, "30080/tcp -> 0.0.0.0:8080") {
		t.Errorf("ports: %s", got)
	}
	h.until(t, "kept", "exec", "db-0", "--", "cat", "/data/file")
	h.kubectl("delete", "statefulset/db", "pvc/data-db-0")
}

func (h *clusterHost) logsAreClean(t *testing.T) {
	logs := t.TempDir()
	h.cluster("logs", "--name", "parts", logs)
	text, err := os.ReadFile(filepath.Join(logs, "parts-control-plane", "inspect.json"))
	if err != nil || strings.Contains(string(text), "geheim") || !strings.Contains(string(text), "192.0.2.1:3128") {
		t.Errorf("inspect.json has the proxy's password, or no proxy: %v", err)
	}
}

func (h *clusterHost) bogusFlag(t *testing.T) {
	file := filepath.Join(t.TempDir(), "bogus.yaml")
	if err := os.WriteFile(file, []byte(bogus), 0o600); err != nil {
		t.Fatal(err)
	}
	begun := time.Now()
	out, err := h.try(nil, h.berth, "cluster", "create", "--provider", "podman", "--config", file)
	took := time.Since(begun)
	t.Logf("after %s:\n%s", took.Round(time.Second), out)
	if err == nil || !strings.Contains(out, "kube-apiserver of bogus-control-plane has crashed") || !strings.Contains(out, "unknown flag: --bogus-flag") {
		t.Errorf("%v\n%s", err, out)
	}
	if most := require.Patience(50 * time.Second); took > most {
		t.Errorf("it took %s", took)
	}
	if left := h.run("podman", "ps", "-a", "--format", "{{.Names}}"); strings.Contains(left, "bogus") {
		t.Errorf("left: %s", left)
	}
}
