// Package noderuntime knows the container runtime of a node: berth in images of `berth cluster
// build-image`, containerd in images of kindest/node. It identifies the runtime, and writes the
// runtime's configuration and its registries.
package noderuntime

import (
	"context"
	"fmt"

	"github.com/berthrun/berth/internal/cluster/innode"
	"github.com/berthrun/berth/internal/cluster/kubeadm"
	"github.com/berthrun/berth/internal/cluster/nodeimage"
	"github.com/berthrun/berth/internal/cluster/provider"
	"github.com/berthrun/berth/internal/errs"
)

// Runtime is the container runtime of a node, with the paths and units that depend on it.
type Runtime struct {
	// Name is berth or containerd; "" is a runtime that was not identified.
	Name string
	// Socket is the CRI endpoint that kubeadm and the kubelet use.
	Socket string
	// KubeadmFile is the path of kubeadm's configuration in the node.
	KubeadmFile string
	// RegistriesDir is where the runtime looks for registries, one directory each.
	RegistriesDir string
	// Units are the systemd units whose logs explain why no pod starts.
	Units []string
}

// Berth is the runtime of berth's own node images.
func Berth() Runtime {
	return Runtime{
		Name: "berth", Socket: kubeadm.BerthSocket, KubeadmFile: innode.KubeadmFile, RegistriesDir: "/etc/berth/certs.d",
		Units: []string{"berth.service", "berth-supervisor.service"},
	}
}

// Containerd is the runtime of images of kindest/node.
func Containerd() Runtime {
	return Runtime{
		// kind's image reads the file again when the address of the node has changed.
		Name: "containerd", Socket: kubeadm.ContainerdSocket, KubeadmFile: "/kind/kubeadm.conf", RegistriesDir: "/etc/containerd/certs.d",
		Units: []string{"containerd.service"},
	}
}

// IsBerth reports whether berth runs the node's pods, with its own pod network and image store.
func (r Runtime) IsBerth() bool { return r.Name == "berth" }

// KindVersionFile has the version of Kubernetes in images of kindest/node.
const KindVersionFile = "/kind/version"

// Identify returns the runtime of a node and its version of Kubernetes. It reads the labels that
// containers have from their image, or asks the node where the provider reports no such labels. The
// error is errs.Unsupported for an image of neither kind.
func Identify(ctx context.Context, p provider.Provider, node provider.Node) (Runtime, string, error) {
	if version := node.Labels[nodeimage.LabelKubernetes]; version != "" {
		return Berth(), version, nil
	}
	version, err := provider.Output(ctx, p, node.Name, "cat", nodeimage.VersionFile)
	if err == nil {
		return Berth(), version, nil
	}
	if ctx.Err() != nil {
		return Runtime{}, "", err
	}
	version, err = provider.Output(ctx, p, node.Name, "sh", "-c", "command -v containerd >/dev/null && cat "+KindVersionFile)
	if err != nil {
		return Runtime{}, "", fmt.Errorf("the image of %s is neither of berth cluster build-image nor of kindest/node: %w: %w", node.Name, errs.Unsupported, err)
	}
	return Containerd(), version, nil
}
