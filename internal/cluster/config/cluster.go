// Package config is the description of a cluster: what people write, with its
// defaults, help and checks. One model is read from two formats: berth's own, and
// kind's v1alpha4. It knows no container engine and makes nothing.
package config

import (
	"github.com/berthrun/berth/internal/manifest"
	"github.com/berthrun/berth/internal/registries"
)

// The formats that a description may have.
const (
	APIVersion     = "berth.run/v1alpha1"
	KindAPIVersion = "kind.x-k8s.io/v1alpha4"
	Kind           = "Cluster"
)

// Names of clusters that are given none: in a description of our own or without
// any, and in a file of kind's, whose users know the name.
const (
	DefaultName     = "berth"
	DefaultKindName = "kind"
)

// DefaultImage is the image of nodes that name none, as `berth cluster build-image`
// calls what it makes.
const DefaultImage = "localhost/berth/node:latest"

// Cluster is the description of a cluster. As Load returns it, it has every default,
// and every node of a pool stands in Nodes.
type Cluster struct {
	APIVersion string `json:"apiVersion" help:"Version of this format." oneof:"berth.run/v1alpha1" required:"yes"`
	Kind       string `json:"kind" help:"Kind of this document." oneof:"Cluster" required:"yes"`
	Name       string `json:"name" help:"Name of the cluster, which the names of its nodes begin with. --name wins over it. Empty: berth." example:"dev"`
	Nodes      []Node `json:"nodes" help:"Nodes, one by one. Empty: one control plane, unless the control planes are a pool."`
	Pools      []Pool `json:"pools" help:"Nodes that are alike. Their names stay theirs when the count changes: the last ones come and go."`
	Settings
	DisableDefaultStorage bool                  `json:"disableDefaultStorage" help:"Install no StorageClass."`
	Registry              BuiltIn               `json:"registry" help:"The registry that clusters of this host share, on its loopback and in every node's reach."`
	Registries            []registries.Registry `json:"registries" help:"Where images of a registry come from, in order, on every node. Files that an entry names are on this host and are copied to the nodes; a relative path begins at the working directory."`

	// FromKind: the description is in kind's format.
	FromKind bool `json:"-"`
	// Balanced: the cluster has a load balancer, and keeps it however few control planes it is
	// to have: certificates and kubeconfig files name it.
	Balanced bool `json:"-"`
	// Warnings are what is odd but may be meant, with its place.
	Warnings []manifest.Fault `json:"-"`
}

// Settings are the fields of a cluster that kind has, too.
type Settings struct {
	Networking                      Networking        `json:"networking" help:"The cluster's networks and its API."`
	FeatureGates                    map[string]bool   `json:"featureGates" help:"Feature gates of Kubernetes, for all of its components." example:"{NodeSwap: true}"`
	RuntimeConfig                   map[string]string `json:"runtimeConfig" help:"Groups and versions of the API that the API server turns on or off." example:"{api/alpha: \"true\"}"`
	KubeadmConfigPatches            []string          `json:"kubeadmConfigPatches" lines:"yes" help:"Merge patches for the kubeadm configuration of every node. Each is a YAML document that says the kind that it is for, and the apiVersion where it is for one only." example:"[\"{kind: KubeletConfiguration, maxPods: 250}\"]"`
	KubeadmConfigPatchesJSON6902    []PatchJSON6902   `json:"kubeadmConfigPatchesJSON6902" help:"JSON patches for the kubeadm configuration of every node, applied after the merge patches."`
	ContainerdConfigPatches         []string          `json:"containerdConfigPatches" lines:"yes" help:"Merge patches, in TOML, for /etc/containerd/config.toml of nodes whose runtime is containerd. One that says another version than the file is left out." example:"[\"[debug]\\nlevel = 'debug'\"]"`
	ContainerdConfigPatchesJSON6902 []string          `json:"containerdConfigPatchesJSON6902" lines:"yes" help:"JSON patches for the same file, applied after the merge patches." example:"['[{op: add, path: /debug, value: {level: debug}}]']"`
}

// Node is one node.
type Node struct {
	Name string `json:"name" help:"What stands after the cluster's name in the node's name. Empty: the role, and a number from the second on." example:"db"`
	NodeSettings
	Registries []registries.Registry `json:"registries" help:"As those of the cluster, for this node: an entry stands in place of the cluster's of the same host."`

	// Pool is the pool that the node is of; "" is none.
	Pool string `json:"-"`
}

// Pool is a number of nodes that are alike.
type Pool struct {
	Name  string `json:"name" help:"What stands after the cluster's name in the nodes' names, with a number from the second on." required:"yes" example:"web"`
	Count *int   `json:"count" help:"How many nodes. Unset: 1." example:"3"`
	NodeSettings
	Registries []registries.Registry `json:"registries" help:"As those of a node."`
}

// NodeSettings are the fields of a node that kind has, too.
type NodeSettings struct {
	Role                         Role              `json:"role" help:"What the node is to the cluster. Empty: control-plane; worker for a pool." oneof:"control-plane worker"`
	Image                        string            `json:"image" help:"Node image. --image wins over it. Empty: that of berth cluster build-image." example:"localhost/berth/node:latest"`
	Labels                       map[string]string `json:"labels" help:"Labels of the node in Kubernetes." example:"{tier: frontend}"`
	ExtraMounts                  []Mount           `json:"extraMounts" help:"Directories and files of the host in the node."`
	ExtraPortMappings            []PortMapping     `json:"extraPortMappings" help:"Ports of the host that lead to the node."`
	KubeadmConfigPatches         []string          `json:"kubeadmConfigPatches" lines:"yes" help:"As those of the cluster, for this node, applied after them." example:"[\"{kind: JoinConfiguration, nodeRegistration: {kubeletExtraArgs: {v: \\\"4\\\"}}}\"]"`
	KubeadmConfigPatchesJSON6902 []PatchJSON6902   `json:"kubeadmConfigPatchesJSON6902" help:"As those of the cluster, for this node, applied after them."`
}

// PatchJSON6902 is a JSON patch for documents of one kind.
type PatchJSON6902 struct {
	Group   string `json:"group" help:"API group of the document that is changed. Empty, with version: any." example:"kubeadm.k8s.io"`
	Version string `json:"version" help:"Version of that group." example:"v1beta4"`
	Kind    string `json:"kind" help:"Kind of the document that is changed." required:"yes" example:"ClusterConfiguration"`
	Patch   string `json:"patch" lines:"yes" help:"List of operations, in YAML or JSON." required:"yes" example:"'[{op: add, path: /apiServer/certSANs/-, value: me.example}]'"`
}

// Mount is a directory or a file of the host in a node.
type Mount struct {
	ContainerPath  string      `json:"containerPath" help:"Absolute path in the node. One of /var, /tmp, /run or /lib/modules takes the place of what is mounted there otherwise." required:"yes" example:"/data"`
	HostPath       string      `json:"hostPath" help:"Path on the host. A relative one begins at the working directory." required:"yes" example:"./data"`
	ReadOnly       bool        `json:"readOnly" help:"The node cannot write to it."`
	SELinuxRelabel bool        `json:"selinuxRelabel" help:"Give the files an SELinux label of the node's own."`
	Propagation    Propagation `json:"propagation" help:"Whether mounts that are made below it later on one side show on the other. Empty: None." oneof:"None HostToContainer Bidirectional"`
}

// Ports that mean a choice.
const (
	// FreePort is chosen when the node is made, and stays the node's.
	FreePort = 0
	// EnginePort is chosen by the container engine, anew at every start.
	EnginePort = -1
)

// PortMapping is a port of the host that leads to a node.
type PortMapping struct {
	ContainerPort int      `json:"containerPort" help:"Port in the node." required:"yes" example:"30080"`
	HostPort      int      `json:"hostPort" help:"Port on the host. 0: a free one, which stays the same over restarts. -1: the container engine picks one at every start." example:"8080"`
	ListenAddress string   `json:"listenAddress" help:"Address of the host. Empty: all of IPv4, or of IPv6 in a cluster of IPv6 only." example:"127.0.0.1"`
	Protocol      Protocol `json:"protocol" help:"Protocol. Empty: TCP." oneof:"TCP UDP SCTP"`
}

// BuiltIn is the registry that clusters of a host share.
type BuiltIn struct {
	Enabled bool `json:"enabled" help:"Have it running. Images pushed to localhost:PORT on the host have the same name in the cluster."`
	Port    int  `json:"port" help:"Port on the host's loopback. 0: a free one."`
}
