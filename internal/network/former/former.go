// Package former detaches the pods that CNI plugins attached, on a node whose new pods have a network of another kind:
// those of another runtime, and those of berth itself before its configuration changed.
package former

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"slices"
	"strconv"

	"github.com/berthrun/berth/internal/network"
)

// Network is the network of new pods, and the former one of other pods behind it.
type Network struct {
	network.Network
	former network.Network
}

// New returns a Network that attaches sandboxes to current, and detaches them from both. Close closes both.
func New(current, former network.Network) *Network {
	return &Network{Network: current, former: former}
}

// Detach implements network.Network. Each of both has nothing to do for a sandbox of the other.
func (n *Network) Detach(ctx context.Context, att *network.Attachment) error {
	return errors.Join(n.former.Detach(ctx, att), n.Network.Detach(ctx, att))
}

// GC implements network.Network.
func (n *Network) GC(ctx context.Context, live []string) error {
	return errors.Join(n.former.GC(ctx, live), n.Network.GC(ctx, live))
}

// Info implements network.Network: that of the network of new pods, with how many pods the former one has attached, and
// how many of them it cannot detach.
func (n *Network) Info() map[string]string {
	info := maps.Clone(n.Network.Info())
	before := n.former.Info()
	for from, to := range map[string]string{"attachments": "formerAttachments", "pendingDeletes": "pendingDeletes"} {
		had, _ := strconv.Atoi(info[to])
		more, _ := strconv.Atoi(before[from]) // absent is none
		if more > 0 {
			info[to] = strconv.Itoa(had + more)
		}
	}
	return info
}

// Check implements network.Checker: it has what the former networks report. A sandbox that none of them has is on the
// network of new pods, which makes good itself what is missing.
func (n *Network) Check(ctx context.Context, sandboxes []string) ([]network.Checked, error) {
	var all []network.Checked
	for _, part := range []network.Network{n.former, n.Network} {
		checker, ok := part.(network.Checker)
		if !ok {
			continue
		}
		checked, err := checker.Check(ctx, nil)
		if err != nil {
			return nil, err
		}
		all = append(all, checked...)
	}
	if len(sandboxes) > 0 {
		all = slices.DeleteFunc(all, func(c network.Checked) bool { return !slices.Contains(sandboxes, c.SandboxID) })
		for _, id := range sandboxes {
			if !slices.ContainsFunc(all, func(c network.Checked) bool { return c.SandboxID == id }) {
				all = append(all, network.Checked{SandboxID: id, Skipped: "no CNI plugin has attached it"})
			}
		}
	}
	slices.SortStableFunc(all, func(a, b network.Checked) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name), cmp.Compare(a.SandboxID, b.SandboxID))
	})
	return all, nil
}

// Close implements network.Network.
func (n *Network) Close() error {
	return errors.Join(n.former.Close(), n.Network.Close())
}

// Adopting is a Network whose former one adopts the pods of another runtime.
type Adopting struct {
	*Network
	adopter network.Adopter
}

var _ network.Adopter = Adopting{}

// NewAdopting is New with a former network that adopts pods.
func NewAdopting(current network.Network, former network.Adopter) Adopting {
	return Adopting{New(current, former), former}
}

// Adopt implements network.Adopter.
func (n Adopting) Adopt(ctx context.Context, att *network.Attachment) (*network.Result, error) {
	return n.adopter.Adopt(ctx, att)
}
