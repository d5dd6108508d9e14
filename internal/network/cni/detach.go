package cni

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	"github.com/containernetworking/cni/libcni"
	"github.com/containernetworking/cni/pkg/version"
	"golang.org/x/sync/errgroup"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/network"
	"github.com/berthrun/berth/internal/sys/sysns"
)

// Detach runs DEL with the configuration that ADD got. DEL has its own deadline and
// continues after the caller's. The replayer retries a failed DEL in the background
// until it succeeds; every further Detach retries it, too.
func (n *Network) Detach(ctx context.Context, att *network.Attachment) error {
	return n.detach(ctx, att.SandboxID)
}

func (n *Network) detach(ctx context.Context, sandbox string) error {
	err := n.calls.Do(ctx, sandbox, "CNI DEL", func() error {
		err := n.delBesideNoGC(context.WithoutCancel(ctx), sandbox)
		if err != nil {
			n.replays.add(sandbox)
		}
		return err
	})
	if err != nil {
		return fmt.Errorf("cannot detach sandbox %s from the network: %w", sandbox, err)
	}
	n.upkeep.drop(sandbox)
	return nil
}

// delBesideNoGC waits for a collection, and then runs del.
func (n *Network) delBesideNoGC(ctx context.Context, sandbox string) error {
	leave, err := n.upkeep.gate.enter(ctx, "CNI DEL of sandbox "+sandbox, false)
	if err != nil {
		return err
	}
	defer leave()
	return n.del(ctx, sandbox)
}

// del runs DEL and removes the record. Nil when there is none. Runs as the sandbox's
// only call: see network.SandboxCalls.
func (n *Network) del(ctx context.Context, sandbox string) error {
	rec, err := n.records.Get(sandbox)
	if errors.Is(err, errs.NotFound) {
		return nil
	}
	if err == nil && !rec.Deleting {
		rec, err = n.records.Update(sandbox, func(r *record) error { r.Deleting = true; return nil })
	}
	if err != nil {
		return err
	}
	rt, err := runtimeConf(rec)
	if err != nil {
		return err
	}
	// Plugins agree on what an empty path means, and not on a path to nothing.
	if ns, err := sysns.OpenNetNS(rec.Attachment.NetNS); err != nil {
		rt.NetNS = ""
	} else {
		ns.Close()
	}
	ctx, cancel := context.WithTimeout(ctx, n.cfg.DelTimeout)
	defer cancel()
	if err := n.delAll(ctx, rec, rt); err != nil {
		return err
	}
	if err := rec.forgetFormer(); err != nil {
		return err
	}
	if err := n.records.Delete(sandbox); err != nil {
		return err
	}
	n.ports.Free(sandbox, rec.sockets())
	return n.partialOf(sandbox).remove() // after the record: a DEL that is repeated needs it
}

// delAll runs DEL for each network, the last one first. A fault of one does not keep the others.
func (n *Network) delAll(ctx context.Context, rec *record, rt *libcni.RuntimeConf) error {
	var faults []error
	partial := n.partialOf(rec.Attachment.SandboxID)
	if err := partial.read(rec); err != nil {
		return err
	}
	for i, conf := range slices.Backward(rec.confs()) {
		list, err := libcni.NetworkConfFromBytes(conf)
		if err == nil {
			list, err = withPartial(list, partial.results[i])
		}
		if err != nil {
			faults = append(faults, fmt.Errorf("cannot read the configuration that the sandbox was attached with: %w", err))
			continue
		}
		if err := n.libOf(rec).DelNetworkList(ctx, list, onNetwork(rt, i)); err != nil {
			faults = append(faults, fmt.Errorf("CNI DEL from network %q: %w", list.Name, withKind(ctx, err)))
		}
	}
	return errors.Join(faults...)
}

// withPartial returns the list with the result of an ADD that was not complete, as the result of a
// complete one is with the plugins of its DEL.
func withPartial(list *libcni.NetworkConfigList, result json.RawMessage) (*libcni.NetworkConfigList, error) {
	const since = "0.4.0" // CNI's version of it
	if takes, err := version.GreaterThanOrEqualTo(list.CNIVersion, since); err != nil || !takes || result == nil {
		return list, err
	}
	own := *list
	own.Plugins = nil
	for _, p := range list.Plugins {
		with, err := libcni.InjectConf(p, map[string]any{"prevResult": result})
		if err != nil {
			return nil, err
		}
		own.Plugins = append(own.Plugins, with)
	}
	return &own, nil
}

// gcParallel bounds the DELs that run at once after a reboot.
const gcParallel = 8

// GC runs DEL for every attachment whose sandbox is not in live, and then has the plugins
// release what they hold without a record. The first call begins the work in the background.
func (n *Network) GC(ctx context.Context, live []string) error {
	err := n.detachOthers(ctx, live)
	if n.cfg.Retired {
		return err
	}
	n.upkeep.keep(live, func(id string) bool {
		_, err := n.records.Get(id)
		return !errors.Is(err, errs.NotFound)
	})
	pause := gcAgain
	if n.collect(ctx, 0) { // it reports its own fault
		pause = gcPeriod
	}
	n.startUpkeep(n.records.All(), pause)
	return err
}

func (n *Network) detachOthers(ctx context.Context, live []string) error {
	var (
		g       errgroup.Group
		dead    = slices.DeleteFunc(n.records.IDs(), func(id string) bool { return slices.Contains(live, id) })
		errList = make([]error, len(dead))
	)
	g.SetLimit(gcParallel)
	for i, sandbox := range dead {
		g.Go(func() error {
			errList[i] = n.detach(ctx, sandbox)
			return nil
		})
	}
	return errors.Join(append(errList, g.Wait())...)
}
