package cluster

import (
	"context"
	"errors"
	"fmt"
)

// Delete removes a cluster: its containers with their volumes, the network if nobody
// else is on it, and its entries in kubeconfig files. All is tried. An absent cluster is no
// error; found tells whether there was one.
func (c *Clusters) Delete(ctx context.Context, name string) (found bool, err error) {
	all, err := c.Engine.List(ctx, name)
	if err != nil {
		return false, err
	}
	var failed []error
	for _, context := range contexts(name, all) {
		failed = append(failed, c.Kubeconfig.Remove(ctx, context))
	}
	err = c.step("Deleting nodes of "+name, func() error {
		return errors.Join(c.Engine.DeleteCluster(ctx, name), c.Engine.RemoveNetwork(ctx, c.network()))
	})
	if err = errors.Join(append(failed, err)...); err != nil {
		return len(all) > 0, fmt.Errorf("cannot delete the cluster %s: %w", name, err)
	}
	return len(all) > 0, nil
}
