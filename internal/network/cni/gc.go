package cni

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
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
	// gcTimeout bounds one collection. Attachments wait for it at the start, and later for the call of a plugin
	// that it makes; see gcGate.
	gcTimeout = 10 * time.Second
	// gcGrace is how long the plugin of a collection may take to end after it was killed.
	gcGrace = 5 * time.Second
	// gcWait is how long a periodic collection waits for a moment without an ADD or DEL.
	gcWait = 30 * time.Second
)

var (
	// errEnded is that a pod that starts has ended a collection.
	errEnded = errors.New("ended by a pod that starts")
	// errBusy is that a collection did not begin because of ADDs or DELs.
	errBusy = errors.New("pods are being attached and detached")
	// errHung is that a plugin does not end.
	errHung = errors.New("a plugin of the collection does not end, although it was killed; ps shows what it waits for")
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
	checks  string    // faults of CHECK
	fault   string    // of the last collection
	tried   time.Time // when the last collection began, or the first was due
	foreign string    // addresses of others
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
// earlier process, pause is the time until the next collection.
func (n *Network) startUpkeep(adopted []*record, pause time.Duration) {
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
			for {
				select {
				case <-ctx.Done():
					return
				case <-time.After(pause):
				}
				pause = gcAgain
				errs.Protect("CNI GC", func() {
					if n.collect(ctx, gcWait) {
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

// collect has the plugins release what no record has, and reports whether it has finished. It waits for a moment
// without an ADD or DEL; see gcGate.
func (n *Network) collect(ctx context.Context, wait time.Duration) (done bool) {
	u := &n.upkeep
	err := u.gate.run(ctx, wait, func(ctx context.Context) error {
		return errors.Join(n.delCached(ctx), n.gcInUse(ctx))
	})
	u.mu.Lock()
	now := time.Now()
	if u.tried.IsZero() || !errors.Is(err, errBusy) {
		u.tried = now
	}
	late := now.Sub(u.tried) > 2*gcPeriod
	u.mu.Unlock()
	switch {
	case ctx.Err() != nil || errors.Is(err, errEnded):
		return false
	case errors.Is(err, errBusy) && !late:
		return false
	case errors.Is(err, errBusy):
		err = fmt.Errorf("what plugins hold without a record was not collected for more than %s: %w", 2*gcPeriod, err)
	case err == nil:
		n.noLeaks()
	}
	n.reportGC(err)
	return !errors.Is(err, errBusy) && !errors.Is(err, errHung)
}

// reportGC logs a change of the fault of collections, and keeps it for Info.
func (n *Network) reportGC(err error) {
	text := ""
	if err != nil {
		text = errs.Message(err)
	}
	n.upkeep.mu.Lock()
	defer n.upkeep.mu.Unlock()
	if text != "" && text != n.upkeep.fault {
		n.log.Warn("CNI GC failed; it is repeated", "error", err)
	}
	n.upkeep.fault = text
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
		if err := n.upkeep.gate.next(ctx); err != nil {
			return errors.Join(append(faults, err)...)
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
			if err := n.upkeep.gate.next(ctx); err != nil {
				return errors.Join(append(faults, err)...)
			}
			n.log.Warn("releasing an address of a sandbox that has no record", "sandbox", e.ContainerID, "network", c.list.Name, "address", e.Address)
			released := n.leak(addressLeak, e.ContainerID, c.list.Name, e.Interface, fmt.Sprint(e.Address))
			err := n.lib.DelNetworkList(ctx, c.list, &libcni.RuntimeConf{ContainerID: e.ContainerID, IfName: e.Interface, CapabilityArgs: map[string]any{}})
			if err != nil {
				faults = append(faults, fmt.Errorf("CNI DEL of sandbox %s, which has no record, from network %q: %w", e.ContainerID, c.list.Name, err))
				continue
			}
			released()
		}
		if err := n.upkeep.gate.next(ctx); err != nil {
			return errors.Join(append(faults, err)...)
		}
		if err := n.lib.GCNetworkList(ctx, c.list, &libcni.GCArgs{ValidAttachments: valid}); err != nil {
			faults = append(faults, fmt.Errorf("CNI GC of network %q: %w", c.list.Name, withKind(ctx, err)))
		}
	}
	n.reportForeign(foreign)
	if len(faults) > 0 {
		return errors.Join(faults...)
	}
	return n.forgetLost(lost)
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

// lostDir, below Config.RootDir, has an empty file for each sandbox whose record a loss of power took. A collection that
// has released what the sandbox held removes the file.
const lostDir = "lost"

// lostSandboxes returns the names of files that contain the ids of sandboxes of this berth whose record was damaged, or
// was taken by a loss of power.
func (n *Network) lostSandboxes() []string {
	var all []string
	for _, dir := range []string{"quarantine", lostDir} {
		files, err := filepath.Glob(filepath.Join(n.cfg.RootDir, dir, "*"))
		if err != nil {
			return nil // the pattern is valid
		}
		for _, file := range files {
			all = append(all, filepath.Base(file))
		}
	}
	return all
}

// forgetLost removes the files of those sandboxes for which nothing is held any more. What a sandbox holds that still
// exists stays until it is detached.
func (n *Network) forgetLost(names []string) error {
	var faults []error
	for _, name := range names {
		if id := strings.TrimSuffix(name, ".json"); !n.upkeep.keeps(id) {
			faults = append(faults, errs.IgnoreNotExist(os.Remove(filepath.Join(n.cfg.RootDir, lostDir, name))))
		}
	}
	return errors.Join(faults...)
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

// gcGate keeps collections apart from ADDs and DELs, as CNI demands of GC: the plugin gets the attachments that it
// must keep, and would release what an ADD has got meanwhile. So none of them begins while a collection runs a plugin,
// which no pod kills: the program may be a client whose server goes on. An ADD that waits ends the collection before
// its next call of a plugin. A collection begins when no ADD and no DEL runs.
//
// All of it is bounded: gcTimeout ends a collection, and kills its plugin. Where that does not end gcGrace later, such as
// a process on a dead mount, the gate opens, and no other collection begins until it has ended.
type gcGate struct {
	mu     sync.Mutex
	inside map[*turn]struct{} // ADDs and DELs
	idle   chan struct{}      // closed when the last of them leaves; nil if no collection waits for that
	over   chan struct{}      // closed at the end of the collection that runs; nil if none does
	ended  bool               // an ADD waits for that end
	hung   bool               // a collection that was given up has not ended
}

// enter waits until no collection runs. It ends one if ends is true. what is for people. Each call needs a leave, unless
// it fails: with the error of ctx.
func (g *gcGate) enter(ctx context.Context, what string, ends bool) (leave func(), err error) {
	for {
		g.mu.Lock()
		over := g.over
		if over == nil {
			own := &turn{what, time.Now()}
			if g.inside == nil {
				g.inside = map[*turn]struct{}{}
			}
			g.inside[own] = struct{}{}
			g.mu.Unlock()
			return func() { g.leave(own) }, nil
		}
		g.ended = g.ended || ends
		g.mu.Unlock()
		select {
		case <-over:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

func (g *gcGate) leave(own *turn) {
	g.mu.Lock()
	defer g.mu.Unlock()
	delete(g.inside, own)
	if len(g.inside) == 0 && g.idle != nil {
		close(g.idle)
		g.idle = nil
	}
}

// next is for a collection before each call of a plugin. The error is why it must not make it.
func (g *gcGate) next(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.ended {
		return errEnded
	}
	return nil
}

// run calls fn while nothing else is inside, for which it waits as long as wait. The error is errBusy, errHung, or fn's.
func (g *gcGate) run(ctx context.Context, wait time.Duration, fn func(context.Context) error) error {
	over, err := g.begin(ctx, wait)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, gcTimeout)
	defer cancel()
	done := make(chan error, 1)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		done <- errs.Guard("CNI GC", func() error { return fn(ctx) })
	}()
	hung := false
	select {
	case err = <-done:
	case <-ctx.Done():
		select {
		case err = <-done:
		case <-time.After(gcGrace):
			err, hung = errHung, true
		}
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.over = nil
	close(over)
	if hung {
		g.hung = true
		go func() {
			<-ended
			g.mu.Lock()
			defer g.mu.Unlock()
			g.hung = false
		}()
	}
	return err
}

// begin closes the gate.
func (g *gcGate) begin(ctx context.Context, wait time.Duration) (over chan struct{}, err error) {
	ctx, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	for {
		g.mu.Lock()
		switch {
		case g.hung:
			g.mu.Unlock()
			return nil, errHung
		case g.over != nil:
			g.mu.Unlock()
			return nil, errBusy
		case len(g.inside) == 0:
			over := make(chan struct{})
			g.over, g.ended = over, false
			g.mu.Unlock()
			return over, nil
		}
		if g.idle == nil {
			g.idle = make(chan struct{})
		}
		idle, oldest := g.idle, oldest(g.inside)
		g.mu.Unlock()
		select {
		case <-idle:
		case <-ctx.Done():
			return nil, fmt.Errorf("%w, %s", errBusy, oldest)
		}
	}
}
