package cluster

import (
	"context"
	"slices"
	"strings"

	"github.com/berthrun/berth/internal/cluster/plan"
)

// Summary is a cluster that exists.
type Summary struct {
	Name string
	// Nodes are its containers, Running those of them that run.
	Nodes, Running int
	// Context is its name in kubeconfig files.
	Context string
}

// List tells the clusters there are, sorted by name.
func (c *Clusters) List(ctx context.Context) ([]Summary, error) {
	all, err := c.Engine.List(ctx, "")
	if err != nil {
		return nil, err
	}
	found := []Summary{} // none is an empty list to programs, too
	for _, n := range all {
		name := n.Labels[plan.LabelCluster]
		i := slices.IndexFunc(found, func(s Summary) bool { return s.Name == name })
		if i < 0 {
			i = len(found)
			found = append(found, Summary{Name: name, Context: n.Labels[plan.LabelContext]})
		}
		found[i].Nodes++
		if n.Running {
			found[i].Running++
		}
	}
	slices.SortFunc(found, func(a, b Summary) int { return strings.Compare(a.Name, b.Name) })
	return found, nil
}
