package kubeapi

import (
	"context"
	"encoding/json"
	"fmt"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"

	"github.com/berthrun/berth/internal/errs"
)

// LabelNode sets labels of a node. It removes a label whose value is nil.
func (c *Client) LabelNode(ctx context.Context, node string, labels map[string]*string) error {
	if err := c.patchNode(ctx, node, map[string]any{"metadata": map[string]any{"labels": labels}}); err != nil {
		return fmt.Errorf("cannot label the node %s: %w", node, err)
	}
	return nil
}

// Cordon marks a node as unschedulable.
func (c *Client) Cordon(ctx context.Context, node string) error {
	if err := c.patchNode(ctx, node, map[string]any{"spec": map[string]any{"unschedulable": true}}); err != nil {
		return fmt.Errorf("cannot cordon the node %s: %w", node, err)
	}
	return nil
}

func (c *Client) patchNode(ctx context.Context, node string, patch any) error {
	text, err := json.Marshal(patch)
	if err != nil {
		return err
	}
	return c.call(ctx, func(api rest.Interface) *rest.Request {
		return api.Patch(types.MergePatchType).Resource("nodes").Name(node).Body(text)
	}, nil)
}

// DeleteNode deletes a node. An absent node is no error.
func (c *Client) DeleteNode(ctx context.Context, node string) error {
	err := c.call(ctx, func(api rest.Interface) *rest.Request { return api.Delete().Resource("nodes").Name(node) }, nil)
	if errs.IgnoreNotFound(err) != nil {
		return fmt.Errorf("cannot delete the node %s: %w", node, err)
	}
	return nil
}
