package builtin

import (
	"context"
	"errors"
	"fmt"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/network"
)

// Detach frees the sandbox's host ports at once. The kernel removes the link with the
// network namespace, which the caller removes next; the addresses are free when the
// link is gone. The namespace may be gone already.
func (n *Network) Detach(ctx context.Context, att *network.Attachment) error {
	if err := n.ready(ctx); err != nil {
		return err
	}
	return n.detach(ctx, att.SandboxID)
}

func (n *Network) detach(ctx context.Context, sandbox string) error {
	if err := checkID(sandbox); err != nil {
		return err
	}
	err := n.calls.Do(ctx, sandbox, "detach from the network", func() error {
		return n.host.do(func() error { return n.release(sandbox) })
	})
	if err != nil {
		return fmt.Errorf("cannot detach sandbox %s from the network: %w", sandbox, err)
	}
	return nil
}

// release has the steps in their order. It records the release first; callers repeat it until all
// steps succeed.
func (n *Network) release(sandbox string) error {
	rec, err := n.records.Get(sandbox)
	if errors.Is(err, errs.NotFound) {
		// There may be a link whose record was damaged.
		return n.unplug(linkName(sandbox))
	}
	if err != nil {
		return err
	}
	if !rec.Released {
		if rec, err = n.records.Update(sandbox, func(r *record) error { r.Released = true; return nil }); err != nil {
			return err
		}
	}
	if err := n.closePorts(rec); err != nil {
		return err
	}
	n.reaper.add(sandbox)
	return nil
}

// GC releases every attachment whose sandbox is not in live.
func (n *Network) GC(ctx context.Context, live []string) error {
	if err := n.ready(ctx); err != nil {
		return err
	}
	var errList []error
	alive := make(map[string]bool, len(live))
	for _, sandbox := range live {
		alive[sandbox] = true
	}
	for _, sandbox := range n.records.IDs() {
		if !alive[sandbox] {
			errList = append(errList, n.detach(ctx, sandbox))
		}
	}
	return errors.Join(errList...)
}
