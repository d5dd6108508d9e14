package clustertest

import (
	"testing"

	"github.com/berthrun/berth/internal/cluster/config"
	"github.com/berthrun/berth/internal/cluster/plan"
	"github.com/berthrun/berth/internal/cluster/provider"
)

// Describe reads the cluster file of a cluster called dev.
func Describe(t *testing.T, text string) *config.Cluster {
	t.Helper()
	c, err := config.Load("f", []byte("apiVersion: berth.run/v1alpha1\nkind: Cluster\nname: dev\n"+text), config.Options{})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// MakeContainers makes the containers of a cluster in which nothing has been set up.
func (f *Fake) MakeContainers(c *config.Cluster) {
	f.T.Helper()
	request := provider.Request{Network: provider.Network{Name: plan.DefaultNetwork}}
	for _, container := range plan.Make(c, f.PlanHost(request.Network)).Containers {
		request.Specs = append(request.Specs, provider.Spec{Container: container})
	}
	if err := f.Create(f.T.Context(), request); err != nil {
		f.T.Fatal(err)
	}
	f.Ran, f.Calls = nil, 0
}
