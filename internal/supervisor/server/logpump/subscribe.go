package logpump

import (
	"fmt"
	"io"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/berthrun/berth/internal/crilog"
	"github.com/berthrun/berth/internal/errs"
)

const (
	// backlogMax is the memory that the backlog of one subscriber may take.
	backlogMax = 8 << 20
	// subscribersMax is how many subscribers one container has at most.
	subscribersMax = 64
)

// A recovered pump keeps its first output for a while: the subscribers of its
// predecessor reconnect a moment later. replayMax bounds the memory for it.
const (
	replayFor = 10 * time.Second
	replayMax = 256 << 10
)

// fanOut gives output to the subscribers of one container.
type fanOut struct {
	// budget bounds the memory of all fans of the pod.
	budget *budget

	mu    sync.Mutex
	subs  []*Subscription
	ended bool
	// replay is all output so far, while replaying is true.
	replaying bool
	replay    backlog
}

// startReplay keeps output for the predecessor's subscribers for replayFor.
func (f *fanOut) startReplay() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.replaying = true
	time.AfterFunc(replayFor, func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		f.stopReplay()
	})
}

// stopReplay drops the kept output. f.mu is held.
func (f *fanOut) stopReplay() {
	f.replaying = false
	f.replay.clear()
}

// send sends a copy of data to every subscriber. It never waits for one.
func (f *fanOut) send(s crilog.Stream, data []byte) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.replaying {
		if f.replay.add(s, data); f.replay.cost > replayMax {
			f.stopReplay()
		}
	}
	live := f.subs[:0]
	for _, sub := range f.subs {
		if sub.push(s, data) {
			live = append(live, sub)
		}
	}
	clear(f.subs[len(live):])
	f.subs = live
}

// end ends every subscriber after its queued output.
func (f *fanOut) end() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.ended = true
	for _, sub := range f.subs {
		sub.finish()
	}
	f.subs = nil
}

// add makes sub a subscriber: Exhausted when the container has subscribersMax.
func (f *fanOut) add(sub *Subscription, back bool) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.subs = slices.DeleteFunc(f.subs, (*Subscription).isOver)
	if len(f.subs) >= subscribersMax {
		return fmt.Errorf("the container has %d attached clients already, detach one of them: %w", len(f.subs), errs.Exhausted)
	}
	f.budget.join(sub)
	if back {
		for _, c := range f.replay.chunks {
			sub.push(c.stream, c.data)
		}
	}
	if f.ended {
		sub.finish()
		return nil
	}
	f.subs = append(f.subs, sub)
	return nil
}

// Subscription is one client that gets a container's output as it is read.
type Subscription struct {
	sinks  [crilog.Streams]io.Writer
	budget *budget
	done   chan struct{}
	// cost is the cost of waiting, for readers without mu.
	cost atomic.Int64

	mu      sync.Mutex
	waiting backlog
	wake    chan struct{} // has room for one
	last    bool          // nothing comes behind what waits
	over    bool
	err     error
}

// Subscribe writes all output that is read from now on to stdout and stderr. Either may
// be nil. It keeps the order of the bytes within a stream, and the order in which the
// streams were read. It ends when Drain has ended or the pump is closed, when a writer
// fails, or when the client falls too far behind: a client never slows the container or
// another client.
//
// One goroutine of the subscription uses the writers. A writer that blocks forever keeps
// the goroutine: to drop a client, close its connection.
//
// Exhausted when the container has too many subscribers. A subscription also ends
// with Exhausted when the subscribers of its pod take too much memory together,
// and it takes the most of them.
func (p *Pump) Subscribe(stdout, stderr io.Writer) (*Subscription, error) {
	return p.subscribe(stdout, stderr, false)
}

// Resubscribe is Subscribe for a subscriber of the predecessor of a recovered pump. It
// begins with all that this pump has read, if the recovery was within replayFor and the
// output within replayMax. Output that the predecessor read and did not send is only in
// the log.
func (p *Pump) Resubscribe(stdout, stderr io.Writer) (*Subscription, error) {
	return p.subscribe(stdout, stderr, true)
}

func (p *Pump) subscribe(stdout, stderr io.Writer, back bool) (*Subscription, error) {
	sub := &Subscription{
		sinks:  [crilog.Streams]io.Writer{stdout, stderr},
		budget: p.subscribers.budget,
		done:   make(chan struct{}),
		wake:   make(chan struct{}, 1),
	}
	if err := p.subscribers.add(sub, back); err != nil {
		return nil, err
	}
	go sub.run()
	return sub, nil
}

// Done is closed when nothing more will be written.
func (s *Subscription) Done() <-chan struct{} { return s.done }

// Err returns why the subscription ended: nil at the end of the output or by Close,
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

// isOver reports whether the subscription has ended.
func (s *Subscription) isOver() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.over
}

// push queues a copy of data and reports whether the subscription continues.
func (s *Subscription) push(stream crilog.Stream, data []byte) bool {
	s.queue(stream, data)
	// Not under s.mu: the budget may end any subscription of the pod.
	s.budget.enforce()
	return !s.isOver()
}

func (s *Subscription) queue(stream crilog.Stream, data []byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.over || s.sinks[stream] == nil {
		return
	}
	s.waiting.add(stream, data)
	s.account()
	if s.waiting.cost > backlogMax {
		s.stop(fmt.Errorf("client fell behind the container and was dropped: its backlog takes %d bytes of memory: %w",
			s.waiting.cost, errs.Exhausted))
		return
	}
	s.wakeUp()
}

// account updates what the backlog takes of the budget. s.mu is held.
func (s *Subscription) account() {
	now := int64(s.waiting.cost)
	s.budget.used.Add(now - s.cost.Swap(now))
}

// finish ends the subscription after the queued output.
func (s *Subscription) finish() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.last = true
	s.wakeUp()
}

// dropFor ends the subscription because its pod's subscribers take too much.
func (s *Subscription) dropFor(used int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.stop(fmt.Errorf("client fell behind the container and was dropped: the attach clients of its pod keep %d bytes of output waiting: %w",
		used, errs.Exhausted))
}

// stop ends the subscription. s.mu is held.
func (s *Subscription) stop(err error) {
	if s.over {
		return
	}
	s.over, s.err = true, err
	s.waiting.clear()
	s.account()
	s.budget.leave(s)
	close(s.done)
	s.wakeUp()
}

func (s *Subscription) wakeUp() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// run writes the queued output.
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
	next, ok := s.waiting.next()
	if !ok && s.last {
		s.stop(nil)
		return chunk{}, false
	}
	s.account()
	return next, true
}
