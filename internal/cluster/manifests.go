package cluster

import (
	"cmp"
	"context"
	"fmt"
	"strings"
	"text/template"

	"github.com/berthrun/berth/internal/cluster/patch"
	"github.com/berthrun/berth/internal/cluster/provider"
	"github.com/berthrun/berth/internal/cluster/storage"
	"github.com/berthrun/berth/internal/errs"
)

// Manifests that images of kindest/node bring.
const (
	networkManifest = "/kind/manifests/default-cni.yaml"
	storageManifest = "/kind/manifests/default-storage.yaml"
)

// Words in a manifest that ask for what kind does with it.
const (
	asksForTemplate = "would you kindly template this file"
	asksForPatch    = "would you kindly patch this file"
)

// hostPathStorage is for images that are older than the manifest of storage.
const hostPathStorage = `apiVersion: storage.k8s.io/v1
kind: StorageClass
metadata:
  name: standard
  annotations: {storageclass.kubernetes.io/is-default-class: "true"}
provisioner: kubernetes.io/host-path
`

// defaultNetwork is the network that the image of a control plane brings, as documents;
// "" where berth in the nodes has one, or the description wants none.
func (m *creation) defaultNetwork(ctx context.Context, node string) (string, error) {
	if m.runtimes[node].IsBerth() || m.Cluster.Networking.DisableDefaultCNI {
		return "", nil
	}
	text, err := provider.Output(ctx, m.Provider, node, "cat", networkManifest)
	if err == nil {
		text, err = fillManifest(text, m.Cluster.Networking.PodSubnet, m.plan.Endpoint)
	}
	if err != nil {
		return "", fmt.Errorf("cannot give the cluster the network of its node image: %w", err)
	}
	return text, nil
}

// defaultStorage is the default StorageClass and who serves it, as documents; "" where the
// description wants none.
func (m *creation) defaultStorage(ctx context.Context, node string) (string, error) {
	switch {
	case m.Cluster.DisableDefaultStorage:
		return "", nil
	case m.runtimes[node].IsBerth():
		return storage.Manifest(), nil
	}
	text, err := provider.Output(ctx, m.Provider, node, "sh", "-c", "! test -e "+storageManifest+" || cat "+storageManifest)
	if err != nil {
		return "", fmt.Errorf("cannot give the cluster the storage of its node image: %w", err)
	}
	return cmp.Or(text, hostPathStorage), nil
}

// fillManifest does to a manifest of a network what it asks for.
func fillManifest(text, podSubnet, endpoint string) (string, error) {
	if strings.Contains(text, asksForTemplate) {
		t, err := template.New("").Parse(text)
		if err != nil {
			return "", fmt.Errorf("%s is no template: %w: %w", networkManifest, errs.Invalid, err)
		}
		var out strings.Builder
		if err := t.Execute(&out, struct{ PodSubnet string }{podSubnet}); err != nil {
			return "", fmt.Errorf("%s: %w: %w", networkManifest, errs.Invalid, err)
		}
		text = out.String()
	}
	if !strings.Contains(text, asksForPatch) {
		return text, nil
	}
	// So that the network need not wait for kube-proxy, which makes services work.
	op, err := patch.ParseJSON6902("apps", "v1", "DaemonSet",
		fmt.Sprintf(`[{"op":"add","path":"/spec/template/spec/containers/0/env/-","value":{"name":"CONTROL_PLANE_ENDPOINT","value":%q}}]`, endpoint))
	if err != nil {
		return "", err
	}
	docs, err := patch.Parse(text)
	if err == nil {
		docs, err = patch.Apply(docs, nil, []patch.JSON6902{op})
	}
	if err != nil {
		return "", fmt.Errorf("%s: %w", networkManifest, err)
	}
	return patch.Render(docs)
}
