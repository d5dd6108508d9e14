package cni

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	"github.com/containernetworking/cni/libcni"
	"github.com/containernetworking/cni/pkg/types/create"
	"github.com/containernetworking/cni/pkg/utils"
	"github.com/containernetworking/cni/pkg/version"
	"golang.org/x/sync/errgroup"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/network"
	"github.com/berthrun/berth/internal/sys/sysns"
)

// Detach runs DEL with the configuration that ADD got, or for an ADD that was not complete
// with a corrected one: see deletion.run. DEL has its own deadline and
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
		n.noteFault(sandbox, err)
		return err
	}
	if err := rec.forgetFormer(); err != nil {
		return err
	}
	if err := n.records.Delete(sandbox); err != nil {
		return err
	}
	n.ports.Free(sandbox, rec.sockets())
	return n.results.Delete(sandbox) // after the record: a DEL that is repeated needs it
}

// delAll runs DEL for each network, the last one first. A fault of one does not keep the others.
func (n *Network) delAll(ctx context.Context, rec *record, rt *libcni.RuntimeConf) error {
	var faults []error
	partial := n.partialOf(rec)
	for i, conf := range slices.Backward(rec.confs()) {
		d := deletion{n: n, rec: rec, conf: conf, result: partial[i], rt: onNetwork(rt, i)}
		if err := d.run(ctx); err != nil {
			faults = append(faults, err)
		}
	}
	return errors.Join(faults...)
}

// deletion is the DEL of a sandbox from one network.
type deletion struct {
	n   *Network
	rec *record
	// conf is the configuration that ADD got, result that of its last plugin if ADD is not complete.
	conf, result json.RawMessage
	rt           *libcni.RuntimeConf
}

// run runs DEL with the configuration that ADD got. No correction of the file would reach an attachment whose ADD failed
// because of a mistake in it, as DEL fails, too. So where the ADD is not complete, the configuration in use may do it.
func (d *deletion) run(ctx context.Context) error {
	list, err := libcni.NetworkConfFromBytes(d.conf)
	if err != nil {
		return fmt.Errorf("cannot read the configuration that the sandbox was attached with: %w", err)
	}
	incomplete := d.isIncomplete(list)
	if incomplete && utils.ValidateNetworkName(list.Name) != nil {
		return nil // libcni has refused the ADD before the first plugin
	}
	err = d.del(ctx, list)
	if err == nil || !incomplete || ctx.Err() != nil || errors.Is(err, errs.Unavailable) {
		return err
	}
	current := d.current(list.Name)
	if current == nil {
		return fmt.Errorf("%w; the ADD of the sandbox was not complete: if a mistake in the configuration is the reason, correct the configuration of network %q in %s under the same name, or install the plugin",
			err, list.Name, d.n.confsOf(d.rec.Attachment.Handler).dir)
	}
	if currentErr := d.delCorrected(ctx, list, current); currentErr != nil {
		return fmt.Errorf("%w; with the configuration that is in use now: %w", err, currentErr)
	}
	return nil
}

// isIncomplete reports whether the ADD to the network was not complete. After a reboot, the cache of libcni says so.
func (d *deletion) isIncomplete(list *libcni.NetworkConfigList) bool {
	if d.rec.Former != nil || d.n.resultOf(d.rec) != nil {
		return false
	}
	cached, err := d.n.lib.GetNetworkListCachedResult(list, d.rt)
	return err != nil || cached == nil
}

// del runs DEL with a list of plugins.
func (d *deletion) del(ctx context.Context, list *libcni.NetworkConfigList) error {
	name := list.Name
	list, err := withPartial(list, d.result)
	if err == nil {
		err = d.n.libOf(d.rec).DelNetworkList(ctx, list, d.rt)
	}
	if err != nil {
		return fmt.Errorf("CNI DEL from network %q: %w", name, withKind(ctx, err))
	}
	return nil
}

// current returns the configuration that is in use now for the network with a name, nil for none and for that of ADD.
func (d *deletion) current(name string) *libcni.NetworkConfigList {
	confs, err := d.n.confsOf(d.rec.Attachment.Handler).current()
	if err != nil {
		return nil
	}
	i := slices.IndexFunc(confs, func(c *conf) bool { return c.list.Name == name })
	if i < 0 || bytes.Equal(confs[i].list.Bytes, d.conf) {
		return nil
	}
	return confs[i].list
}

// delCorrected runs DEL with the current list, which decides. The plugins of the recorded list, some of which may have
// run, are asked one by one as well: those that the current list lacks before it, as DEL goes from the last plugin to the
// first; and the others after it, which may have had another configuration. Their faults decide nothing: one of them is the
// mistake.
func (d *deletion) delCorrected(ctx context.Context, recorded, current *libcni.NetworkConfigList) error {
	var faults []error
	each := func(kept bool) {
		for _, p := range slices.Backward(recorded.Plugins) {
			has := func(c *libcni.PluginConfig) bool { return c.Network.Type == p.Network.Type }
			if slices.ContainsFunc(current.Plugins, has) == kept {
				one := *recorded
				one.Plugins = []*libcni.PluginConfig{p}
				faults = append(faults, d.del(ctx, &one))
			}
		}
	}
	each(false)
	if err := d.del(ctx, current); err != nil {
		return err
	}
	each(true)
	d.n.log.Info("detached a sandbox, whose ADD was not complete, with the CNI configuration that is in use now",
		"sandbox", d.rec.Attachment.SandboxID, "network", current.Name, "faults of the former configuration", errors.Join(faults...))
	return nil
}

// withPartial returns the list with the result of an ADD that was not complete, as the result of a
// complete one is with the plugins of its DEL.
func withPartial(list *libcni.NetworkConfigList, result json.RawMessage) (*libcni.NetworkConfigList, error) {
	const since = "0.4.0" // CNI's version of it
	if takes, err := version.GreaterThanOrEqualTo(list.CNIVersion, since); err != nil || !takes || result == nil {
		return list, err
	}
	if converted, err := create.CreateFromBytes(result); err == nil { // of another version if the configuration was corrected
		if converted, err = converted.GetAsVersion(list.CNIVersion); err == nil {
			if result, err = json.Marshal(converted); err != nil {
				return nil, err
			}
		}
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
