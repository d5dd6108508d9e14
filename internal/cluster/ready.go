package cluster

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/berthrun/berth/internal/cluster/kubeapi"
)

// waitReady waits until the nodes have reported Ready after a time: the API keeps for a while what
// they reported before they were stopped.
func waitReady(ctx context.Context, client *kubeapi.Client, members []string, since time.Time, wait time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	nodes, err := client.WaitForNodes(ctx, kubeapi.AllNodes(members, func(n kubeapi.Node) bool { return n.Ready && !n.Seen.Before(since) }))
	if err == nil {
		return nil
	}
	return notReadyError(members, wait, nodes, err)
}

// notReadyError names the nodes that are not Ready, with the reasons.
func notReadyError(members []string, wait time.Duration, nodes []kubeapi.Node, err error) error {
	var slow []string
	for _, name := range members {
		i := slices.IndexFunc(nodes, func(n kubeapi.Node) bool { return n.Name == name })
		switch {
		case i < 0:
			slow = append(slow, name+" (the API has not heard of it)")
		case !nodes[i].Ready:
			slow = append(slow, name+" ("+nodes[i].Why+")")
		}
	}
	return fmt.Errorf("not all of %d nodes are Ready after %s, and the cluster stays as it is: %s: %w", len(members), wait, strings.Join(slow, ", "), err)
}
