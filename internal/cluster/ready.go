package cluster

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/berthrun/berth/internal/cluster/kubeapi"
)

// starts are the times at which nodes were started, by name, in whole seconds. A node that ran before is not among them.
type starts map[string]time.Time

// reported reports whether a node has reported its condition since its start: the API keeps for a while what it reported
// before it was stopped. A kubelet that runs reports an unchanged condition only every five minutes.
func (s starts) reported(n kubeapi.Node) bool { return !n.Seen.Before(s[n.Name]) }

// waitReady waits until the nodes have reported Ready since their starts.
func waitReady(ctx context.Context, client *kubeapi.Client, members []string, started starts, wait time.Duration) error {
	waiting, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	nodes, err := client.WaitForNodes(waiting, kubeapi.AllNodes(members, func(n kubeapi.Node) bool { return n.Ready && started.reported(n) }))
	switch {
	case err == nil:
		return nil
	case ctx.Err() != nil:
		return fmt.Errorf("interrupted before all of %d nodes were Ready, and the cluster stays as it is: %w", len(members), context.Cause(ctx))
	}
	return notReadyError(members, started, wait, nodes, err)
}

// notReadyError names the nodes that are not Ready, with the reasons.
func notReadyError(members []string, started starts, wait time.Duration, nodes []kubeapi.Node, err error) error {
	var slow []string
	for _, name := range members {
		i := slices.IndexFunc(nodes, func(n kubeapi.Node) bool { return n.Name == name })
		switch {
		case i < 0:
			slow = append(slow, name+" (the API has not heard of it)")
		case !nodes[i].Ready:
			slow = append(slow, name+" ("+nodes[i].Why+")")
		case !started.reported(nodes[i]):
			slow = append(slow, name+" (it has reported nothing since its start)")
		}
	}
	return fmt.Errorf("not all of %d nodes are Ready after %s, and the cluster stays as it is: %s: %w", len(members), wait, strings.Join(slow, ", "), err)
}
