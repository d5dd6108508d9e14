package berthapi

import (
	"context"
	"fmt"

	"github.com/berthrun/berth/internal/berthapi/berthpb"
	"github.com/berthrun/berth/internal/errs"
)

// Owned is which berth a daemon is, and what it has records of.
type Owned struct {
	// Root and State are the directories of its configuration.
	Root, State string
	// NetworkMode is cni, builtin or kubenet.
	NetworkMode string
	// IDs are those of sandboxes, containers and attachments that have a record, and of running jobs;
	// sorted.
	IDs []string
}

// ListOwned implements berthpb.BerthServer.
func (h *handlers) ListOwned(context.Context, *berthpb.ListOwnedRequest) (*berthpb.ListOwnedResponse, error) {
	if h.owned == nil {
		return nil, fmt.Errorf("this daemon does not list what it has records of: %w", errs.Unsupported)
	}
	owned, err := h.owned()
	if err != nil {
		return nil, err
	}
	return &berthpb.ListOwnedResponse{
		Root: validText(owned.Root), State: validText(owned.State), NetworkMode: owned.NetworkMode, Ids: owned.IDs,
	}, nil
}

// ListOwned returns which berth the daemon is, and what it has records of.
func (c *Client) ListOwned(ctx context.Context) (*Owned, error) {
	resp, err := c.api.ListOwned(ctx, &berthpb.ListOwnedRequest{})
	if err != nil {
		return nil, err
	}
	return &Owned{Root: resp.GetRoot(), State: resp.GetState(), NetworkMode: resp.GetNetworkMode(), IDs: resp.GetIds()}, nil
}
