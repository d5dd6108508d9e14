package addons

import (
	"cmp"
	"context"
	"fmt"
	"strings"
	"text/template"

	"github.com/berthrun/berth/internal/cluster/netpolicy"
	"github.com/berthrun/berth/internal/cluster/patch"
	"github.com/berthrun/berth/internal/cluster/provider"
	"github.com/berthrun/berth/internal/cluster/storage"
	"github.com/berthrun/berth/internal/errs"
)

// Manifests in images of kindest/node.
const (
	networkManifest = "/kind/manifests/default-cni.yaml"
	storageManifest = "/kind/manifests/default-storage.yaml"
)

// Markers in a manifest that request an edit, as kind has them.
const (
	asksForTemplate = "would you kindly template this file"
	asksForPatch    = "would you kindly patch this file"
)

// hostPathStorage is the StorageClass for images without a storage manifest.
const hostPathStorage = `apiVersion: storage.k8s.io/v1
kind: StorageClass
metadata:
  name: standard
  annotations: {storageclass.kubernetes.io/is-default-class: "true"}
provisioner: kubernetes.io/host-path
`

// defaultNetwork returns the documents of the pod network that the image of a control plane has; ""
// if berth in the nodes has its own, or the cluster file disables it.
func (i Installer) defaultNetwork(ctx context.Context) (string, error) {
	if i.Runtime.IsBerth() || i.Cluster.Networking.DisableDefaultCNI {
		return "", nil
	}
	text, err := provider.Output(ctx, i.Provider, i.Node, "cat", networkManifest)
	if err == nil {
		text, err = fillManifest(text, i.Cluster.Networking.PodSubnet, i.Endpoint)
	}
	if err != nil {
		return "", fmt.Errorf("cannot give the cluster the network of its node image: %w", err)
	}
	return text, nil
}

// policies returns the documents of what enforces network policies in berth's own network; "" where
// pods have another one. It warns if the nodes cannot enforce them.
func (i Installer) policies(ctx context.Context) (string, error) {
	if !i.Runtime.IsBerth() || i.Cluster.Networking.DisableDefaultCNI {
		return "", nil
	}
	if _, err := provider.Output(ctx, i.Provider, i.Node, netpolicy.CheckCommand()...); err != nil {
		if ctx.Err() != nil {
			return "", err
		}
		i.Warn(fmt.Sprintf("NetworkPolicy objects have no effect in this cluster: %s cannot enforce them (an image of an older berth cannot): %s", i.Node, errs.Message(err)))
		return "", nil
	}
	return netpolicy.Manifest(i.Endpoint)
}

// defaultStorage returns the documents of the default StorageClass and its provisioner; "" if the
// cluster file disables it.
func (i Installer) defaultStorage(ctx context.Context) (string, error) {
	switch {
	case i.Cluster.DisableDefaultStorage:
		return "", nil
	case i.Runtime.IsBerth():
		return storage.Manifest(), nil
	}
	text, err := provider.Output(ctx, i.Provider, i.Node, "sh", "-c", "! test -e "+storageManifest+" || cat "+storageManifest)
	if err != nil {
		return "", fmt.Errorf("cannot give the cluster the storage of its node image: %w", err)
	}
	return cmp.Or(text, hostPathStorage), nil
}

// fillManifest makes the edits that a manifest of a network requests.
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
	// The network need not wait for kube-proxy, which implements services.
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
