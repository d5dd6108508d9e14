// Package kubeadm renders the kubeadm configuration of a node: what kind would write, with the
// cluster file's patches applied, as a pure function. Comments name each intended difference from
// kind.
package kubeadm

import (
	"crypto/rand"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/util/version"

	"github.com/berthrun/berth/internal/cluster/config"
	"github.com/berthrun/berth/internal/cluster/patch"
	"github.com/berthrun/berth/internal/errs"
)

// AdminFile is the path of the administrator's kubeconfig that kubeadm writes on control planes.
const AdminFile = "/etc/kubernetes/admin.conf"

// CRI sockets of the runtimes that a node image may have.
const (
	BerthSocket      = "unix:///run/berth/berth.sock"
	ContainerdSocket = "unix:///run/containerd/containerd.sock"
)

// bindPort is the port of the API server in its node.
const bindPort = 6443

// Node is the input of one node's configuration.
type Node struct {
	Cluster *config.Cluster
	// Node is the node as Cluster.Nodes has it.
	Node config.Node
	// Version is the Kubernetes version of the node's image, such as v1.36.3.
	Version string
	// Engine is the container engine; it is part of the node's provider id.
	Engine string
	// Endpoint is the host and port of the API inside of the cluster's network.
	Endpoint string
	// IPv4 and IPv6 are the node's addresses; the zero Addr for none.
	IPv4, IPv6 netip.Addr
	// CRISocket is the URL of the runtime's socket in the node.
	CRISocket string
	// Token is what nodes join with; the same for all nodes of a cluster.
	Token string
	// Rootless: the engine runs in a user namespace.
	Rootless bool
	// CgroupDriver is the runtime's, for kubelets that do not query it (KEP-4033).
	CgroupDriver string
}

// NewToken generates a token to join with. kind has the same one for all clusters; a cluster whose
// API listens on more than loopback would then accept any node.
func NewToken() string {
	text := strings.ToLower(rand.Text()) // 26 letters and digits
	return text[:6] + "." + text[6:22]
}

// Config returns the configuration, a stream of YAML documents for both `kubeadm init` and `kubeadm
// join`, on control planes and workers. The error is errs.Invalid if a patch cannot be applied,
// errs.Unsupported for a version that is too old.
func Config(n Node) (string, error) {
	text, err := render(n)
	if err != nil {
		return "", fmt.Errorf("cannot make the kubeadm configuration of %s: %w", n.name(), err)
	}
	return text, nil
}

func render(n Node) (string, error) {
	b, err := newBuilder(n)
	if err != nil {
		return "", err
	}
	settings := n.Cluster.Settings
	docs, err := apply(b.documents(), settings.KubeadmConfigPatches, settings.KubeadmConfigPatchesJSON6902)
	if err != nil {
		return "", fmt.Errorf("patches of the cluster: %w", err)
	}
	docs, err = apply(docs, n.Node.KubeadmConfigPatches, n.Node.KubeadmConfigPatchesJSON6902)
	if err != nil {
		return "", fmt.Errorf("patches of the node: %w", err)
	}
	for _, doc := range docs {
		dropName(doc)
	}
	return patch.Render(docs)
}

// SkippedPhases are the phases that a configuration, as Config returns it, makes `kubeadm init`
// leave out.
func SkippedPhases(text string) ([]string, error) {
	docs, err := patch.Parse(text)
	if err != nil {
		return nil, fmt.Errorf("cannot read the kubeadm configuration: %w", err)
	}
	var phases []string
	for _, doc := range docs {
		if doc["kind"] != "InitConfiguration" {
			continue
		}
		list, _ := doc["skipPhases"].([]any)
		for _, p := range list {
			if name, ok := p.(string); ok {
				phases = append(phases, name)
			}
		}
	}
	return phases, nil
}

// documents are those of a node, before patches.
func (b *builder) documents() []patch.Doc {
	docs := []patch.Doc{b.cluster(), b.init(), b.join(), b.kubelet()}
	if b.Cluster.Networking.KubeProxyMode != config.ProxyNone {
		docs = append(docs, b.proxy())
	}
	return docs
}

// apply applies the cluster file's patches to the documents.
func apply(docs []patch.Doc, merges []string, ops []config.PatchJSON6902) ([]patch.Doc, error) {
	var parsed []patch.Merge
	for _, text := range merges {
		more, err := patch.ParseMerge(text)
		if err != nil {
			return nil, err
		}
		parsed = append(parsed, more...)
	}
	var parsedOps []patch.JSON6902
	for _, o := range ops {
		op, err := patch.ParseJSON6902(o.Group, o.Version, o.Kind, o.Patch)
		if err != nil {
			return nil, err
		}
		parsedOps = append(parsedOps, op)
	}
	return patch.Apply(docs, parsed, parsedOps)
}

// dropName removes the name that older patches give the documents, after kind's early
// documentation; kubeadm refuses it.
func dropName(doc patch.Doc) {
	if meta, ok := doc["metadata"].(map[string]any); ok && len(meta) == 1 && meta["name"] == "config" {
		delete(doc, "metadata")
	}
}

func (n Node) name() string { return n.Cluster.ContainerName(n.Node) }

// addresses are the node's addresses, the primary family first: the API server
// advertises the first one, which must be of the family that services have.
func (n Node) addresses() ([]netip.Addr, error) {
	net := n.Cluster.Networking
	if net.HasIPv6() && !n.IPv6.IsValid() {
		return nil, fmt.Errorf("failed to get IPv6 address for node %s; is %s configured to use IPv6 correctly?: %w", n.name(), n.Engine, errs.Unavailable)
	}
	if net.IPFamily != config.IPv6 && !n.IPv4.IsValid() {
		return nil, fmt.Errorf("failed to get IPv4 address for node %s: %w", n.name(), errs.Unavailable)
	}
	switch net.IPFamily {
	case config.IPv6:
		return []netip.Addr{n.IPv6}, nil
	case config.DualStack:
		services, err := net.ServiceSubnets()
		if err != nil {
			return nil, err
		}
		if services[0].Addr().Is4() {
			return []netip.Addr{n.IPv4, n.IPv6}, nil
		}
		return []netip.Addr{n.IPv6, n.IPv4}, nil
	default:
		return []netip.Addr{n.IPv4}, nil
	}
}

// gates are the feature gates of all components.
func (n Node) gates() map[string]bool {
	gates := maps.Clone(n.Cluster.FeatureGates)
	if n.Rootless {
		if gates == nil {
			gates = map[string]bool{}
		}
		gates["KubeletInUserNamespace"] = true
	}
	return gates
}

// pairs renders a mapping as an option's value: a=b,c=d.
func pairs[V any](entries map[string]V) string {
	var all []string
	for _, key := range slices.Sorted(maps.Keys(entries)) {
		all = append(all, fmt.Sprintf("%s=%v", key, entries[key]))
	}
	return strings.Join(all, ",")
}

// parseVersion reads the version of Kubernetes in an image.
func parseVersion(text string) (*version.Version, error) {
	v, err := version.ParseGeneric(text)
	if err != nil {
		return nil, fmt.Errorf("version of Kubernetes: %w: %w", errs.Invalid, err)
	}
	if v.LessThan(oldest()) {
		return nil, fmt.Errorf("Kubernetes %s is too old; want %s or later: %w", text, oldest(), errs.Unsupported)
	}
	return v, nil
}

// Newer reports whether a version of Kubernetes is newer than another by more than fixes: nodes may
// be older than their cluster, and not newer.
func Newer(text, than string) (bool, error) {
	a, err := parseVersion(text)
	if err != nil {
		return false, err
	}
	b, err := parseVersion(than)
	if err != nil {
		return false, err
	}
	return a.Major() > b.Major() || a.Major() == b.Major() && a.Minor() > b.Minor(), nil
}

// oldest is the first version whose kubeadm reads v1beta3 as it is written here.
func oldest() *version.Version { return version.MustParseGeneric("1.23.0") }
