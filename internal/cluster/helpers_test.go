package cluster

import (
	"path/filepath"

	"github.com/berthrun/berth/internal/cluster/clustertest"
	"github.com/berthrun/berth/internal/cluster/kubeconfig"
)

// clusters returns the clusters of the fake, with a separate kubeconfig file.
func clusters(f *clustertest.Fake) (c *Clusters, steps *[]string) {
	reporter, steps := f.Reporter()
	return &Clusters{Provider: f, Kubeconfig: kubeconfig.Files{filepath.Join(f.T.TempDir(), "config")}, Reporter: reporter}, steps
}
