package arch

import (
	"slices"
	"testing"
)

// clusterLayers are the packages that create and change clusters, from the lowest to the highest.
// Each package may import those above it in this list, and none below it.
func clusterLayers() []string {
	return []string{
		"report",         // steps and warnings, as the user sees them
		"steps",          // runs a list of steps
		"config",         // the description
		"plan",           // the containers of a description
		"provider",       // makes containers
		"tunnel",         // connects to ports of containers
		"kubeadm",        // kubeadm's configuration
		"kubeapi",        // a client of the API
		"inventory",      // finds clusters and their containers
		"noderuntime",    // the container runtime of a node
		"kubeadm/runner", // runs kubeadm in a node
		"nodenet",        // load balancer and routes
		"addons",         // what is installed in a new cluster
		"changes",        // compares descriptions
		"registry",       // the registry that clusters share
		"images",         // loads images
		"logs",           // collects logs
		"",               // the verbs: create, apply, delete, start, stop
		"doctor",         // diagnoses
	}
}

func TestClusterLayers(t *testing.T) {
	const dir = "internal/cluster"
	layers := clusterLayers()
	path := func(layer string) string {
		if layer == "" {
			return dir
		}
		return dir + "/" + layer
	}
	imports := load(t)
	for i, from := range layers {
		if _, exists := imports[path(from)]; !exists {
			t.Errorf("%s is in the list of layers and does not exist", path(from))
		}
		for _, to := range layers[i+1:] {
			if slices.Contains(imports[path(from)], path(to)) {
				t.Errorf("%s imports %s, which is a higher layer", path(from), path(to))
			}
		}
	}
}
