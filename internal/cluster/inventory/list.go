package inventory

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/berthrun/berth/internal/cluster/config"
	"github.com/berthrun/berth/internal/cluster/plan"
	"github.com/berthrun/berth/internal/cluster/provider"
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

// Clusters returns the clusters of a provider, sorted by name.
func Clusters(ctx context.Context, p provider.Provider) ([]Summary, error) {
	all, err := AllNodes(ctx, p)
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

// Resolve returns the name of the cluster that a command works on: the given name, or without one
// the only cluster of the provider. A cluster may have its name from a file that the user no longer
// has at hand. Without a cluster it is config.DefaultName; the error is errs.Invalid when there are
// several.
func Resolve(ctx context.Context, p provider.Provider, name string) (string, error) {
	if name != "" {
		return name, nil
	}
	found, err := Clusters(ctx, p)
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
	return "", fmt.Errorf("%s has several clusters: %s; say which, by its name or with --name: %w", p.Name(), strings.Join(names, ", "), errs.Invalid)
}
