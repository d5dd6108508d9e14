package cluster

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"

	"github.com/berthrun/berth/internal/cluster/config"
	"github.com/berthrun/berth/internal/cluster/inventory"
	"github.com/berthrun/berth/internal/cluster/plan"
	"github.com/berthrun/berth/internal/cluster/provider"
	"github.com/berthrun/berth/internal/errs"
)

// Changes are what makes a cluster one of another description: names of containers.
type Changes struct {
	// Add comes, Remove goes, Replace is made anew, Recreate keeps its disk meanwhile.
	Add, Remove, Replace, Recreate []string
	// Relabel gets other labels in Kubernetes, Mirror asks registries elsewhere.
	Relabel, Mirror []string
	// Reasons say, by name, why a container is made anew.
	Reasons map[string]string
}

// coming are the containers that are made, whether others of their names go or not.
func (c Changes) coming() []string { return slices.Concat(c.Add, c.Recreate, c.Replace) }

// None tells that there is nothing to do.
func (c Changes) None() bool { return reflect.DeepEqual(c, Changes{}) }

// Lines say it to people, in the order in which it is done.
func (c Changes) Lines() []string {
	var lines []string
	for _, part := range []struct {
		names []string
		text  string
	}{
		{c.Mirror, "%s: gets other mirrors of registries"},
		{c.Relabel, "%s: gets other labels"},
		{c.Add, "%s: is added"},
		{c.Remove, "%s: is drained and removed, with what is on its disk"},
		{c.Recreate, "%s: its container is made anew, and what is on its disk stays"},
		{c.Replace, "%s: is made anew, and loses what is on its disk"},
	} {
		for _, name := range part.names {
			line := fmt.Sprintf(part.text, name)
			if reason := c.Reasons[name]; reason != "" {
				line += ": " + reason
			}
			lines = append(lines, line)
		}
	}
	return lines
}

// comparison is what a cluster was described as and what it is to be, with the plans of both, and the
// containers that it has.
type comparison struct {
	before, after         *config.Cluster
	beforePlan, afterPlan *plan.Plan
	existing              []provider.Node
}

// compare says what makes containers, made after a description, those of another one and its
// plan. Unless whole, nodes only come and go: what is otherwise about the others is left.
func compare(of comparison, whole bool) (Changes, error) {
	before, after, p, existing := of.before, of.after, of.afterPlan, of.existing
	digests := map[string]string{}
	for _, n := range existing {
		digests[n.Name] = n.Labels[plan.LabelDigest]
	}
	found := p.Against(digests, of.beforePlan)
	c := Changes{Remove: found.Remove}
	for _, i := range found.Add {
		c.Add = append(c.Add, p.Containers[i].Name)
	}
	// Nodes whose containers somebody has removed already.
	for _, n := range before.Nodes {
		name := before.ContainerName(n)
		if _, exists := digests[name]; !exists && known(after, name) == "" {
			c.Remove = append(c.Remove, name)
		}
	}
	if !whole {
		return c, possible(c, existing, after)
	}
	if err := unchangeable(before, after); err != nil {
		return Changes{}, err
	}
	for _, i := range found.Replace {
		of.remake(&c, p.Containers[i].Name)
	}
	for _, n := range after.Nodes {
		name := after.ContainerName(n)
		old, found := former(before, n)
		if !found || slices.Contains(c.coming(), name) {
			continue
		}
		if field := patched(old, n); field != "" {
			c.because(&c.Replace, name, field+" differ")
			continue
		}
		if !maps.Equal(old.Labels, n.Labels) {
			c.Relabel = append(c.Relabel, name)
		}
		if !same(old.Registries, n.Registries) {
			c.Mirror = append(c.Mirror, name)
		}
	}
	return c, possible(c, existing, after)
}

// remake decides how a container is made anew that differs from the plan, and says why.
func (of comparison) remake(c *Changes, name string) {
	differences := of.afterPlan.Differences(of.beforePlan, name)
	var reasons []string
	for _, d := range differences {
		reasons = append(reasons, d.String())
	}
	for _, n := range of.after.Nodes {
		if old, found := former(of.before, n); found && of.after.ContainerName(n) == name && patched(old, n) != "" {
			reasons = append(reasons, patched(old, n)+" differ")
		}
	}
	if len(reasons) == 0 {
		reasons = append(reasons, "its container is not the one that the cluster's description has; an earlier change may have ended half-way")
	}
	to := &c.Replace
	if len(differences) > 0 && keeps(of.before, of.after, differences, name) {
		to = &c.Recreate
	}
	c.because(to, name, strings.Join(reasons, "; "))
}

// because adds a container to some, with the reason.
func (c *Changes) because(to *[]string, name, reason string) {
	*to = append(*to, name)
	if c.Reasons == nil {
		c.Reasons = map[string]string{}
	}
	c.Reasons[name] = reason
}

// keeps reports whether a node keeps its volume when its container is made anew: a worker that was
// one before, and differs in ports of the host at most.
func keeps(before, after *config.Cluster, differences []plan.Difference, name string) bool {
	for _, d := range differences {
		if d.Field != plan.PortsField {
			return false
		}
	}
	for _, n := range after.Nodes {
		if old, found := former(before, n); found && after.ContainerName(n) == name {
			return n.Role == config.Worker && patched(old, n) == ""
		}
	}
	return false
}

// former is a node as another description has it.
func former(before *config.Cluster, n config.Node) (config.Node, bool) {
	i := slices.IndexFunc(before.Nodes, func(o config.Node) bool { return o.Name == n.Name })
	if i < 0 {
		return config.Node{}, false
	}
	return before.Nodes[i], true
}

// patched is the field of a node's own kubeadm patches that differs, "" where none does.
func patched(old, n config.Node) string {
	switch {
	case !same(old.KubeadmConfigPatches, n.KubeadmConfigPatches):
		return "kubeadmConfigPatches"
	case !same(old.KubeadmConfigPatchesJSON6902, n.KubeadmConfigPatchesJSON6902):
		return "kubeadmConfigPatchesJSON6902"
	}
	return ""
}

// same compares values of a description, in which an empty list is as good as none.
func same(a, b any) bool { return reflect.DeepEqual(plain(a), plain(b)) }

// plain is a value of a description as its file has it, without what is empty.
func plain(value any) any {
	text, err := json.Marshal(value)
	if err != nil {
		return value
	}
	var read any
	if err := json.Unmarshal(text, &read); err != nil {
		return value
	}
	return full(read)
}

// full leaves out empty lists and mappings, at any depth; nil is what is empty itself.
func full(value any) any {
	switch value := value.(type) {
	case map[string]any:
		for key, inner := range value {
			if inner = full(inner); inner == nil {
				delete(value, key)
			} else {
				value[key] = inner
			}
		}
		if len(value) == 0 {
			return nil
		}
	case []any:
		if len(value) == 0 {
			return nil
		}
		for i := range value {
			value[i] = full(value[i])
		}
	}
	return value
}

// unchangeable names what is otherwise in a description and belongs to the cluster as a whole.
func unchangeable(before, after *config.Cluster) error {
	// What is compared node by node, or container by container.
	part := []string{"apiVersion", "kind", "name", "nodes", "pools", "registries", "networking.apiServerPort", "networking.dnsSearch"}
	a, b := fields(before), fields(after)
	var all []error
	for _, field := range slices.Sorted(maps.Keys(merged(a, b))) {
		if slices.Contains(part, field) || reflect.DeepEqual(a[field], b[field]) {
			continue
		}
		fix := "delete it, and create it with the new value"
		if field == "registry" {
			fix = "berth cluster registry start gives every cluster one, and registry delete takes it away"
		}
		all = append(all, fmt.Errorf("%s: cannot be changed in a cluster that exists; %s: %w", field, fix, errs.Unsupported))
	}
	return errors.Join(all...)
}

// fields are the values of a description by their names; those of networking one by one.
func fields(c *config.Cluster) map[string]any {
	all, _ := plain(c).(map[string]any) // every description has some
	net, _ := all["networking"].(map[string]any)
	delete(all, "networking")
	for key, value := range net {
		all["networking."+key] = value
	}
	return all
}

func merged(a, b map[string]any) map[string]any {
	all := maps.Clone(a)
	maps.Copy(all, b)
	return all
}

// possible refuses changes that a cluster does not survive.
func possible(c Changes, existing []provider.Node, after *config.Cluster) error {
	_, balanced := inventory.Balancer(existing)
	if !balanced && after.ControlPlanes() > 1 {
		return fmt.Errorf("nodes: the cluster was made with one control plane, whose address is in all certificates and kubeconfig files; several need a cluster that has had a load balancer from the start: delete it, and create it with them: %w", errs.Unsupported)
	}
	left, stay := 0, 0
	var going []string
	for _, n := range existing {
		if inventory.Role(n) != config.ControlPlane {
			continue
		}
		switch {
		case slices.Contains(c.Remove, n.Name), slices.Contains(c.Replace, n.Name) && !balanced:
			going = append(going, n.Name)
		case slices.Contains(c.Replace, n.Name):
			left++
			going = append(going, n.Name)
		default:
			left++
			stay++
		}
	}
	added := 0
	for _, name := range c.Add {
		if slices.ContainsFunc(after.Nodes, func(n config.Node) bool { return after.ContainerName(n) == name && n.Role == config.ControlPlane }) {
			added++
		}
	}
	switch {
	case !balanced && stay == 0, balanced && left+added == 0:
		return fmt.Errorf("%s: the cluster's only control plane cannot go or be made anew: all that the cluster knows is on it; delete the cluster, and create it: %w", strings.Join(going, ", "), errs.Unsupported)
	case len(going) > 0 && stay+added == 0 && left < 2:
		return fmt.Errorf("%s: the cluster's only control plane cannot be made anew: all that the cluster knows is on it; add another first: %w", strings.Join(going, ", "), errs.Unsupported)
	}
	return nil
}
