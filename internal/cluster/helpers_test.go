package cluster

import (
	"path/filepath"

	"github.com/berthrun/berth/internal/cluster/clustertest"
	"github.com/berthrun/berth/internal/cluster/kubeconfig"
)

// clusters are those of the fake, with a kubeconfig file of their own.
func clusters(f *clustertest.Fake) (c *Clusters, steps *[]string) {
	reporter, steps := f.Reporter()
	return &Clusters{Provider: f, Kubeconfig: kubeconfig.Files{filepath.Join(f.T.TempDir(), "config")}, Reporter: reporter}, steps
}
