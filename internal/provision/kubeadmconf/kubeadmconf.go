// Package kubeadmconf renders what `kubeadm init --config` and `kubeadm join --config` read, in
// version v1beta4, as a pure function of the facts of a node and of its cluster. It knows no node
// file and no machine.
package kubeadmconf

import (
	"errors"
	"fmt"
	"strings"

	"k8s.io/apimachinery/pkg/util/version"
	"sigs.k8s.io/yaml"

	"github.com/berthrun/berth/internal/errs"
)

const (
	apiVersion = "kubeadm.k8s.io/v1beta4"
	// defaultServices is kubeadm's range of services.
	defaultServices = "10.96.0.0/12"
)

// Node is the machine that becomes a node.
type Node struct {
	// Version of Kubernetes on the machine, as in v1.36.3; empty if unknown.
	Version string
	// Socket is the path of the runtime's CRI socket.
	Socket string
	// CgroupDriver is the runtime's: systemd or cgroupfs. AsksDriver: the kubelet gets it from the
	// runtime, and its own setting does not matter.
	CgroupDriver string
	AsksDriver   bool
	// CgroupV1: the machine has cgroup v1.
	CgroupV1 bool
	// Name is that of the node; empty for the machine's.
	Name string
	// Address is the address that an API server on the node advertises; empty for that of the
	// default route.
	Address string
	// Labels are those that the kubelet registers the node with: a=b,c=d.
	Labels string
	// Taints of the node; nil for kubeadm's own, empty for none.
	Taints []Taint
}

// Taint is one taint of a node.
type Taint struct {
	Key    string `json:"key"`
	Value  string `json:"value,omitempty"`
	Effect string `json:"effect"`
}

// ParseTaints reads taints as the kubelet's option --register-with-taints has them. They are
// empty, and not nil, where the text is.
func ParseTaints(text string) ([]Taint, error) {
	taints := []Taint{}
	if text == "" {
		return taints, nil
	}
	for part := range strings.SplitSeq(text, ",") {
		i := strings.LastIndexByte(part, ':')
		if i < 0 {
			return nil, fmt.Errorf("%q: want key=value:effect or key:effect: %w", part, errs.Invalid)
		}
		key, value, _ := strings.Cut(part[:i], "=")
		effect := part[i+1:]
		if key == "" || effect != "NoSchedule" && effect != "PreferNoSchedule" && effect != "NoExecute" {
			return nil, fmt.Errorf("%q: want key=value:effect, with the effect NoSchedule, PreferNoSchedule or NoExecute: %w", part, errs.Invalid)
		}
		taints = append(taints, Taint{key, value, effect})
	}
	return taints, nil
}

// Init is what a new cluster is.
type Init struct {
	// Version of its control plane; empty for that of the node.
	Version string
	// PodSubnet and ServiceSubnet are one CIDR, or one of each family with a comma. Without a
	// PodSubnet nodes get no range of addresses; an empty ServiceSubnet is kubeadm's.
	PodSubnet, ServiceSubnet string
	// Endpoint is host:port of all API servers together; empty for a cluster that will have one.
	Endpoint string
	// Token is what nodes join with; empty for one that kubeadm makes and prints.
	Token string
}

// Join is what a node must know of its cluster.
type Join struct {
	// Endpoint is host:port of an API server.
	Endpoint string
	Token    string
	// Hashes are those of the cluster's certificate authorities; one must match. With SkipCA the
	// node trusts any server that answers.
	Hashes []string
	SkipCA bool
	// ControlPlane: the node gets an API server of its own. CertificateKey is what `kubeadm init
	// --upload-certs` has printed; empty where the certificates are on the machine.
	ControlPlane   bool
	CertificateKey string
}

// Refused reports whether kubeadm's check SystemVerification refuses the machine's cgroups unless
// it is ignored, as it does from 1.35 on.
func (n Node) Refused() bool {
	v, err := version.ParseSemantic(n.Version)
	return n.CgroupV1 && (err != nil || v.AtLeast(version.MustParseSemantic("v1.35.0-alpha.0")))
}

type document = map[string]any

// ForInit returns the configuration for `kubeadm init`. An error has each fault, of kind Invalid.
func ForInit(n Node, i Init) (string, error) {
	if i.Version == "" {
		i.Version = n.Version
	}
	if err := errors.Join(n.check(), i.check(n)); err != nil {
		return "", err
	}
	first := document{"apiVersion": apiVersion, "kind": "InitConfiguration", "nodeRegistration": n.registration(false)}
	if i.Token != "" {
		first["bootstrapTokens"] = []any{document{"token": i.Token}}
	}
	if n.Address != "" {
		first["localAPIEndpoint"] = document{"advertiseAddress": n.Address}
	}
	networking := document{}
	cluster := document{"apiVersion": apiVersion, "kind": "ClusterConfiguration", "kubernetesVersion": i.Version, "networking": networking}
	set(networking, "podSubnet", i.PodSubnet)
	set(networking, "serviceSubnet", i.ServiceSubnet)
	set(cluster, "controlPlaneEndpoint", i.Endpoint)
	kubelet := document{"apiVersion": "kubelet.config.k8s.io/v1beta1", "kind": "KubeletConfiguration", "cgroupDriver": n.CgroupDriver}
	if n.CgroupV1 {
		kubelet["failCgroupV1"] = false
	}
	return stream(first, cluster, kubelet)
}

// ForJoin returns the configuration for `kubeadm join`. An error has each fault, of kind Invalid.
func ForJoin(n Node, j Join) (string, error) {
	if err := errors.Join(n.check(), j.check()); err != nil {
		return "", err
	}
	discovery := document{"apiServerEndpoint": j.Endpoint, "token": j.Token}
	if j.SkipCA {
		discovery["unsafeSkipCAVerification"] = true
	} else {
		discovery["caCertHashes"] = j.Hashes
	}
	doc := document{
		"apiVersion": apiVersion, "kind": "JoinConfiguration",
		"discovery": document{"bootstrapToken": discovery}, "nodeRegistration": n.registration(true),
	}
	if j.ControlPlane {
		local := document{}
		set(local, "advertiseAddress", n.Address)
		plane := document{"localAPIEndpoint": local}
		set(plane, "certificateKey", j.CertificateKey)
		doc["controlPlane"] = plane
	}
	return stream(doc)
}

// registration is how the kubelet registers its node. A node that joins gets the cluster's
// KubeletConfiguration, so the settings of this machine alone go to the command line.
func (n Node) registration(joins bool) document {
	var args []any
	arg := func(name, value string) { args = append(args, document{"name": name, "value": value}) }
	doc := document{"criSocket": "unix://" + n.Socket}
	if joins && !n.AsksDriver {
		arg("cgroup-driver", n.CgroupDriver)
	}
	if joins {
		// A cluster of containers, as of kind or `berth cluster`, names a cgroupRoot that only its
		// containers have, and the kubelet exits where it is missing. kubelet.flags come later on
		// the command line, and win.
		arg("cgroup-root", "/")
	}
	if joins && n.CgroupV1 {
		arg("fail-cgroupv1", "false")
	}
	if n.Labels != "" {
		arg("node-labels", n.Labels)
	}
	if len(args) > 0 {
		doc["kubeletExtraArgs"] = args
	}
	if n.Refused() {
		doc["ignorePreflightErrors"] = []any{"SystemVerification"}
	}
	if n.Taints != nil {
		doc["taints"] = n.Taints
	}
	set(doc, "name", n.Name)
	return doc
}

func set(doc document, field, value string) {
	if value != "" {
		doc[field] = value
	}
}

func stream(docs ...document) (string, error) {
	var texts []string
	for _, doc := range docs {
		text, err := yaml.Marshal(doc)
		if err != nil {
			return "", fmt.Errorf("cannot write the configuration of kubeadm: %w", err)
		}
		texts = append(texts, string(text))
	}
	return strings.Join(texts, "---\n"), nil
}
