package meter

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/moby/sys/mountinfo"

	"github.com/berthrun/berth/internal/engine"
	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/image"
	"github.com/berthrun/berth/internal/sys/sysfile"
)

const (
	// diskAge is how old a size may be before it is measured anew: measuring walks
	// every file that a container wrote.
	diskAge = 15 * time.Second
	// diskPatience is how long a request waits for the first size of a container.
	diskPatience = time.Second
	// walkers is how many containers are walked at a time.
	walkers = 2
)

// disks measures writable layers in the background.
type disks struct {
	usage func(id string) (image.Usage, error)
	// end ends the background work, and over is closed then.
	end  context.CancelFunc
	over <-chan struct{}
	done sync.WaitGroup
	turn chan struct{}

	mu      sync.Mutex
	entries map[string]*disk
	devices map[string]string
}

// disk is one container's writable layer.
type disk struct {
	written *engine.Written
	// measuring is closed at the end of the measurement under way, nil for none.
	measuring chan struct{}
}

func newDisks(usage func(context.Context, string) (image.Usage, error)) *disks {
	ctx, end := context.WithCancel(context.Background())
	return &disks{
		usage: func(id string) (image.Usage, error) { return usage(ctx, id) },
		end:   end, over: ctx.Done(), turn: make(chan struct{}, walkers),
		entries: map[string]*disk{}, devices: map[string]string{},
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

// of returns the sizes that are known, and sees to it that old ones are measured
// anew. It waits a little for those that never were.
func (d *disks) of(ctx context.Context, targets map[string]Target) (map[string]*engine.Written, error) {
	var first []chan struct{}
	for id, target := range targets {
		if !target.Writes {
			continue
		}
		if measuring := d.refresh(id); measuring != nil {
			first = append(first, measuring)
		}
	}
	patience, cancel := context.WithTimeout(ctx, diskPatience)
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

// refresh starts a measurement where one is due, and returns what to wait for when
// there is no size yet.
func (d *disks) refresh(id string) chan struct{} {
	d.mu.Lock()
	defer d.mu.Unlock()
	e := d.entries[id]
	if e == nil {
		e = &disk{}
		d.entries[id] = e
	}
	due := e.written == nil || time.Since(e.written.At) > diskAge
	if due && e.measuring == nil {
		e.measuring = make(chan struct{})
		d.done.Go(func() { d.measure(id, e) })
	}
	if e.written == nil {
		return e.measuring
	}
	return nil
}

// measure is one measurement. A layer that cannot be measured keeps its last size.
func (d *disks) measure(id string, e *disk) {
	select {
	case d.turn <- struct{}{}:
		defer func() { <-d.turn }()
	case <-d.over:
	}
	usage, err := d.usage(id)
	var written *engine.Written
	if err == nil {
		written = &engine.Written{
			At: usage.At, Mountpoint: usage.Mountpoint, Bytes: uint64(max(usage.Bytes, 0)), Inodes: uint64(max(usage.Inodes, 0)),
		}
		if size, err := sysfile.SizeOf(usage.Mountpoint); err == nil {
			written.Capacity, written.InodesTotal, written.InodesFree = size.Bytes, size.Inodes, size.InodesFree
		}
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if written != nil {
		written.Device = d.device(usage.Mountpoint)
		e.written = written
	}
	close(e.measuring)
	e.measuring = nil
	if errors.Is(err, errs.NotFound) && d.entries[id] == e {
		delete(d.entries, id)
	}
}

// device is the source of the mount that dir is on. The caller holds the lock.
func (d *disks) device(dir string) string {
	if device, known := d.devices[dir]; known {
		return device
	}
	infos, err := mountinfo.GetMounts(mountinfo.ParentsFilter(dir))
	if err != nil {
		return ""
	}
	device, longest := "", -1
	for _, info := range infos {
		// Of two at one place the later one covers.
		if len(info.Mountpoint) >= longest {
			device, longest = info.Source, len(info.Mountpoint)
		}
	}
	d.devices[dir] = device
	return device
}
