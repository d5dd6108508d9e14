// Package plan plans the containers of a cluster: a pure function of the cluster file and of the
// host's facts, in terms that every container engine has. It starts nothing.
package plan

import (
	"fmt"
	"maps"
	"net/netip"
	"path"

	"github.com/berthrun/berth/internal/cluster/config"
)

// Labels of containers. They include kind's, so that programs for kind's nodes find these; berth
// itself uses its own.
const (
	LabelCluster     = "run.berth.cluster"
	LabelRole        = "run.berth.role"
	LabelContext     = "run.berth.context" // of the kubeconfig; a deletion has no cluster file
	LabelPool        = "run.berth.pool"
	LabelDigest      = "run.berth.digest"
	LabelKindCluster = "io.x-k8s.kind.cluster"
	LabelKindRole    = "io.x-k8s.kind.role"
)

// APIPort is the port of the API inside of nodes and of the load balancer.
const APIPort = 6443

// DefaultNetwork is the network of the container engine that nodes are on. It has the name of
// kind's, because scripts connect registries and clients to it by that name.
const DefaultNetwork = "kind"

// Host has the facts of the host that a plan depends on.
type Host struct {
	// Engine is podman, docker, nerdctl or berth.
	Engine string
	// Network is the engine's network; empty is DefaultNetwork.
	Network string
	// Subnets are the CIDRs of that network. They are needed where a proxy is set.
	Subnets []string
	// Routes are the destinations of the host's own routes except the default ones; none if the
	// engine runs on another host. No plan depends on them.
	Routes []netip.Prefix
	// Env is the environment: proxies, and variables for nodes. An engine with proxies of its own
	// adds them first, if the environment has none.
	Env map[string]string
	// Helper is the image of the load balancer; empty is that of the first control plane.
	Helper string
}

// Plan is the containers of a cluster.
type Plan struct {
	Cluster string `json:"cluster"`
	// Context is the name of the cluster in kubeconfig files.
	Context string `json:"context"`
	Network string `json:"network"`
	// Endpoint is the API's host and port as nodes see it.
	Endpoint string `json:"endpoint"`
	// Containers are in the order of their creation: the load balancer, if there is one, then the
	// nodes in the order of the cluster file. The cluster begins with the first control plane.
	Containers []Container `json:"containers"`
}

// Container is one container. Each is detached, has a terminal, a cgroup namespace of
// its own, and its name as host name.
type Container struct {
	Name string `json:"name"`
	// Role is a role of the cluster file, config.BalancerRole, or RegistryRole.
	Role string `json:"role"`
	Pool string `json:"pool,omitempty"`
	// Image is the image of the cluster file. The load balancer has that of the first control
	// plane, and runs another command in it.
	Image      string            `json:"image"`
	Labels     map[string]string `json:"labels"`
	Env        map[string]string `json:"env"`
	Sysctls    map[string]string `json:"sysctls,omitempty"`
	Privileged bool              `json:"privileged"`
	Tmpfs      []string          `json:"tmpfs,omitempty"`
	// Volumes are created before the container and removed with it.
	Volumes []Volume `json:"volumes,omitempty"`
	Mounts  []Mount  `json:"mounts,omitempty"`
	Ports   []Port   `json:"ports,omitempty"`
}

// Volume is a volume of the engine that belongs to one container.
type Volume struct {
	Name   string `json:"name"`
	Target string `json:"target"`
	// Options are those of the mount.
	Options []string `json:"options"`
}

// Mount is a path of the host in a container.
type Mount struct {
	Source      string             `json:"source"`
	Target      string             `json:"target"`
	ReadOnly    bool               `json:"readOnly,omitempty"`
	Relabel     bool               `json:"relabel,omitempty"`
	Propagation config.Propagation `json:"propagation"`
}

// Port is a port of the host that leads to a container.
type Port struct {
	Listen string `json:"listen"`
	// Host is the port, config.FreePort until PickPorts, or config.EnginePort.
	Host      int             `json:"host"`
	Container int             `json:"container"`
	Protocol  config.Protocol `json:"protocol"`
	// Field is its path in the cluster file, for errors; "" if it is not in the file.
	Field string `json:"-"`
}

// ContextName is the name of a cluster in kubeconfig files. For a kind file it is kind's name,
// which existing scripts use; otherwise it differs from kind's.
func ContextName(c *config.Cluster) string {
	if c.FromKind {
		return "kind-" + c.Name
	}
	return "berth-" + c.Name
}

// Make plans a cluster.
func Make(c *config.Cluster, h Host) *Plan {
	p := &Plan{Cluster: c.Name, Context: ContextName(c), Network: h.Network}
	if p.Network == "" {
		p.Network = DefaultNetwork
	}
	shared := environment(c, h)
	if c.HasBalancer() {
		p.Containers = append(p.Containers, balancer(c, h.Helper, shared))
	}
	for i, n := range c.Nodes {
		p.Containers = append(p.Containers, node(c, n, i, h, shared))
	}
	p.Endpoint = fmt.Sprintf("%s:%d", p.entrance().Name, APIPort)
	for i := range p.Containers {
		p.Containers[i].label(c)
	}
	return p
}

// entrance is the container through which the API is reached.
func (p *Plan) entrance() Container {
	for _, c := range p.Containers {
		if c.Role == config.BalancerRole || c.Role == string(config.ControlPlane) {
			return c // the balancer comes first
		}
	}
	return Container{}
}

// Entrance is the container, and the port of it, through which the API is reached
// from the host.
func (p *Plan) Entrance() (Container, Port) {
	c := p.entrance()
	for _, port := range c.Ports {
		if port.Container == APIPort && port.Field == apiField {
			return c, port
		}
	}
	return c, Port{}
}

// apiField is the cluster file's field of the API's port.
const apiField = "networking.apiServerPort"

// IsAPI reports whether a port is the API's own, and not a mapping of the cluster file to the same
// container port: clients use the former, because the API's certificate has its address. Ports of
// control planes behind a load balancer are not in the cluster file.
func (p Port) IsAPI() bool {
	return p.Container == APIPort && p.Protocol == config.TCP && (p.Field == apiField || p.Field == "")
}

// balancer plans the container that balances the API over the control planes.
func balancer(c *config.Cluster, image string, shared map[string]string) Container {
	for _, n := range c.Nodes {
		if image == "" && n.Role == config.ControlPlane {
			image = n.Image
		}
	}
	return Container{
		Name: c.BalancerName(), Role: config.BalancerRole, Image: image,
		Env: maps.Clone(shared), Sysctls: sysctls(c),
		Ports: []Port{{
			Listen: c.Networking.APIServerAddress, Host: c.Networking.APIServerPort,
			Container: APIPort, Protocol: config.TCP, Field: apiField,
		}},
	}
}

// node plans the container of a node; i is its index in the cluster file.
func node(c *config.Cluster, n config.Node, i int, h Host, shared map[string]string) Container {
	made := Container{
		Name: c.ContainerName(n), Role: string(n.Role), Pool: n.Pool, Image: n.Image,
		// A container runtime in a container needs privileges: mounts, devices, all of /proc and
		// /sys.
		Privileged: true,
		Env:        maps.Clone(shared), Sysctls: sysctls(c),
	}
	made.storage(n)
	made.Ports = ports(c, n, i)
	if value, ok := h.Env["KIND_EXPERIMENTAL_CONTAINERD_SNAPSHOTTER"]; ok {
		made.Env["KIND_EXPERIMENTAL_CONTAINERD_SNAPSHOTTER"] = value
	}
	if n.Role == config.ControlPlane {
		made.Env["KUBECONFIG"] = "/etc/kubernetes/admin.conf"
	}
	return made
}

// storage plans the mounts of a node. A mount of the cluster file replaces a default one.
func (c *Container) storage(n config.Node) {
	taken := map[string]bool{}
	for _, m := range n.ExtraMounts {
		taken[path.Clean(m.ContainerPath)] = true
	}
	for _, target := range []string{"/tmp", "/run"} {
		if !taken[target] {
			c.Tmpfs = append(c.Tmpfs, target)
		}
	}
	if !taken["/var"] {
		// Images and pods on a volume: an overlay on the container's own overlay is refused, or
		// slow.
		c.Volumes = append(c.Volumes, Volume{Name: c.Name + "-var", Target: "/var", Options: []string{"suid", "exec", "dev"}})
	}
	if !taken["/lib/modules"] {
		c.Mounts = append(c.Mounts, Mount{Source: "/lib/modules", Target: "/lib/modules", ReadOnly: true, Propagation: config.PropagateNone})
	}
	for _, m := range n.ExtraMounts {
		c.Mounts = append(c.Mounts, Mount{
			Source: m.HostPath, Target: m.ContainerPath, ReadOnly: m.ReadOnly, Relabel: m.SELinuxRelabel, Propagation: m.Propagation,
		})
	}
}

// ports plans the ports of a node.
func ports(c *config.Cluster, n config.Node, i int) []Port {
	everywhere := "0.0.0.0"
	if c.Networking.IPFamily == config.IPv6 {
		everywhere = "::"
	}
	var all []Port
	for j, m := range n.ExtraPortMappings {
		field := fmt.Sprintf("nodes[%d].extraPortMappings[%d]", i, j)
		if n.Pool != "" {
			field = fmt.Sprintf("extraPortMappings[%d] of pool %s", j, n.Pool)
		}
		port := Port{Listen: m.ListenAddress, Host: m.HostPort, Container: m.ContainerPort, Protocol: m.Protocol, Field: field}
		if port.Listen == "" {
			port.Listen = everywhere
		}
		all = append(all, port)
	}
	if n.Role != config.ControlPlane {
		return all
	}
	api := Port{Listen: c.Networking.APIServerAddress, Host: c.Networking.APIServerPort, Container: APIPort, Protocol: config.TCP, Field: apiField}
	if c.HasBalancer() {
		// The balancer has the API's port; these are for this host only.
		api = Port{Listen: "127.0.0.1", Host: config.FreePort, Container: APIPort, Protocol: config.TCP}
		if c.Networking.IPFamily == config.IPv6 {
			api.Listen = "::1"
		}
	}
	return append(all, api)
}

// ipForward makes a node forward IPv4. A new network namespace begins with the host's setting, and
// plugins of CNI turn it on with a node's first pod: if the host's is off, a node without pods
// would drop packets to a service's port.
const ipForward = "net.ipv4.ip_forward"

// sysctls are those of a node's network namespace. Engines turn IPv6 off in containers.
func sysctls(c *config.Cluster) map[string]string {
	set := map[string]string{}
	if c.Networking.IPFamily != config.IPv6 {
		set[ipForward] = "1"
	}
	if c.Networking.HasIPv6() {
		set["net.ipv6.conf.all.disable_ipv6"] = "0"
		set["net.ipv6.conf.all.forwarding"] = "1"
	}
	return set
}

// label adds a container's labels.
func (c *Container) label(of *config.Cluster) {
	c.Labels = map[string]string{
		LabelCluster: of.Name, LabelRole: c.Role, LabelContext: ContextName(of),
		LabelKindCluster: of.Name, LabelKindRole: c.Role,
	}
	if c.Pool != "" {
		c.Labels[LabelPool] = c.Pool
	}
	c.Labels[LabelDigest] = c.digest()
}
