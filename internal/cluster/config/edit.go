package config

import (
	"fmt"
	"slices"
	"strings"

	"github.com/berthrun/berth/internal/errs"
)

// Addition is nodes that are added to a cluster.
type Addition struct {
	// Count is how many; all are alike.
	Count int
	// Role is their role; "" is a worker.
	Role Role
	// Pool adds them to a pool, whose role and image they get.
	Pool string
	// Name follows the cluster's name, with a number from the second node on; "" is the role, with
	// the next free number.
	Name string
	// Image is their image; "" is that of the first node of their role, or of the first node.
	Image string
	// Labels are those in Kubernetes.
	Labels map[string]string
}

// With is a cluster file, as Load returned it, with more nodes.
func (c *Cluster) With(a Addition) (*Cluster, error) {
	if a.Count < 1 || a.Count > maxPool {
		return nil, fmt.Errorf("%d nodes: want 1 to %d: %w", a.Count, maxPool, errs.Invalid)
	}
	edited := c.editable()
	if a.Pool == "" {
		edited.Nodes = append(edited.Nodes, c.additions(a)...)
		return edited.settled()
	}
	if a.Role != "" || a.Name != "" || a.Image != "" || len(a.Labels) > 0 {
		return nil, fmt.Errorf("nodes of the pool %s are like its others: role, name, image and labels cannot be said: %w", a.Pool, errs.Invalid)
	}
	i := slices.IndexFunc(edited.Pools, func(p Pool) bool { return p.Name == a.Pool })
	if i < 0 {
		return nil, fmt.Errorf("the cluster %s has no pool %q: %w", c.Name, a.Pool, errs.NotFound)
	}
	edited.resize(i, edited.Pools[i].Size()+a.Count)
	return edited.settled()
}

// additions returns nodes outside of pools.
func (c *Cluster) additions(a Addition) []Node {
	role := a.Role
	if role == "" {
		role = Worker
	}
	image := a.Image
	for _, n := range c.Nodes {
		if image == "" && n.Role == role {
			image = n.Image
		}
	}
	if image == "" && len(c.Nodes) > 0 {
		image = c.Nodes[0].Image
	}
	name := a.Name
	if name == "" {
		name = string(role)
	}
	var all []Node
	for number := 1; len(all) < a.Count; number++ {
		n := Node{Name: numbered(name, number), NodeSettings: NodeSettings{Role: role, Image: image, Labels: a.Labels}}
		taken := slices.ContainsFunc(c.Nodes, func(o Node) bool { return o.Name == n.Name })
		if taken && a.Name == "" {
			continue
		}
		// The checks report a requested name that is taken.
		all = append(all, n)
	}
	return all
}

// Without is a cluster file without some of its nodes, given by the names of their containers.
func (c *Cluster) Without(names []string) (*Cluster, error) {
	edited := c.editable()
	for _, name := range names {
		i := slices.IndexFunc(c.Nodes, func(n Node) bool { return c.ContainerName(n) == name })
		if i < 0 {
			return nil, fmt.Errorf("unknown node: %q: %w", name, errs.NotFound)
		}
		if pool := c.Nodes[i].Pool; pool != "" {
			if err := c.shrinks(pool, names); err != nil {
				return nil, err
			}
			p := slices.IndexFunc(edited.Pools, func(p Pool) bool { return p.Name == pool })
			edited.resize(p, edited.Pools[p].Size()-1)
			continue
		}
		edited.Nodes = slices.DeleteFunc(edited.Nodes, func(n Node) bool { return n.Name == c.Nodes[i].Name })
	}
	if len(edited.Nodes) == 0 && !slices.ContainsFunc(edited.Pools, func(p Pool) bool { return p.Role == ControlPlane && p.Size() > 0 }) {
		return nil, fmt.Errorf("the cluster %s would have no node left; berth cluster delete --name %s removes it: %w", c.Name, c.Name, errs.Invalid)
	}
	return edited.settled()
}

// shrinks checks that the removed nodes of a pool are its last ones: otherwise the numbers of the
// others would change.
func (c *Cluster) shrinks(pool string, names []string) error {
	var members []string
	for _, n := range c.Nodes {
		if n.Pool == pool {
			members = append(members, c.ContainerName(n))
		}
	}
	going := 0
	for _, m := range members {
		if slices.Contains(names, m) {
			going++
		}
	}
	last := members[len(members)-going:]
	for _, m := range last {
		if !slices.Contains(names, m) {
			return fmt.Errorf("a pool loses its last nodes: of the pool %s remove %s: %w", pool, strings.Join(last, ", "), errs.Invalid)
		}
	}
	return nil
}

// editable is a copy without what Load adds: nodes of pools.
func (c *Cluster) editable() *Cluster {
	edited := *c
	edited.Nodes = slices.DeleteFunc(slices.Clone(c.Nodes), func(n Node) bool { return n.Pool != "" })
	edited.Pools = slices.Clone(c.Pools)
	return &edited
}

func (c *Cluster) resize(pool, count int) { c.Pools[pool].Count = &count }

// settled is an edited cluster file as Load returns it, after all checks.
func (c *Cluster) settled() (*Cluster, error) {
	text, err := Render(c)
	if err != nil {
		return nil, err
	}
	loaded, err := Load("the cluster "+c.Name, text, Options{Name: c.Name})
	if err != nil {
		return nil, err
	}
	loaded.FromKind, loaded.Balanced = c.FromKind, c.Balanced
	return loaded, nil
}
