package logpump

import (
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/berthrun/berth/internal/crilog"
	"github.com/berthrun/berth/internal/errs"
)

// backlogMax is how far a subscriber may fall behind.
const backlogMax = 8 << 20

// A pump that goes on where a predecessor stopped keeps for a while what it reads
// first: whoever was subscribed there comes back a moment later. recallMax bounds it.
const (
	recallFor = 10 * time.Second
	recallMax = 128 << 10
)

// fan gives output to subscribers.
type fan struct {
	mu    sync.Mutex
	subs  []*Subscription
	ended bool
	// recall is all output so far, while recalls is true.
	recalls bool
	recall  []chunk
	size    int
}

// keep keeps output for who comes back, for a while.
func (f *fan) keep() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.recalls = true
	time.AfterFunc(recallFor, func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		f.drop()
	})
}

// drop keeps no more. f.mu is held.
func (f *fan) drop() { f.recalls, f.recall, f.size = false, nil, 0 }

// give hands data, which it copies, to every subscriber. It never waits for one.
func (f *fan) give(s crilog.Stream, data []byte) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.subs) == 0 && !f.recalls {
		return
	}
	shared := append([]byte(nil), data...)
	if f.recalls {
		f.recall = append(f.recall, chunk{s, shared})
		if f.size += len(shared); f.size > recallMax {
			f.drop()
		}
	}
	live := f.subs[:0]
	for _, sub := range f.subs {
		if sub.push(s, shared) {
			live = append(live, sub)
		}
	}
	clear(f.subs[len(live):])
	f.subs = live
}

// end lets every subscriber have what it was given, and no more.
func (f *fan) end() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.ended = true
	for _, sub := range f.subs {
		sub.finish()
	}
	f.subs = nil
}

func (f *fan) add(sub *Subscription, back bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if back {
		for _, c := range f.recall {
			sub.push(c.stream, c.data)
		}
	}
	if f.ended {
		sub.finish()
		return
	}
	f.subs = append(f.subs, sub)
}

// Subscription is one client that sees a container's output as it comes.
type Subscription struct {
	sinks [crilog.Streams]io.Writer
	done  chan struct{}

	mu      sync.Mutex
	queue   []chunk
	backlog int
	wake    chan struct{} // has room for one
	last    bool          // nothing comes behind the queue
	over    bool
	err     error
}

type chunk struct {
	stream crilog.Stream
	data   []byte
}

// Subscribe gives all output that is read from now on to stdout and stderr; a nil
// one is left out. The order of the bytes within a stream is kept, and that of the
// streams as they were read. It ends when Drain has ended, or the pump is closed;
// when a writer fails; or when the client falls too far behind: it never slows the
// container or another client.
//
// The writers are used by one goroutine of the subscription. One that blocks for
// ever keeps it: who drops a client closes its connection.
func (p *Pump) Subscribe(stdout, stderr io.Writer) *Subscription {
	return p.subscribe(stdout, stderr, false)
}

// Resubscribe is Subscribe for one who was subscribed to the predecessor of a pump
// that was recovered: it begins with what this one has read since, if that is neither
// too long ago nor too much. What the predecessor read and did not come to give away
// is in the log alone.
func (p *Pump) Resubscribe(stdout, stderr io.Writer) *Subscription {
	return p.subscribe(stdout, stderr, true)
}

func (p *Pump) subscribe(stdout, stderr io.Writer, back bool) *Subscription {
	sub := &Subscription{
		sinks: [crilog.Streams]io.Writer{stdout, stderr},
		done:  make(chan struct{}),
		wake:  make(chan struct{}, 1),
	}
	p.fan.add(sub, back)
	go sub.run()
	return sub
}

// Done is closed when nothing more will be written.
func (s *Subscription) Done() <-chan struct{} { return s.done }

// Err tells why the subscription ended: nil at the end of the output or by Close,
// Exhausted for a client that was too slow, else the writer's error. It is nil
// before Done is closed.
func (s *Subscription) Err() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.err
}

// Close ends the subscription at once. A write that is under way may still end.
func (s *Subscription) Close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.stop(nil)
}

// push queues data and tells if the subscription still lives.
func (s *Subscription) push(stream crilog.Stream, data []byte) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.over:
		return false
	case s.sinks[stream] == nil:
		return true
	case s.backlog+len(data) > backlogMax:
		s.stop(fmt.Errorf("client is %d bytes behind the container and was dropped: %w", s.backlog, errs.Exhausted))
		return false
	}
	s.queue = append(s.queue, chunk{stream, data})
	s.backlog += len(data)
	s.rouse()
	return true
}

// finish ends the subscription behind what is queued.
func (s *Subscription) finish() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.last = true
	s.rouse()
}

// stop ends the subscription. s.mu is held.
func (s *Subscription) stop(err error) {
	if s.over {
		return
	}
	s.over, s.err = true, err
	s.queue, s.backlog = nil, 0
	close(s.done)
	s.rouse()
}

func (s *Subscription) rouse() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// run writes what is queued.
func (s *Subscription) run() {
	for {
		next, ok := s.pop()
		if !ok {
			return
		}
		if next.data == nil {
			<-s.wake
			continue
		}
		if _, err := s.sinks[next.stream].Write(next.data); err != nil {
			s.mu.Lock()
			s.stop(fmt.Errorf("cannot write to a client: %w", err))
			s.mu.Unlock()
			return
		}
	}
}

// pop returns the next chunk, or one without data if there is none yet.
func (s *Subscription) pop() (chunk, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.over {
		return chunk{}, false
	}
	if len(s.queue) == 0 {
		if s.last {
			s.stop(nil)
			return chunk{}, false
		}
		s.queue = nil
		return chunk{}, true
	}
	next := s.queue[0]
	s.queue[0] = chunk{}
	s.queue = s.queue[1:]
	s.backlog -= len(next.data)
	return next, true
}
