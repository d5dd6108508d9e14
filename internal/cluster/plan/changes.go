package plan

import "slices"

// Changes are the changes from the existing containers to those of a plan.
type Changes struct {
	// Add and Replace are indexes of Plan.Containers, in its order. A container that
	// is replaced exists, but not as planned.
	Add, Replace []int
	// Remove are names of containers that are no longer planned, sorted.
	Remove []string
}

// Against compares a plan with the containers that exist: their names and the values of their
// LabelDigest. before is the plan of the cluster file that the cluster was created from. Against
// does not compare Plan.Endpoint, which changes when the load balancer is added or removed, and
// which is in certificates of the cluster.
func (p *Plan) Against(existing map[string]string, before *Plan) Changes {
	var c Changes
	planned := map[string]bool{}
	for i, container := range p.Containers {
		planned[container.Name] = true
		digest, found := existing[container.Name]
		switch {
		case !found:
			c.Add = append(c.Add, i)
		case !container.has(digest, before.find(container.Name)):
			c.Replace = append(c.Replace, i)
		}
	}
	for name := range existing {
		if !planned[name] {
			c.Remove = append(c.Remove, name)
		}
	}
	slices.Sort(c.Remove)
	return c
}

// find returns a container by its name, nil if there is none.
func (p *Plan) find(name string) *Container {
	if p == nil {
		return nil
	}
	for i := range p.Containers {
		if p.Containers[i].Name == name {
			return &p.Containers[i]
		}
	}
	return nil
}

// Differences returns what this plan changes about a container of another plan; nothing if either
// has no container of the name.
func (p *Plan) Differences(before *Plan, name string) []Difference {
	a, b := before.find(name), p.find(name)
	if a == nil || b == nil {
		return nil
	}
	return Differences(*a, *b)
}
