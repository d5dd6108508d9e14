package config

import (
	"fmt"
	"slices"

	"github.com/berthrun/berth/internal/registries"
)

// BalancerRole is the role of the container that balances the API over several control planes. No
// cluster file may give it.
const BalancerRole = "external-load-balancer"

// part is an entry of nodes or pools.
type part struct {
	*NodeSettings
	at         string
	registries *[]registries.Registry
	pool       *Pool // nil for an entry of nodes
}

// parts are the entries that describe nodes.
func (c *Cluster) parts() []part {
	var all []part
	for i := range c.Nodes {
		n := &c.Nodes[i]
		all = append(all, part{&n.NodeSettings, fmt.Sprintf("nodes[%d]", i), &n.Registries, nil})
	}
	for i := range c.Pools {
		p := &c.Pools[i]
		all = append(all, part{&p.NodeSettings, fmt.Sprintf("pools[%d]", i), &p.Registries, p})
	}
	return all
}

// Size is how many nodes a pool has.
func (p Pool) Size() int {
	if p.Count == nil {
		return 1
	}
	return *p.Count
}

// numbered is a name with kind's number: none for the first.
func numbered(name string, number int) string {
	if number == 1 {
		return name
	}
	return fmt.Sprintf("%s%d", name, number)
}

// nameNodes names the nodes that have no name after their role, in their order.
func (c *Cluster) nameNodes() {
	count := map[Role]int{}
	for i := range c.Nodes {
		if n := &c.Nodes[i]; n.Name == "" {
			count[n.Role]++
			n.Name = numbered(string(n.Role), count[n.Role])
		}
	}
}

// expand puts the pools' nodes after the others, and merges registries into each.
func (c *Cluster) expand() {
	for _, p := range c.Pools {
		for i := range p.Size() {
			c.Nodes = append(c.Nodes, Node{
				Name: numbered(p.Name, i+1), NodeSettings: p.NodeSettings, Registries: p.Registries, Pool: p.Name,
			})
		}
	}
	for i := range c.Nodes {
		n := &c.Nodes[i]
		own := slices.Clone(n.Registries)
		for _, reg := range c.Registries {
			if !slices.ContainsFunc(own, func(o registries.Registry) bool { return o.Host == reg.Host }) {
				own = append(own, reg)
			}
		}
		n.Registries = own
	}
}

// ContainerName is the name of a node's container, its host and its Kubernetes node.
func (c *Cluster) ContainerName(n Node) string { return c.Name + "-" + n.Name }

// BalancerName is the name of the load balancer's container.
func (c *Cluster) BalancerName() string { return c.Name + "-" + BalancerRole }

// RegistryName is the name of the registry's container, which clusters share.
const RegistryName = "berth-registry"

// ControlPlanes counts the control planes.
func (c *Cluster) ControlPlanes() int {
	count := 0
	for _, n := range c.Nodes {
		if n.Role == ControlPlane {
			count++
		}
	}
	return count
}

// HasBalancer reports whether the control planes have a load balancer.
func (c *Cluster) HasBalancer() bool { return c.Balanced || c.ControlPlanes() > 1 }
