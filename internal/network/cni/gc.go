package cni

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/containernetworking/cni/libcni"
	"github.com/containernetworking/cni/pkg/types"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/network/cni/hostlocal"
)

const (
	// gcPeriod is between two collections, gcAgain after one that could not run or finish.
	gcPeriod = 15 * time.Minute
	gcAgain  = time.Minute
	// gcTimeout bounds one collection. At the start, attachments wait for it.
	gcTimeout = 10 * time.Second
)

// The kinds of what plugins hold without a record, for the Observer.
const (
	attachmentLeak = "attachment"
	addressLeak    = "address"
)

// upkeep is the work in the background that follows the first GC: CHECK of what an earlier
// process attached, and the periodic collection of what plugins hold without a record.
type upkeep struct {
	once sync.Once
	work sync.WaitGroup
	gate gcGate

	mu sync.Mutex
	// unrecorded are the sandboxes that exist and have no record of an attachment: it was damaged, or
	// they were attached by another runtime. What they hold stays.
	unrecorded map[string]bool
	// leaks are the kinds of what plugins hold without a record and a collection could not release, by what
	// it is; see leak.
	leaks   map[string]string
	ended   bool
	end     context.CancelFunc
	checks  string // faults of CHECK
	fault   string // of the last collection
	foreign string // addresses of others
}

// keep notes which of the sandboxes that exist have no record.
func (u *upkeep) keep(live []string, recorded func(id string) bool) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.unrecorded = make(map[string]bool)
	for _, id := range live {
		if !recorded(id) {
			u.unrecorded[id] = true
		}
	}
}

// drop notes that a sandbox is detached.
func (u *upkeep) drop(id string) {
	u.mu.Lock()
	defer u.mu.Unlock()
	delete(u.unrecorded, id)
}

// keeps reports whether what a sandbox holds stays, though it has no record.
func (u *upkeep) keeps(id string) bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.unrecorded[id]
}

// kept returns the sandboxes for which keeps is true.
func (u *upkeep) kept() []string {
	u.mu.Lock()
	defer u.mu.Unlock()
	return slices.Collect(maps.Keys(u.unrecorded))
}

func (u *upkeep) setChecks(faults string) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.checks = faults
}

// addTo adds what there is to report.
func (u *upkeep) addTo(info map[string]string) {
	u.mu.Lock()
	defer u.mu.Unlock()
	for key, text := range map[string]string{"failedChecks": u.checks, "failedGC": u.fault, "foreignAddresses": u.foreign} {
		if text != "" {
			info[key] = text
		}
	}
}

// startUpkeep begins the work in the background, once. adopted are the attachments of an
// earlier process.
func (n *Network) startUpkeep(adopted []*record) {
	n.upkeep.once.Do(func() {
		ctx, cancel := context.WithCancel(context.Background())
		n.upkeep.mu.Lock()
		defer n.upkeep.mu.Unlock()
		if n.upkeep.ended {
			cancel()
			return
		}
		n.upkeep.end = cancel
		n.upkeep.work.Go(func() {
			errs.Protect("CNI CHECK of running pods", func() { n.checkAdopted(ctx, adopted) })
			for pause := gcPeriod; ; {
				select {
				case <-ctx.Done():
					return
				case <-time.After(pause):
				}
				pause = gcAgain
				errs.Protect("CNI GC", func() {
					if n.collect(ctx) {
						pause = gcPeriod
					}
				})
			}
		})
	})
}

// stop ends the work in the background and kills plugins that it runs.
func (u *upkeep) stop() {
	u.mu.Lock()
	u.ended = true
	if u.end != nil {
		u.end()
	}
	u.mu.Unlock()
	u.work.Wait()
}

// collect has the plugins release what no record has, and reports whether it has finished. It
// does not run beside an ADD, whose resources may be older than the list of attachments: an ADD
// that comes ends it.
func (n *Network) collect(ctx context.Context) (done bool) {
	return n.upkeep.gate.run(ctx, func(ctx context.Context) {
		ctx, cancel := context.WithTimeout(ctx, gcTimeout)
		defer cancel()
		err := errors.Join(n.delCached(ctx), n.gcInUse(ctx))
		if errors.Is(ctx.Err(), context.Canceled) {
			return
		}
		if err == nil {
			n.noLeaks()
		}
		text := ""
		if err != nil {
			text = err.Error()
		}
		n.upkeep.mu.Lock()
		defer n.upkeep.mu.Unlock()
		if text != "" && text != n.upkeep.fault {
			n.log.Warn("CNI GC failed; it is repeated", "error", err)
		}
		n.upkeep.fault = text
	})
}

// delCached runs DEL for the attachments in libcni's cache that have no record, with the
// configuration of their ADD.
func (n *Network) delCached(ctx context.Context) error {
	cached, err := n.lib.GetCachedAttachments("")
	if err != nil {
		return fmt.Errorf("cannot read the cache of results: %w", err)
	}
	var faults []error
	for _, a := range cached {
		if _, err := n.records.Get(a.ContainerID); !errors.Is(err, errs.NotFound) || n.upkeep.keeps(a.ContainerID) {
			continue
		}
		released := n.leak(attachmentLeak, a.ContainerID, a.Network, a.IfName)
		list, err := libcni.NetworkConfFromBytes(a.Config)
		if err == nil {
			n.log.Warn("CNI DEL of an attachment that is in the cache of results and has no record", "sandbox", a.ContainerID, "network", a.Network)
			err = n.lib.DelNetworkList(ctx, list, &libcni.RuntimeConf{
				ContainerID: a.ContainerID, IfName: a.IfName, Args: a.CniArgs, CapabilityArgs: a.CapabilityArgs,
			})
		}
		if err != nil {
			faults = append(faults, fmt.Errorf("CNI DEL of sandbox %s, which has no record, from network %q: %w", a.ContainerID, a.Network, err))
			continue
		}
		released()
	}
	return errors.Join(faults...)
}

// leak reports something that a plugin holds without a record, once, however often a collection fails to release it. of
// are the names that identify it. The returned function reports its release.
func (n *Network) leak(kind string, of ...string) (released func()) {
	key := strings.Join(append(of, kind), "\x00")
	u := &n.upkeep
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.leaks[key] == "" {
		n.cfg.Observer.LeakFound(kind)
	}
	if u.leaks == nil {
		u.leaks = map[string]string{}
	}
	u.leaks[key] = kind
	return func() {
		u.mu.Lock()
		defer u.mu.Unlock()
		delete(u.leaks, key)
		n.cfg.Observer.LeakRepaired(kind)
	}
}

// noLeaks reports the release of what a complete collection has not found any more, for example because a plugin's own
// GC has released it.
func (n *Network) noLeaks() {
	n.upkeep.mu.Lock()
	defer n.upkeep.mu.Unlock()
	for _, kind := range n.upkeep.leaks {
		n.cfg.Observer.LeakRepaired(kind)
	}
	clear(n.upkeep.leaks)
}

// gcInUse releases what the plugins of the configurations in use hold for sandboxes of this
// berth that have no record: with the verb GC, and without one by the DEL of each sandbox.
func (n *Network) gcInUse(ctx context.Context) error {
	confs, err := n.confs.current()
	if err != nil {
		return nil //nolint:nilerr // Ready reports it; there is nothing to collect
	}
	lost := n.lostSandboxes()
	var faults []error
	var foreign []string
	for _, c := range confs {
		valid := n.attached()
		stale, others, err := n.sort(c.list, lost)
		if err != nil {
			faults = append(faults, err)
			continue // GC could release what others hold
		}
		for _, id := range n.upkeep.kept() {
			for i := range confs {
				valid = append(valid, types.GCAttachment{ContainerID: id, IfName: linkName(i)})
			}
		}
		for _, e := range others {
			valid = append(valid, types.GCAttachment{ContainerID: e.ContainerID, IfName: e.Interface})
			foreign = append(foreign, fmt.Sprintf("%s of network %s (%s)", e.Address, c.list.Name, e.ContainerID))
		}
		for _, e := range stale {
			n.log.Warn("releasing an address of a sandbox that has no record", "sandbox", e.ContainerID, "network", c.list.Name, "address", e.Address)
			released := n.leak(addressLeak, e.ContainerID, c.list.Name, e.Interface, fmt.Sprint(e.Address))
			err := n.lib.DelNetworkList(ctx, c.list, &libcni.RuntimeConf{ContainerID: e.ContainerID, IfName: e.Interface, CapabilityArgs: map[string]any{}})
			if err != nil {
				faults = append(faults, fmt.Errorf("CNI DEL of sandbox %s, which has no record, from network %q: %w", e.ContainerID, c.list.Name, err))
				continue
			}
			released()
		}
		if err := n.lib.GCNetworkList(ctx, c.list, &libcni.GCArgs{ValidAttachments: valid}); err != nil {
			faults = append(faults, fmt.Errorf("CNI GC of network %q: %w", c.list.Name, withKind(ctx, err)))
		}
	}
	n.reportForeign(foreign)
	return errors.Join(faults...)
}

// attached returns the attachments that have a record, to every network: those whose ADD or
// DEL has not ended are among them.
func (n *Network) attached() []types.GCAttachment {
	valid := []types.GCAttachment{} // the plugins get an empty list, and not none
	for _, rec := range n.records.All() {
		for i := range rec.confs() {
			valid = append(valid, types.GCAttachment{ContainerID: rec.Attachment.SandboxID, IfName: linkName(i)})
		}
	}
	return valid
}

// lostSandboxes are sandboxes of this berth whose record was damaged.
func (n *Network) lostSandboxes() []string {
	files, err := filepath.Glob(filepath.Join(n.cfg.RootDir, "quarantine", "*"))
	if err != nil {
		return nil // the pattern is valid
	}
	for i, file := range files {
		files[i] = filepath.Base(file)
	}
	return files
}

// sort returns the entries of host-local's stores without a record: stale ones, which a
// sandbox of this berth had, and those of others.
func (n *Network) sort(list *libcni.NetworkConfigList, lost []string) (stale, others []hostlocal.Entry, err error) {
	for _, p := range list.Plugins {
		store, ok := hostlocal.Of(p.Bytes, list.Name)
		if !ok {
			continue
		}
		if err := n.releaseEmpty(store, list.Name); err != nil {
			return nil, nil, fmt.Errorf("network %q: %w", list.Name, err)
		}
		entries, err := store.Entries()
		if err != nil {
			return nil, nil, fmt.Errorf("network %q: %w", list.Name, err)
		}
		for _, e := range entries {
			if e.ContainerID == "" {
				continue // of an ADD of another runtime that has not written it yet, or for the next collection
			}
			if _, err := n.records.Get(e.ContainerID); !errors.Is(err, errs.NotFound) || n.upkeep.keeps(e.ContainerID) {
				continue
			}
			wasOurs := len(e.ContainerID) >= 32 && slices.ContainsFunc(lost, func(file string) bool { return strings.Contains(file, e.ContainerID) })
			if wasOurs {
				stale = append(stale, e)
			} else {
				others = append(others, e)
			}
		}
	}
	return stale, others, nil
}

// releaseEmpty releases addresses whose files a loss of power has emptied.
func (n *Network) releaseEmpty(store hostlocal.Store, network string) error {
	addresses, err := store.ReleaseEmpty()
	for _, a := range addresses {
		n.log.Warn("released an address whose file in host-local's store has no container; a loss of power does that", "network", network, "address", a)
		n.leak(addressLeak, network, a.String())()
	}
	return err
}

// reportForeign logs a change of the addresses that others hold, and keeps it for Info.
func (n *Network) reportForeign(foreign []string) {
	text := strings.Join(foreign, ", ")
	n.upkeep.mu.Lock()
	defer n.upkeep.mu.Unlock()
	if text != "" && text != n.upkeep.foreign {
		n.log.Warn("addresses of the network are given out to containers that this berth does not know; they stay so (another runtime may use the network, or berth's records were removed)",
			"addresses", text)
	}
	n.upkeep.foreign = text
}

// gcGate keeps collections and ADDs apart. An ADD ends a collection that runs.
type gcGate struct {
	mu   sync.Mutex
	adds int
	stop context.CancelFunc // of the collection that runs
	over chan struct{}      // closed at its end
}

// enter waits until no collection runs. Each call needs a leave, unless it fails: with the
// error of ctx.
func (g *gcGate) enter(ctx context.Context) error {
	for {
		g.mu.Lock()
		if g.stop == nil {
			g.adds++
			g.mu.Unlock()
			return nil
		}
		g.stop()
		over := g.over
		g.mu.Unlock()
		select {
		case <-over:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func (g *gcGate) leave() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.adds--
}

// run calls fn if nothing else is inside, and reports whether fn ran to its end.
func (g *gcGate) run(ctx context.Context, fn func(context.Context)) bool {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	g.mu.Lock()
	if g.adds > 0 || g.stop != nil {
		g.mu.Unlock()
		return false
	}
	over := make(chan struct{})
	g.stop, g.over = cancel, over
	g.mu.Unlock()
	defer func() {
		g.mu.Lock()
		defer g.mu.Unlock()
		g.stop = nil
		close(over)
	}()
	fn(ctx)
	return ctx.Err() == nil
}
