package kubeapi

import (
	"context"
	"fmt"
	"net/http"

	"github.com/berthrun/berth/internal/errs"
)

// mergePatch is the content type of a patch that says what changes.
const mergePatch = "application/merge-patch+json"

// Relabel gives a node labels; one whose value is nil goes.
func (c *Client) Relabel(ctx context.Context, node string, labels map[string]*string) error {
	body := map[string]any{"metadata": map[string]any{"labels": labels}}
	if err := c.patch(ctx, node, body); err != nil {
		return fmt.Errorf("cannot label the node %s: %w", node, err)
	}
	return nil
}

// Cordon has nothing more scheduled on a node.
func (c *Client) Cordon(ctx context.Context, node string) error {
	if err := c.patch(ctx, node, map[string]any{"spec": map[string]any{"unschedulable": true}}); err != nil {
		return fmt.Errorf("cannot cordon the node %s: %w", node, err)
	}
	return nil
}

func (c *Client) patch(ctx context.Context, node string, body any) error {
	return c.call(ctx, request{method: http.MethodPatch, path: nodesPath + "/" + node, kind: mergePatch, body: body}, nil)
}

// Forget deletes a node. An absent one is no error.
func (c *Client) Forget(ctx context.Context, node string) error {
	err := c.call(ctx, request{method: http.MethodDelete, path: nodesPath + "/" + node}, nil)
	if errs.IgnoreNotFound(err) != nil {
		return fmt.Errorf("cannot delete the node %s: %w", node, err)
	}
	return nil
}
