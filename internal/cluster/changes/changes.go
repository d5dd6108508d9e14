// Package changes compares a cluster with another cluster file, and lists the changes that make the
// cluster match. It is pure: it calls no provider and changes nothing.
package changes

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

// Changes has the names of the containers to change.
type Changes struct {
	// Add are new. Remove are drained and removed. Replace are removed and created again. Recreate
	// are created again with their old volumes.
	Add, Remove, Replace, Recreate []string
	// Relabel get other labels in Kubernetes, Mirror other mirrors of registries.
	Relabel, Mirror []string
	// Reasons has, by name, why a container is created again.
	Reasons map[string]string
}

// Created returns the containers that are created, whether they exist now or not.
func (c Changes) Created() []string { return slices.Concat(c.Add, c.Recreate, c.Replace) }

// None reports whether there is nothing to do.
func (c Changes) None() bool { return reflect.DeepEqual(c, Changes{}) }

// Lines describes the changes for people, in the order in which they are made.
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
		{c.Recreate, "%s: its container is created again, and its disk stays"},
		{c.Replace, "%s: is created again, and loses its disk"},
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

// Comparison is the input of Compare.
type Comparison struct {
	// Before is the cluster file that the cluster was created from, After the new one.
	Before, After *config.Cluster
	// BeforePlan and AfterPlan are their plans on the same host.
	BeforePlan, AfterPlan *plan.Plan
	// Existing are the containers of the cluster.
	Existing []provider.Node
}

// Compare returns the changes that make the cluster match the new cluster file. Unless whole, it
// only adds and removes nodes, and ignores other differences. The error is errs.Unsupported for a
// change that an existing cluster cannot have.
func Compare(of Comparison, whole bool) (Changes, error) {
	before, after, p, existing := of.Before, of.After, of.AfterPlan, of.Existing
	digests := map[string]string{}
	for _, n := range existing {
		digests[n.Name] = n.Labels[plan.LabelDigest]
	}
	found := p.Against(digests, of.BeforePlan)
	c := Changes{Remove: found.Remove}
	for _, i := range found.Add {
		c.Add = append(c.Add, p.Containers[i].Name)
	}
	// Nodes whose containers somebody has removed already.
	for _, n := range before.Nodes {
		name := before.ContainerName(n)
		if _, exists := digests[name]; !exists && RoleOf(after, name) == "" {
			c.Remove = append(c.Remove, name)
		}
	}
	if !whole {
		return c, survivable(c, existing, after)
	}
	if err := immutableFields(before, after); err != nil {
		return Changes{}, err
	}
	for _, i := range found.Replace {
		of.recreate(&c, p.Containers[i].Name)
	}
	for _, n := range after.Nodes {
		name := after.ContainerName(n)
		old, found := former(before, n)
		if !found || slices.Contains(c.Created(), name) {
			continue
		}
		if field := differingPatches(old, n); field != "" {
			c.addWithReason(&c.Replace, name, field+" differ")
			continue
		}
		if !maps.Equal(old.Labels, n.Labels) {
			c.Relabel = append(c.Relabel, name)
		}
		if !same(old.Registries, n.Registries) {
			c.Mirror = append(c.Mirror, name)
		}
	}
	return c, survivable(c, existing, after)
}

// recreate adds a container that differs from its plan to Replace or Recreate, with the reasons.
func (of Comparison) recreate(c *Changes, name string) {
	differences := of.AfterPlan.Differences(of.BeforePlan, name)
	var reasons []string
	for _, d := range differences {
		reasons = append(reasons, d.String())
	}
	for _, n := range of.After.Nodes {
		if old, found := former(of.Before, n); found && of.After.ContainerName(n) == name && differingPatches(old, n) != "" {
			reasons = append(reasons, differingPatches(old, n)+" differ")
		}
	}
	if len(reasons) == 0 {
		reasons = append(reasons, "its container differs from the cluster's stored cluster file; an earlier change may have been interrupted")
	}
	to := &c.Replace
	if len(differences) > 0 && KeepsVolume(of.Before, of.After, differences, name) {
		to = &c.Recreate
	}
	c.addWithReason(to, name, strings.Join(reasons, "; "))
}

// addWithReason adds a container to one of the lists of c.
func (c *Changes) addWithReason(to *[]string, name, reason string) {
	*to = append(*to, name)
	if c.Reasons == nil {
		c.Reasons = map[string]string{}
	}
	c.Reasons[name] = reason
}

// KeepsVolume reports whether a node keeps its volume when its container is created again: only a
// worker that was a worker before, and differs in host ports at most.
func KeepsVolume(before, after *config.Cluster, differences []plan.Difference, name string) bool {
	for _, d := range differences {
		if d.Field != plan.PortsField {
			return false
		}
	}
	for _, n := range after.Nodes {
		if old, found := former(before, n); found && after.ContainerName(n) == name {
			return n.Role == config.Worker && differingPatches(old, n) == ""
		}
	}
	return false
}

// RoleOf returns the role of a node in a cluster file, by the name of its container; "" if the
// cluster file does not have it.
func RoleOf(c *config.Cluster, name string) config.Role {
	for _, n := range c.Nodes {
		if c.ContainerName(n) == name {
			return n.Role
		}
	}
	return ""
}

// former returns the node of the same name in another cluster file.
func former(before *config.Cluster, n config.Node) (config.Node, bool) {
	i := slices.IndexFunc(before.Nodes, func(o config.Node) bool { return o.Name == n.Name })
	if i < 0 {
		return config.Node{}, false
	}
	return before.Nodes[i], true
}

// differingPatches returns the name of the field of a node's own kubeadm patches that differs; ""
// where none does.
func differingPatches(old, n config.Node) string {
	switch {
	case !same(old.KubeadmConfigPatches, n.KubeadmConfigPatches):
		return "kubeadmConfigPatches"
	case !same(old.KubeadmConfigPatchesJSON6902, n.KubeadmConfigPatchesJSON6902):
		return "kubeadmConfigPatchesJSON6902"
	}
	return ""
}

// same compares values of a cluster file, in which an empty list equals none.
func same(a, b any) bool { return reflect.DeepEqual(plain(a), plain(b)) }

// plain is a value of a cluster file as it is written, without empty parts.
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

// full leaves out empty lists and mappings, at any depth; it is nil for an empty value.
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

// immutableFields refuses differences in fields that belong to the cluster as a whole.
func immutableFields(before, after *config.Cluster) error {
	// These are compared node by node, or container by container.
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

// fields are the values of a cluster file by their names; those of networking one by one.
func fields(c *config.Cluster) map[string]any {
	all, _ := plain(c).(map[string]any) // every cluster file has some
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

// survivable refuses changes that would leave the cluster without a control plane that has its
// data.
func survivable(c Changes, existing []provider.Node, after *config.Cluster) error {
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
		return fmt.Errorf("%s: the cluster's only control plane cannot be removed or created again: it has all data of the cluster; delete the cluster, and create it: %w", strings.Join(going, ", "), errs.Unsupported)
	case len(going) > 0 && stay+added == 0 && left < 2:
		return fmt.Errorf("%s: the cluster's only control plane cannot be created again: it has all data of the cluster; add another first: %w", strings.Join(going, ", "), errs.Unsupported)
	}
	return nil
}
