// Package former detaches the pods that another runtime attached through CNI plugins, on a node
// whose new pods have a network of another kind.
package former

import (
	"context"
	"errors"

	"github.com/berthrun/berth/internal/network"
)

// Network is the network of new pods, and the one of adopted pods behind it.
type Network struct {
	network.Network
	former network.Adopter
}

var _ network.Adopter = (*Network)(nil)

// New returns a Network that attaches sandboxes to current, and adopts with former. Close closes
// both.
func New(current network.Network, former network.Adopter) *Network {
	return &Network{Network: current, former: former}
}

// Adopt implements network.Adopter.
func (n *Network) Adopt(ctx context.Context, att *network.Attachment) (*network.Result, error) {
	return n.former.Adopt(ctx, att)
}

// Detach implements network.Network. Each of both has nothing to do for a sandbox of the other.
func (n *Network) Detach(ctx context.Context, att *network.Attachment) error {
	return errors.Join(n.former.Detach(ctx, att), n.Network.Detach(ctx, att))
}

// GC implements network.Network.
func (n *Network) GC(ctx context.Context, live []string) error {
	return errors.Join(n.former.GC(ctx, live), n.Network.GC(ctx, live))
}

// Close implements network.Network.
func (n *Network) Close() error {
	return errors.Join(n.former.Close(), n.Network.Close())
}
