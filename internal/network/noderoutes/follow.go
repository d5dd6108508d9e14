package noderoutes

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/probe"
	"github.com/berthrun/berth/internal/store"
	"github.com/berthrun/berth/internal/sys/sysfile"
)

const (
	// settle is how long a follower waits after a change: a program that writes the file in place changes it twice.
	settle = 100 * time.Millisecond
	// again is between two comparisons while routes are missing, or while berth cannot watch the file.
	again = 5 * time.Second
	// answerTimeout bounds a look at the file: its file system may be a dead mount.
	answerTimeout = time.Second
)

// Config configures a follower.
type Config struct {
	// File has the routes. It may be absent, which is the same as an empty one, and appear later. "": there is none, and
	// berth's routes of a former file are removed.
	File string
	// StateDir holds the record of berth's routes. A reboot ends the routes, and empties it.
	StateDir string
	// Quarantine is where a damaged record goes.
	Quarantine string
	// Handle is for the network namespace that has the routes. It is the caller's.
	Handle *netlink.Handle
	// Subnets returns the node's own pod subnets, as far as they are known.
	Subnets func() []netip.Prefix
	Log     *slog.Logger
}

// Follower keeps the kernel's routes equal to a file.
type Follower struct {
	cfg    Config
	record *store.Dir[made]
	watch  *sysfile.FileWatch // nil while there is none
	end    context.CancelFunc
	done   chan struct{}
	probes probe.Pool

	mu      sync.Mutex  // of one comparison at a time, and of what follows
	current bool        // the file has been read, and needs no reading until it changes
	read    fs.FileInfo // of the file then, nil if there was none
	bad     error       // faults of the file, nil for none
	lines   []Line      // of the last file without faults; before there is one, those of the file that have none
	valid   bool        // there was a file without faults: what it lacks is removed

	// seenMu is not mu: Info waits for no comparison, which calls Subnets.
	seenMu sync.Mutex
	seen   seen
}

// seen is what the last comparison has found.
type seen struct {
	fault string // for people
	count int    // routes of the file that are in force
}

// made is the record of the subnets to which berth has made routes, or was about to.
type made struct {
	Subnets []netip.Prefix `json:"subnets"`
}

// recordID is the id of the one record.
const recordID = "routes"

// Follow makes the routes of the file, and follows it. Faults of the file and of its routes are logged and in Info, and no
// errors. Routes of a former file stay until the file is without fault.
func Follow(cfg Config) (*Follower, error) {
	record, bad, err := store.Open(store.Options[made]{Path: filepath.Join(cfg.StateDir, "routes"), Quarantine: cfg.Quarantine})
	if err != nil {
		return nil, fmt.Errorf("cannot read the record of the routes to other nodes: %w", err)
	}
	for _, q := range bad {
		cfg.Log.Warn("moved the damaged record of the routes to other nodes to the quarantine; routes that the file no longer has stay", "file", q.Path, "error", q.Err)
	}
	ctx, end := context.WithCancel(context.Background())
	f := &Follower{cfg: cfg, record: record, end: end, done: make(chan struct{}), probes: probe.Pool{Timeout: answerTimeout}}
	if cfg.File == "" {
		f.valid = true
		f.Check()
		close(f.done)
		return f, nil
	}
	if f.watch, err = sysfile.NewFileWatch(); err != nil {
		f.noWatch(err) // the host's limit of watches is no reason to start no pod
	}
	watched := f.place(ctx)
	complete := f.Check()
	go func() {
		defer close(f.done)
		errs.Protect("following the routes to other nodes", func() { f.run(ctx, watched, complete) })
	}()
	return f, nil
}

// Close ends the following. The routes stay.
func (f *Follower) Close() error {
	f.end()
	<-f.done
	if f.watch == nil {
		return nil
	}
	_, err := probe.Ask(context.Background(), &f.probes, "end the watch of "+f.cfg.File, func() (struct{}, error) {
		return struct{}{}, f.watch.Close()
	})
	if errors.Is(err, errs.Unavailable) {
		return nil // a call of place hangs, and the watch ends after it
	}
	return err
}

// run compares after each change of the file, and again while routes are missing. watched is what place has returned.
func (f *Follower) run(ctx context.Context, watched, complete bool) {
	for {
		wait, cancel := ctx, context.CancelFunc(func() {})
		if !complete || !watched {
			wait, cancel = context.WithTimeout(ctx, again)
		}
		err := f.changed(wait, watched)
		ended := wait.Err() != nil
		cancel()
		if ctx.Err() != nil {
			return
		}
		if err != nil && !ended {
			f.noWatch(errors.Join(err, f.watch.Close()))
			f.watch = nil
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(settle):
		}
		watched = f.place(ctx)
		complete = f.Check()
	}
}

// changed waits for a change of the file. Without a watch it waits for the end of ctx.
func (f *Follower) changed(ctx context.Context, watched bool) error {
	if !watched {
		<-ctx.Done()
		return ctx.Err()
	}
	_, err := f.watch.Next(ctx)
	return err
}

func (f *Follower) noWatch(err error) {
	f.cfg.Log.Warn("cannot watch the file of routes to other nodes; berth reads it every "+again.String(), "file", f.cfg.File, "error", err)
}

// place watches the directories that decide what the file is. It returns false when there is no watch, or when a directory's
// file system has not answered: then the watch is in use, and must not be waited for.
func (f *Follower) place(ctx context.Context) (watched bool) {
	if f.watch == nil {
		return false
	}
	_, err := probe.Ask(ctx, &f.probes, "watch the directory of "+f.cfg.File, func() (struct{}, error) {
		f.watchDirs()
		return struct{}{}, nil
	})
	return err == nil
}

// watchDirs watches the file's own directory or the nearest one that exists, and that of the file that it is a link to.
func (f *Follower) watchDirs() {
	const own, target = "own", "target"
	for {
		dir := nearest(filepath.Dir(f.cfg.File))
		if err := f.watch.AddDir(dir, own); err != nil && !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, fs.ErrClosed) {
			f.cfg.Log.Warn("cannot watch the directory of the file of routes to other nodes; berth reads the file at each request for the runtime's status", "directory", dir, "error", err)
			break
		}
		if nearest(filepath.Dir(f.cfg.File)) == dir {
			break // else a nearer one has appeared before the watch, or this one is gone
		}
	}
	if to, err := filepath.EvalSymlinks(f.cfg.File); err == nil && filepath.Dir(to) != filepath.Dir(f.cfg.File) {
		_ = f.watch.AddDir(filepath.Dir(to), target) // without it, each request for the runtime's status reads the file
	} else {
		f.watch.Remove(target)
	}
}

// nearest returns the directory, or the nearest one above that exists.
func nearest(dir string) string {
	for ; dir != filepath.Dir(dir); dir = filepath.Dir(dir) {
		if info, err := os.Stat(dir); err == nil && info.IsDir() {
			return dir
		}
	}
	return dir
}

// Check makes the kernel's routes equal to the file, and reports whether all are. What it finds is logged, and in Info.
func (f *Follower) Check() (complete bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.load()
	complete = f.current
	found, missing := f.apply()
	complete = complete && missing == nil && found.borrowed == 0
	f.report(errors.Join(f.bad, missing), found.count)
	return complete
}

// load reads the file if it has changed, or could not be read.
func (f *Follower) load() {
	if f.cfg.File == "" {
		f.current = true
		return
	}
	info, err := probe.Ask(context.Background(), &f.probes, "look at "+f.cfg.File, func() (fs.FileInfo, error) { return os.Stat(f.cfg.File) })
	absent := errors.Is(err, fs.ErrNotExist)
	if f.current && (absent && f.read == nil || err == nil && f.read != nil && sameFile(f.read, info)) {
		return
	}
	var lines []Line
	if !errors.Is(err, errs.Unavailable) { // else the file system does not answer
		lines, err = probe.Ask(context.Background(), &f.probes, "read "+f.cfg.File, func() ([]Line, error) { return Read(f.cfg.File) })
	}
	f.read, f.bad = info, err
	// Faults stay until the file changes. Other errors may pass.
	f.current = err == nil || errors.Is(err, errs.Invalid)
	if err == nil || !f.valid {
		f.lines, f.valid = lines, err == nil
	}
}

// sameFile reports whether nobody has replaced or changed a file.
func sameFile(a, b fs.FileInfo) bool {
	return os.SameFile(a, b) && a.Size() == b.Size() && a.ModTime().Equal(b.ModTime())
}

// report keeps what a comparison has found, and logs a fault once.
func (f *Follower) report(err error, count int) {
	fault := ""
	if err != nil {
		fault = errs.Message(err)
	}
	f.seenMu.Lock()
	before := f.seen.fault
	f.seen = seen{fault: fault, count: count}
	f.seenMu.Unlock()
	if fault != "" && fault != before {
		f.cfg.Log.Warn("the routes to other nodes are not as their file has them; berth keeps trying", "file", f.cfg.File, "error", fault)
	}
}

// outcome is what a comparison has found in the kernel.
type outcome struct {
	count    int // routes of the file that are in force
	borrowed int // those of them that another berth has made: it may remove them at its end
}

// apply compares the kernel's routes with those of the file. The error has each route that is missing.
func (f *Follower) apply() (found outcome, err error) {
	recorded := f.recorded()
	if len(f.lines) == 0 && len(recorded) == 0 {
		return found, nil
	}
	k, err := readKernel(f.cfg.Handle)
	if err != nil {
		return found, err
	}
	wanted, faults := f.wanted(k, recorded, &found)
	keep := slices.Clone(recorded)
	for _, l := range wanted {
		if !slices.Contains(keep, l.To) {
			keep = append(keep, l.To)
		}
	}
	if err := f.write(recorded, keep); err != nil {
		return found, err
	}
	// Those to remove first: a gateway may be behind one of them.
	keep = slices.DeleteFunc(keep, func(to netip.Prefix) bool {
		if !f.valid || slices.ContainsFunc(wanted, func(l Line) bool { return l.To == to }) {
			return false
		}
		err := k.remove(to)
		if err == nil && slices.Contains(recorded, to) {
			f.cfg.Log.Info("removed a route to another node", "subnet", to)
		}
		faults = append(faults, err)
		return err == nil
	})
	for _, l := range wanted {
		if err := f.force(k, l); err != nil {
			faults = append(faults, fmt.Errorf("%s:%d: %w", f.cfg.File, l.Number, err))
			continue
		}
		found.count++
	}
	return found, errors.Join(append(faults, f.write(f.recorded(), keep))...)
}

// wanted returns the lines that are to be this berth's routes in the kernel. It leaves out the node's own, since nodes of a
// cluster may share one file, and those whose routes others have made, which it counts.
func (f *Follower) wanted(k *kernel, recorded []netip.Prefix, found *outcome) (wanted []Line, faults []error) {
	own := f.cfg.Subnets()
	for _, l := range f.lines {
		if k.own[l.Via] || slices.Contains(own, l.To) {
			continue
		}
		if i := slices.IndexFunc(own, func(p netip.Prefix) bool { return p.Bits() < l.To.Bits() && p.Contains(l.To.Addr()) }); i >= 0 {
			faults = append(faults, fmt.Errorf("%s:%d: %s is a part of this node's own pod subnet %s: %w", f.cfg.File, l.Number, l.To, own[i], errs.Invalid))
			continue
		}
		if by, foreign := k.foreign(l.To, slices.Contains(recorded, l.To)); foreign {
			if same, _ := k.has(l.Route); !same {
				faults = append(faults, fmt.Errorf("%s:%d: the host has a route to %s that this berth has not made (%s), and which stays; remove it or the line: %w", f.cfg.File, l.Number, l.To, by, errs.Exists))
				continue
			}
			found.count++
			if by == otherBerth {
				found.borrowed++
			}
			continue
		}
		wanted = append(wanted, l)
	}
	return wanted, faults
}

// force makes a route unless it is there.
func (f *Follower) force(k *kernel, l Line) error {
	if there, err := k.has(l.Route); there || err != nil {
		return err
	}
	if err := k.set(l.Route); err != nil {
		return err
	}
	f.cfg.Log.Info("made a route to another node", "route", l.String())
	return nil
}

func (f *Follower) recorded() []netip.Prefix {
	rec, err := f.record.Get(recordID)
	if err != nil {
		return nil
	}
	return rec.Subnets
}

// write replaces the record, if it changes.
func (f *Follower) write(before, subnets []netip.Prefix) error {
	slices.SortFunc(subnets, func(a, b netip.Prefix) int {
		return cmp.Or(a.Addr().Compare(b.Addr()), cmp.Compare(a.Bits(), b.Bits()))
	})
	if slices.Equal(before, subnets) {
		return nil
	}
	_, err := f.record.Update(recordID, func(m *made) error { m.Subnets = subnets; return nil })
	if errors.Is(err, errs.NotFound) {
		err = f.record.Create(recordID, &made{Subnets: subnets})
	}
	if err != nil {
		return fmt.Errorf("cannot write down which routes to other nodes are berth's: %w", err)
	}
	return nil
}

// AddTo adds what there is to report, for people. It waits for no comparison.
func (f *Follower) AddTo(info map[string]string) {
	f.seenMu.Lock()
	defer f.seenMu.Unlock()
	if f.cfg.File != "" {
		info["routesFile"], info["routes"] = f.cfg.File, strconv.Itoa(f.seen.count)
	}
	if f.seen.fault != "" {
		info["routesFault"] = f.seen.fault
	}
}

// Remove removes berth's routes. It is for a follower that is closed.
func (f *Follower) Remove() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	recorded := f.recorded()
	if len(recorded) == 0 {
		return nil
	}
	k, err := readKernel(f.cfg.Handle)
	if err != nil {
		return err
	}
	var faults []error
	for _, to := range recorded {
		faults = append(faults, k.remove(to))
	}
	if err := errors.Join(faults...); err != nil {
		return err
	}
	return f.record.Delete(recordID)
}
