package cluster

import (
	"time"

	"k8s.io/client-go/tools/clientcmd/api"

	"github.com/berthrun/berth/internal/cluster/changes"
	"github.com/berthrun/berth/internal/cluster/config"
	"github.com/berthrun/berth/internal/cluster/registry"
	"github.com/berthrun/berth/internal/cluster/steps"
)

// createRun is one run of Create.
type createRun struct {
	builder
	retain bool
	// containersMade: this run has created the nodes' containers. registryMade lists its parts of
	// the registry.
	containersMade bool
	registryMade   registry.Created
	// init is `kubeadm init`.
	init *steps.Job
	// admin is the kubeconfig of the cluster, kubeconfigFile the file that has it.
	admin          *api.Config
	kubeconfigFile string
}

// ApplyOptions are how a cluster is changed.
type ApplyOptions struct {
	// Agree gets the changes before anything is done. Its error ends the operation. nil agrees.
	Agree func(changes.Changes) error
	// Drain is how long the drain of a node that is removed may take; 0 does not drain.
	Drain time.Duration
	// Wait is how long all nodes may take to be Ready; 0 waits for none.
	Wait time.Duration
}

// applyRun is one run of Apply, AddNodes or RemoveNodes.
type applyRun struct {
	builder
	ApplyOptions
	changes.Changes
	// before is the cluster file that the cluster has, context its name in kubeconfig files.
	before  *config.Cluster
	context string
	// joining are nodes that exist and have not joined. keepVolume are nodes whose volumes stay
	// while their containers are created again.
	joining, keepVolume map[string]bool
}

// undoTimeout bounds the removal of what a failed run has created.
const undoTimeout = 2 * time.Minute
