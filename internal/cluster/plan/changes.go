package plan

import "slices"

// Changes are what makes the containers that exist those of a plan.
type Changes struct {
	// Add and Replace are indexes of Plan.Containers, in its order. A container that
	// is replaced exists, but not as planned.
	Add, Replace []int
	// Remove are names of containers that are not planned any more, sorted.
	Remove []string
}

// Against compares a plan with the containers that exist: their names and the values of
// their LabelDigest. It says nothing of Plan.Endpoint, which changes when the first load
// balancer comes or the last goes, and which is in certificates of the cluster.
func (p *Plan) Against(existing map[string]string) Changes {
	var c Changes
	planned := map[string]bool{}
	for i, container := range p.Containers {
		planned[container.Name] = true
		digest, found := existing[container.Name]
		switch {
		case !found:
			c.Add = append(c.Add, i)
		case digest != container.Labels[LabelDigest]:
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
