// Package runner runs kubeadm in a node. When a run fails, its error has the reason: what the
// kubelet, the container runtime and crashed parts of the control plane have logged. It ends a run
// early when a part of the control plane crashes again and again.
package runner

import (
	"context"
	"errors"
	"strings"
	"time"

	"github.com/berthrun/berth/internal/cluster/noderuntime"
	"github.com/berthrun/berth/internal/cluster/provider"
)

// Runner runs commands in the nodes of one cluster.
type Runner struct {
	Provider provider.Provider
	// Cluster is the name of the cluster.
	Cluster string
	// WatchPause is how often Run asks a node for crashes; 0 is the default.
	WatchPause time.Duration
}

// Run runs a command of kubeadm, of one word or more, with the configuration of the node. The error
// of `init` and `join` is errs.State when a part of the control plane has crashed twice.
func (r Runner) Run(ctx context.Context, node string, runtime noderuntime.Runtime, verb string, flags ...string) error {
	args := append([]string{"kubeadm"}, strings.Fields(verb)...)
	args = append(append(args, "--config="+runtime.KubeadmFile), flags...)
	run := func(ctx context.Context) error { return r.Provider.Exec(ctx, node, provider.Command{Args: args}) }
	if verb == "init" || verb == "join" {
		if err := r.watched(ctx, node, run); err != nil {
			if seen := (*crash)(nil); errors.As(err, &seen) {
				return err // it has the reason already
			}
			return r.Explain(ctx, node, runtime, err)
		}
		return nil
	}
	if err := run(ctx); err != nil {
		return r.Explain(ctx, node, runtime, err)
	}
	return nil
}
