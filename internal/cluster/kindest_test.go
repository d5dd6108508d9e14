package cluster

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/berthrun/berth/internal/cluster/clustertest"
	"github.com/berthrun/berth/internal/cluster/config"
	"github.com/berthrun/berth/internal/cluster/inventory"
	"github.com/berthrun/berth/internal/cluster/logs"
	"github.com/berthrun/berth/internal/cluster/noderuntime"
	"github.com/berthrun/berth/internal/cluster/registry"
	"github.com/berthrun/berth/internal/errs"
)

// Manifests in images of kindest/node.
const (
	networkManifest = "/kind/manifests/default-cni.yaml"
	storageManifest = "/kind/manifests/default-storage.yaml"
)

// restartContainerd restarts containerd with its new configuration, and waits until it answers.
const restartContainerd = "! pgrep -x containerd >/dev/null || systemctl restart containerd.service; " +
	"timeout 60 sh -c 'until [ -S /run/containerd/containerd.sock ] && ctr version >/dev/null 2>&1; do sleep 0.1; done'"

const kindContainerd = "version = 2\n[plugins.\"io.containerd.grpc.v1.cri\"]\nsandbox_image = \"pause\"\n"

const kindNetwork = `# would you kindly template this file
# would you kindly patch this file
apiVersion: v1
kind: ServiceAccount
metadata: {name: kindnet}
---
apiVersion: apps/v1
kind: DaemonSet
metadata: {name: kindnet}
spec:
  template:
    spec:
      containers:
      - env:
        - {name: POD_SUBNET, value: "{{ .PodSubnet }}"}
`

// kindest gives the nodes of the cluster dev the image kindest/node.
func kindest(t *testing.T, nodes ...string) *clustertest.Fake {
	f := clustertest.New(t)
	f.Kind = map[string]bool{}
	for _, n := range nodes {
		f.Kind[n] = true
		f.Files[n+":"+noderuntime.ContainerdFile] = kindContainerd
		f.Files[n+":"+networkManifest] = kindNetwork
	}
	return f
}

func TestNodesOfKind(t *testing.T) {
	f := kindest(t, "dev-control-plane", "dev-worker", "dev-worker2")
	c, _ := clusters(f)
	text := twoWorkers + "containerdConfigPatches: [\"[debug]\\nlevel = 'debug'\", \"version = 3\\n[debug]\\nlevel = 'error'\"]\nregistries: [{host: r.example, skipVerify: true}]\n"
	if _, err := c.Create(t.Context(), CreateOptions{Cluster: clustertest.Describe(t, text), Wait: time.Minute}); err != nil {
		t.Fatal(err)
	}
	for _, line := range f.Ran {
		if strings.Contains(line, "berth image") || strings.Contains(line, "net route") {
			t.Errorf("a node of containerd was told: %s", line)
		}
	}
	for _, want := range []string{"dev-worker: sh -c " + restartContainerd, "dev-worker: kubeadm join --config=/kind/kubeadm.conf"} {
		if !slices.Contains(f.Ran, want) {
			t.Errorf("not done: %s; but %q", want, f.Ran)
		}
	}
	for file, want := range map[string]string{
		"dev-worker:/kind/kubeadm.conf":                           "criSocket: unix:///run/containerd/containerd.sock",
		"dev-worker:/etc/containerd/certs.d/r.example/hosts.toml": "skip_verify = true",
		"dev-worker:" + noderuntime.ContainerdFile:                "level = 'debug'",
		"dev-worker2:" + noderuntime.ContainerdFile:               "config_path = '/etc/containerd/certs.d'",
		"dev-control-plane:applied":                               "CONTROL_PLANE_ENDPOINT",
	} {
		if got := f.Files[file]; !strings.Contains(got, want) {
			t.Errorf("%s has\n%s\nwant %s", file, got, want)
		}
	}
	if got := f.Files["dev-control-plane:applied"]; !strings.Contains(got, "10.244.0.0/16") || !strings.Contains(got, "dev-control-plane:6443") || !strings.Contains(got, "kubernetes.io/host-path") {
		t.Errorf("the network:\n%s", got)
	}
	// At a restart berth adds no routes, because the image's own network does.
	f.Ran = nil
	if err := c.Stop(t.Context(), "dev"); err != nil {
		t.Fatal(err)
	}
	if err := c.Start(t.Context(), "dev", time.Minute); err != nil {
		t.Error(err)
	}
	collector := logs.Collector{Provider: f, Warn: c.Warn}
	if err := collector.Collect(t.Context(), "dev", t.TempDir()); err != nil {
		t.Error(err)
	}
}

// TestNothingToPatch: berth does not restart containerd if its configuration does not change.
func TestNothingToPatch(t *testing.T) {
	f := kindest(t, "dev-control-plane")
	c, _ := clusters(f)
	if _, err := c.Create(t.Context(), CreateOptions{Cluster: clustertest.Describe(t, "networking: {disableDefaultCNI: true}\n")}); err != nil {
		t.Fatal(err)
	}
	for _, line := range f.Ran {
		if strings.Contains(line, "systemctl restart containerd") || strings.Contains(line, networkManifest) {
			t.Errorf("unwanted: %s", line)
		}
	}
}

func TestMixedImages(t *testing.T) {
	f := kindest(t, "dev-worker")
	c, _ := clusters(f)
	if _, err := c.Create(t.Context(), CreateOptions{Cluster: clustertest.Describe(t, twoWorkers)}); !errors.Is(err, errs.Unsupported) || !strings.Contains(err.Error(), "one kind of image") {
		t.Errorf("%v", err)
	}
	if _, err := c.Create(t.Context(), CreateOptions{Cluster: clustertest.Describe(t, twoWorkers+"networking: {disableDefaultCNI: true}\n")}); err != nil {
		t.Errorf("with a network of the user's own: %v", err)
	}
}

// TestContainerdPatchesForBerth: registries in containerd patches apply to every node of berth. All
// other settings cause a warning.
func TestContainerdPatchesForBerth(t *testing.T) {
	f := clustertest.New(t)
	c, steps := clusters(f)
	text := `containerdConfigPatches:
- |-
  [plugins."io.containerd.grpc.v1.cri".registry.mirrors."localhost:5001"]
  endpoint = ["http://kind-registry:5000"]
- |-
  [debug]
  level = "debug"
`
	if _, err := c.Create(t.Context(), CreateOptions{Cluster: clustertest.Describe(t, text)}); err != nil {
		t.Fatal(err)
	}
	if got := f.Files["dev-control-plane:/etc/berth/certs.d/localhost:5001/hosts.toml"]; !strings.Contains(got, "http://kind-registry:5000") {
		t.Errorf("the mirror: %q", got)
	}
	if told := strings.Join(*steps, "\n"); !strings.Contains(told, "warning: containerdConfigPatches: these settings") || !strings.Contains(told, "debug.level") {
		t.Errorf("nobody is told of what is ignored:\n%s", told)
	}
}

// TestRegistryForContainerd: nodes of kindest/node get the mirrors of the shared registry where
// their runtime looks for them, at the start and later.
func TestRegistryForContainerd(t *testing.T) {
	f := kindest(t, "dev-control-plane")
	withRegistry(t, f)
	c, _ := clusters(f)
	if _, err := c.Create(t.Context(), CreateOptions{Cluster: clustertest.Describe(t, "registry: {enabled: true, port: 0}\n")}); err != nil {
		t.Fatal(err)
	}
	file := "dev-control-plane:/etc/containerd/certs.d/berth-registry:5000/hosts.toml"
	if got := f.Files[file]; !strings.Contains(got, "http://berth-registry:5000") || !strings.Contains(f.Files["dev-control-plane:"+noderuntime.ContainerdFile], "config_path") {
		t.Errorf("at the start: %q\n%s", got, f.Files["dev-control-plane:"+noderuntime.ContainerdFile])
	}
	delete(f.Files, file)
	f.Files["dev-control-plane:"+noderuntime.ContainerdFile] = kindContainerd
	f.Ran = nil
	if _, err := c.Registry().Start(t.Context(), registry.Options{}); err != nil {
		t.Fatal(err)
	}
	if got := f.Files[file]; !strings.Contains(got, "http://berth-registry:5000") || !slices.Contains(f.Ran, "dev-control-plane: sh -c "+restartContainerd) {
		t.Errorf("later: %q, ran %q", got, f.Ran)
	}
}

// TestHelpersBesideContainerd: the load balancer and the registry run berth's programs, with any
// node image.
func TestHelpersBesideContainerd(t *testing.T) {
	f := kindest(t, "dev-control-plane", "dev-control-plane2")
	withRegistry(t, f)
	c, _ := clusters(f)
	const text = "nodes: [{image: \"kindest/node:v1.36.3\"}, {image: \"kindest/node:v1.36.3\"}]\nregistry: {enabled: true, port: 0}\n"
	if _, err := c.Create(t.Context(), CreateOptions{Cluster: clustertest.Describe(t, text)}); err != nil {
		t.Fatal(err)
	}
	for _, n := range f.Nodes {
		want := "kindest/node:v1.36.3"
		if inventory.Role(n) != config.ControlPlane {
			want = config.DefaultImage
		}
		if n.Image != want {
			t.Errorf("%s has the image %s, want %s", n.Name, n.Image, want)
		}
	}
}
