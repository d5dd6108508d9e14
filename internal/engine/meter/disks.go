package meter

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"

	"github.com/berthrun/berth/internal/engine"
	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/image"
	"github.com/berthrun/berth/internal/sys/sysfile"
)

const (
	// diskAge is how old a size may be before it is measured again: measuring walks
	// every file that a container wrote.
	diskAge = 15 * time.Second
	// sumAge is diskAge for the sum of all containers, which nobody needs as exactly.
	sumAge = 5 * time.Minute
	// diskTimeout is how long a request waits for the first size of a container.
	diskTimeout = time.Second
	// walkers is how many containers are walked at a time.
	walkers = 2
	// walkSlice is how long a layer is walked in one turn. A walk that is not over by then has
	// walkRest of pause, and goes to the end of the queue: a layer with many files takes at most
	// a tenth of a core from the host for each walker, and no walker from the others.
	walkSlice = 20 * time.Millisecond
	walkRest  = 180 * time.Millisecond
	// walkLimit bounds one walk: programs may make directories faster than they are counted.
	walkLimit = 5 * time.Minute
)

// disks measures writable layers in the background.
type disks struct {
	usage func(id string, pace sysfile.Pace) (image.Usage, error)
	// end ends the background work, and over is closed then.
	end  context.CancelFunc
	over <-chan struct{}
	done sync.WaitGroup
	turn chan struct{}

	mu      sync.Mutex
	entries map[string]*disk
	// devices are the sources of mounts, by the st_dev of what is on them: layers may be directories of their
	// own on one mount.
	devices map[uint64]string
}

// disk is one container's writable layer.
type disk struct {
	written *engine.Written
	// measuring is closed at the end of the measurement under way, nil for none.
	measuring chan struct{}
}

func newDisks(usage func(context.Context, string, sysfile.Pace) (image.Usage, error)) *disks {
	ctx, end := context.WithCancel(context.Background())
	return &disks{
		usage: func(id string, pace sysfile.Pace) (image.Usage, error) { return usage(ctx, id, pace) },
		end:   end, over: ctx.Done(), turn: make(chan struct{}, walkers),
		entries: map[string]*disk{}, devices: map[uint64]string{},
	}
}

func (d *disks) close() {
	d.end()
	d.done.Wait()
}

func (d *disks) forget(id string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.entries, id)
}

// of returns the known sizes, and starts to measure old ones again. It waits up to
// diskTimeout for sizes that were never measured.
func (d *disks) of(ctx context.Context, targets map[string]Target) (map[string]*engine.Written, error) {
	var first []chan struct{}
	for id, target := range targets {
		if !target.Writes {
			continue
		}
		if measuring := d.refresh(id, diskAge); measuring != nil {
			first = append(first, measuring)
		}
	}
	patience, cancel := context.WithTimeout(ctx, diskTimeout)
	defer cancel()
	for _, measuring := range first {
		select {
		case <-measuring:
		case <-patience.Done():
		}
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	all := make(map[string]*engine.Written, len(targets))
	for id := range targets {
		if e := d.entries[id]; e != nil {
			all[id] = e.written
		}
	}
	return all, ctx.Err()
}

// known returns the known sizes, and starts to measure those that are not known or older than sumAge.
func (d *disks) known(ids []string) []*engine.Written {
	for _, id := range ids {
		d.refresh(id, sumAge)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	var all []*engine.Written
	for _, id := range ids {
		if e := d.entries[id]; e != nil && e.written != nil {
			all = append(all, e.written)
		}
	}
	return all
}

// refresh starts a measurement if the size is older than age or not known, and returns what to wait for when
// there is no size yet.
func (d *disks) refresh(id string, age time.Duration) chan struct{} {
	d.mu.Lock()
	defer d.mu.Unlock()
	e := d.entries[id]
	if e == nil {
		e = &disk{}
		d.entries[id] = e
	}
	due := e.written == nil || time.Since(e.written.At) > age
	if due && e.measuring == nil {
		e.measuring = make(chan struct{})
		d.done.Go(func() { errs.Protect("measurement of the disk of "+id, func() { d.measure(id, e) }) })
	}
	if e.written == nil {
		return e.measuring
	}
	return nil
}

// errEnough ends a walk that has taken too long.
var errEnough = errors.New("the walk has taken too long")

// walk is one measurement under way.
type walk struct {
	d     *disks
	begun time.Time
	// turn is when its turn began, zero while it has none. It measures without one until the first call of pace.
	turn time.Time
}

// walk measures a layer by turns. The first one begins with the first call of pace: before it reads a tree, a measurement may
// wait for a snapshotter.
func (d *disks) walk(id string) (image.Usage, error) {
	w := &walk{d: d, begun: time.Now()}
	defer w.leave()
	return d.usage(id, w.pace)
}

// take waits for a turn, and returns false once the background work has ended. Waiters are
// served in order.
func (w *walk) take() bool {
	select {
	case w.d.turn <- struct{}{}:
		w.turn = time.Now()
		return true
	case <-w.d.over:
		return false
	}
}

func (w *walk) leave() {
	if !w.turn.IsZero() {
		<-w.d.turn
		w.turn = time.Time{}
	}
}

// pace ends a turn that has taken its time, and waits for the next one.
func (w *walk) pace(ctx context.Context) error {
	if err := context.Cause(ctx); err != nil {
		return err
	}
	if w.turn.IsZero() {
		if !w.take() {
			return context.Canceled
		}
		return nil
	}
	if time.Since(w.turn) < walkSlice {
		return nil
	}
	if time.Since(w.begun) > walkLimit {
		return errEnough
	}
	// The walker rests with it: several large layers take no more than one.
	select {
	case <-time.After(walkRest):
	case <-w.d.over:
	}
	w.leave()
	if !w.take() {
		return context.Canceled
	}
	return nil
}

// measure is one measurement. A layer that cannot be measured keeps its last size; of one
// whose walk takes too long, what was counted is its size.
func (d *disks) measure(id string, e *disk) {
	usage, err := d.walk(id)
	var written *engine.Written
	if err == nil || errors.Is(err, errEnough) {
		written = &engine.Written{
			At: usage.At, Mountpoint: usage.Mountpoint, Bytes: uint64(max(usage.Bytes, 0)), Inodes: uint64(max(usage.Inodes, 0)),
		}
		if size, err := sysfile.SizeOf(usage.Mountpoint); err == nil {
			written.Capacity, written.InodesTotal, written.InodesFree = size.Bytes, size.Inodes, size.InodesFree
		}
		written.Device = d.device(usage.Mountpoint)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if written != nil {
		e.written = written
	}
	close(e.measuring)
	e.measuring = nil
	if errors.Is(err, errs.NotFound) && d.entries[id] == e {
		delete(d.entries, id)
	}
}

// device is the source of the mount that dir is on.
func (d *disks) device(dir string) string {
	var st unix.Stat_t
	if err := unix.Stat(dir, &st); err != nil {
		return ""
	}
	d.mu.Lock()
	device, known := d.devices[st.Dev]
	d.mu.Unlock()
	if known {
		return device
	}
	infos, err := mountinfo.GetMounts(mountinfo.ParentsFilter(dir))
	if err != nil {
		return ""
	}
	longest := -1
	for _, info := range infos {
		// Of two at one place the later one covers.
		if len(info.Mountpoint) >= longest {
			device, longest = info.Source, len(info.Mountpoint)
		}
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.devices[st.Dev] = device
	return device
}
