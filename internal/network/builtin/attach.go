package builtin

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/network"
	"github.com/berthrun/berth/internal/network/hostport"
	"github.com/berthrun/berth/internal/sys/sysproc"
)

// Attach connects the sandbox to the bridge. A repeated call completes an earlier one and
// returns the same addresses.
func (n *Network) Attach(ctx context.Context, att *network.Attachment) (*network.Result, error) {
	if err := n.ready(ctx); err != nil {
		return nil, err
	}
	if err := checkID(att.SandboxID); err != nil {
		return nil, err
	}
	var result *network.Result
	err := n.calls.Do(ctx, att.SandboxID, "attach to the network", func() error {
		return n.host.do(func() (err error) {
			result, err = n.attach(context.WithoutCancel(ctx), att)
			return err
		})
	})
	if err != nil {
		return nil, fmt.Errorf("cannot attach sandbox %s to the network: %w", att.SandboxID, err)
	}
	return result, nil
}

// attach has the steps in their order. It writes the record first, so that Detach can undo the
// steps after a failure.
func (n *Network) attach(ctx context.Context, att *network.Attachment) (*network.Result, error) {
	if err := n.repair(ctx, false); err != nil {
		return nil, err
	}
	rec, err := n.known(att)
	if err != nil {
		return nil, err
	}
	fresh := rec == nil
	if fresh {
		if rec, err = n.newRecord(ctx, att); err != nil {
			return nil, err
		}
	}
	if err := n.guard(rec); err != nil {
		return nil, err
	}
	if fresh || !n.plugged(rec) {
		if err := n.unplug(rec.Link); err != nil {
			return nil, err
		}
		if err := n.plug(rec); err != nil {
			return nil, err
		}
	}
	if err := n.openPorts(rec); err != nil {
		return nil, err
	}
	if fresh {
		n.warnPorts(rec)
	}
	return rec.result(), nil
}

// known returns the record that Attach continues with, nil when it must make one. Then nothing of
// an earlier attachment is left.
func (n *Network) known(att *network.Attachment) (*record, error) {
	rec, err := n.records.Get(att.SandboxID)
	if errors.Is(err, errs.NotFound) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	if !rec.Released {
		if rec.NetNS == att.NetNS {
			return rec, nil
		}
		// It is for another namespace, or adoptLinks made it from the link.
		if err := n.release(rec.Sandbox); err != nil {
			return nil, err
		}
	}
	return nil, n.finishRelease(rec.Sandbox)
}

// newRecord takes addresses and ports, and records them.
func (n *Network) newRecord(ctx context.Context, att *network.Attachment) (*record, error) {
	boot, err := sysproc.BootID()
	if err != nil {
		return nil, err
	}
	rec := &record{
		Sandbox: att.SandboxID, Name: att.Name, Namespace: att.Namespace,
		BootID: boot, NetNS: att.NetNS, Link: linkName(att.SandboxID), Checked: !att.Privileged,
	}
	if rec.Ingress, rec.Egress, err = network.Bandwidth(att.Annotations); err != nil {
		return nil, err
	}
	if err := n.takeAwaitingReleases(ctx, rec, att); err != nil {
		return nil, err
	}
	err = hostport.Probe(rec.sockets())
	if err == nil {
		err = n.table.foreign(rec)
	}
	if err == nil {
		err = n.records.Create(rec.Sandbox, rec)
	}
	if err != nil {
		n.freeTaken(rec)
		return nil, err
	}
	return rec, nil
}

// takeAwaitingReleases is take. When it needs an address that was released a moment ago (a
// requested one, as by the new sandbox of a pod, or any when no other is free), it finishes the
// release at once: it removes the link before the network namespace does.
func (n *Network) takeAwaitingReleases(ctx context.Context, rec *record, att *network.Attachment) error {
	deadline := time.Now().Add(reapTimeout + reapPause)
	for {
		err := n.take(rec, att)
		var taken *takenError
		switch {
		case errors.As(err, &taken) && (taken.holder == nil || taken.holder.Released):
		case errors.Is(err, errs.Exhausted):
		default:
			return err
		}
		freed, releaseErr := n.finishReleases(ctx)
		if freed == 0 && taken == nil || time.Now().After(deadline) {
			return errors.Join(err, releaseErr)
		}
		if freed > 0 {
			continue
		}
		select { // its holder is releasing it, or has not written its record yet
		case <-time.After(reapPause):
		case <-ctx.Done():
			return errors.Join(context.Cause(ctx), err)
		}
	}
}

// take reserves addresses and ports in memory.
func (n *Network) take(rec *record, att *network.Attachment) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	var err error
	if rec.Addrs, err = n.takeAddrs(att.Addresses); err != nil {
		return err
	}
	rec.Ports, err = hostport.Wanted(att.Ports, rec.families())
	if err == nil {
		err = n.ports.Take(rec.holder(), rec.sockets())
	}
	if err != nil {
		n.freeAddrs(rec.Addrs)
	}
	return err
}

// freeTaken undoes take.
func (n *Network) freeTaken(rec *record) {
	n.ports.Free(rec.Sandbox, rec.sockets())
	n.mu.Lock()
	defer n.mu.Unlock()
	n.freeAddrs(rec.Addrs)
}

// checkID refuses an id that cannot be a file name.
func checkID(sandbox string) error {
	if sandbox == "" || strings.ContainsAny(sandbox, "/\x00") || sandbox[0] == '.' || len(sandbox) > 128 {
		return fmt.Errorf("sandbox id %q: %w", sandbox, errs.Invalid)
	}
	return nil
}
