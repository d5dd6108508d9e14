package logs

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/berthrun/berth/internal/errs"
)

// Bounds of what waits for the disk. Output is written when enough of it waits, or after
// gatherTime. A container whose log cannot be written keeps at most one batch in memory: its
// output stays with the engine.
const (
	enoughToWrite = 64 << 10
	gatherTime    = 5 * time.Millisecond
	batchMax      = 256 << 10
	// keepBuffer is the size of a buffer that is kept while a container is silent.
	keepBuffer = 16 << 10
)

// A failed write is retried after backoffMin, then after twice as long, up to backoffMax.
const (
	backoffMin = 50 * time.Millisecond
	backoffMax = 5 * time.Second
)

// outlet takes messages of one container and writes them to its log. A goroutine writes while
// there is something to write, so a disk that hangs holds up one container.
//
//	put ──▶ batch ──▶ log file ──▶ record
type outlet struct {
	file   file
	done   <-chan struct{}
	log    *slog.Logger
	urge   chan struct{}
	room   chan struct{}
	mu     sync.Mutex
	pen    pen
	batch  []byte
	opened bool
	// working is true while the goroutine runs; stopped when none may start.
	working, stopped bool
	reopens          []chan error
	// fault is why the log cannot be written, changed is closed when that changes.
	fault   error
	changed chan struct{}
}

func newOutlet(c *Container, m *Manager, log *slog.Logger, done <-chan struct{}) *outlet {
	return &outlet{
		file: file{place: c.place(), recordPath: recordPath(c.Dir), write: m.write, log: log},
		done: done, log: log, pen: pen{maxLine: m.maxLine},
		urge: make(chan struct{}, 1), room: make(chan struct{}, 1), changed: make(chan struct{}),
	}
}

// open finds what is in the log.
func (o *outlet) open() error {
	written, err := o.file.recover()
	if err != nil {
		return err
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	o.pen.written = written
	o.pen.restart()
	o.opened = true
	o.start()
	return nil
}

// begin returns where a new stream has to begin, and what drops the messages that are not new.
// before is how much older than the last line a new message may be.
func (o *outlet) begin(before time.Duration) (since string, s *sieve) {
	o.mu.Lock()
	defer o.mu.Unlock()
	since = o.pen.written.since(time.Now(), before)
	o.pen.restart()
	return since, newSieve(&o.pen.written)
}

// contains reports whether a message, the engine's last one, was put. It is false if that is
// not certain: journald gives several messages one time, since its times have microseconds.
func (o *outlet) contains(m message) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	c := &o.pen.written.Streams[m.stream]
	return !o.pen.dropped && m.at == c.At && !c.Open && len(o.pen.waiting[m.stream].raw) == 0 &&
		m.at%int64(time.Microsecond) != 0 && m.raw[len(m.raw)-1] == '\n'
}

// put takes a message. It waits while a batch is full.
func (o *outlet) put(ctx context.Context, m message) error {
	for {
		o.mu.Lock()
		if len(o.batch) < batchMax {
			o.batch = o.pen.add(o.batch, m)
			o.start()
			full := len(o.batch) >= enoughToWrite
			o.mu.Unlock()
			if full {
				o.hurry()
			}
			return nil
		}
		o.mu.Unlock()
		if err := o.wait(ctx); err != nil {
			return err
		}
	}
}

// finish takes the end of the output, and waits until all is in the log.
func (o *outlet) finish(ctx context.Context) error {
	o.mu.Lock()
	o.batch = o.pen.finish(o.batch)
	o.start()
	o.mu.Unlock()
	for {
		o.mu.Lock()
		idle := len(o.batch) == 0 && !o.working
		o.stopped = o.stopped || idle
		o.mu.Unlock()
		if idle {
			return o.file.cutTorn()
		}
		o.hurry()
		if err := o.wait(ctx); err != nil {
			return err
		}
	}
}

// shut waits for a write under way and closes the file. Nothing is written after it.
func (o *outlet) shut() {
	for {
		o.mu.Lock()
		o.stopped = true
		working := o.working
		o.mu.Unlock()
		if !working {
			o.file.close()
			return
		}
		<-o.room
	}
}

func (o *outlet) wait(ctx context.Context) error {
	select {
	case <-o.room:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// hurry ends the gathering of a batch.
func (o *outlet) hurry() { signal(o.urge) }

func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// start starts the goroutine unless it runs. o.mu is held.
func (o *outlet) start() {
	if o.working || o.stopped || !o.opened || (len(o.batch) == 0 && len(o.reopens) == 0) {
		return
	}
	o.working = true
	go o.work()
}

// work writes until there is nothing to write.
func (o *outlet) work() {
	defer signal(o.room)
	var spare []byte
	for {
		o.gather()
		o.mu.Lock()
		if (len(o.batch) == 0 && len(o.reopens) == 0) || o.isDone() {
			o.working = false
			o.refuse(fmt.Errorf("the log is no longer written: %w", errs.State))
			if cap(o.batch) > keepBuffer && len(o.batch) == 0 {
				o.batch = nil
			}
			o.mu.Unlock()
			return
		}
		batch, written, reopens := o.batch, o.pen.written, o.reopens
		o.batch, o.reopens = spare[:0], nil
		o.mu.Unlock()
		signal(o.room)
		o.store(batch, written, reopens)
		spare = batch
	}
}

// gather waits until a batch is worth a write.
func (o *outlet) gather() {
	o.mu.Lock()
	enough := len(o.batch) >= enoughToWrite || len(o.reopens) > 0 || len(o.batch) == 0
	o.mu.Unlock()
	if enough {
		return
	}
	timer := time.NewTimer(gatherTime)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-o.urge:
	case <-o.done:
	}
}

// store writes one batch, however often that takes, and then reopens the log if wanted.
func (o *outlet) store(batch []byte, written progress, reopens []chan error) {
	pause := backoffMin
	for {
		err := o.file.append(batch, written)
		o.setFault(err)
		if err == nil {
			break
		}
		for _, result := range reopens {
			result <- fmt.Errorf("cannot reopen the log before its old file is complete: %w (%w)", err, errs.Unavailable)
		}
		select {
		case <-time.After(pause):
		case <-o.done:
			return
		}
		pause = min(2*pause, backoffMax)
		// A request during the pause fails with the next attempt.
		o.mu.Lock()
		reopens, o.reopens = o.reopens, nil
		o.mu.Unlock()
	}
	for _, result := range reopens {
		result <- o.file.reopen()
	}
}

func (o *outlet) isDone() bool {
	select {
	case <-o.done:
		return true
	default:
		return false
	}
}

// refuse answers all requests with an error. o.mu is held.
func (o *outlet) refuse(err error) {
	for _, result := range o.reopens {
		result <- err
	}
	o.reopens = nil
}

func (o *outlet) setFault(err error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	switch {
	case (err == nil) == (o.fault == nil):
		o.fault = err
		return
	case err == nil:
		o.log.Info("the log can be written again")
	case gone(err):
		o.log.Warn("the log file is gone; its lines wait with the engine until it can be made again", "error", err)
	default:
		o.log.Warn("cannot write the log; its lines wait with the engine", "error", err)
	}
	o.fault = err
	close(o.changed)
	o.changed = make(chan struct{})
}

// state returns a channel that is closed when the state changes, and why the log cannot be
// written, nil when it can be.
func (o *outlet) state() (changed <-chan struct{}, fault error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.changed, o.fault
}

// reopen continues in the file at the path.
func (o *outlet) reopen(ctx context.Context) error {
	result := make(chan error, 1)
	o.mu.Lock()
	if o.stopped || o.isDone() {
		o.mu.Unlock()
		return fmt.Errorf("the log is complete: %w", errs.State)
	}
	o.reopens = append(o.reopens, result)
	o.start()
	o.mu.Unlock()
	o.hurry()
	select {
	case err := <-result:
		return err
	case <-ctx.Done():
		err := fmt.Errorf("cannot reopen the log: its file system does not answer (%w): %w", ctx.Err(), errs.Unavailable)
		if _, fault := o.state(); fault != nil {
			err = errors.Join(err, fault)
		}
		return err
	case <-o.done:
		return fmt.Errorf("the log is no longer written: %w", errs.State)
	}
}
