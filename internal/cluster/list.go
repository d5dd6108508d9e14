package cluster

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/berthrun/berth/internal/cluster/config"
	"github.com/berthrun/berth/internal/cluster/plan"
	"github.com/berthrun/berth/internal/errs"
)

// Summary is a cluster that exists.
type Summary struct {
	Name string `json:"name"`
	// Nodes are its containers, Running those of them that run.
	Nodes   int `json:"nodes"`
	Running int `json:"running"`
	// Context is its name in kubeconfig files.
	Context string `json:"context"`
}

// List tells the clusters there are, sorted by name.
func (c *Clusters) List(ctx context.Context) ([]Summary, error) {
	all, err := c.AllNodes(ctx)
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

// Meant is the cluster that is meant by a name, or by none: the only one that the engine has. A
// cluster may have got its name from a file, which is not at hand any more. It is errs.Invalid
// that there are several; with none it is the name that a description without one has.
func (c *Clusters) Meant(ctx context.Context, name string) (string, error) {
	if name != "" {
		return name, nil
	}
	found, err := c.List(ctx)
	if err != nil {
		return "", err
	}
	switch len(found) {
	case 0:
		return config.DefaultName, nil
	case 1:
		return found[0].Name, nil
	}
	var names []string
	for _, summary := range found {
		names = append(names, summary.Name)
	}
	return "", fmt.Errorf("%s has several clusters: %s; say which, by its name or with --name: %w", c.Provider.Name(), strings.Join(names, ", "), errs.Invalid)
}
