package logpump

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"

	"github.com/berthrun/berth/internal/crilog"
	"github.com/berthrun/berth/internal/errs"
)

func TestSubscribersSeeOutputAtOnce(t *testing.T) {
	b := newBench(t)
	p := b.open()
	b.write(b.stdout, "before\n")
	b.expect("0.log", "stdout F before")
	var one, two, errOut lockedBuffer
	first := subscribed(t, p, &one, nil)
	second := subscribed(t, p, &two, &errOut)
	// A prompt has no newline, but clients must see it.
	b.write(b.stdout, "name? ")
	waitFor(t, func() bool { return one.String() == "name? " && two.String() == "name? " })
	first.Close()
	<-first.Done()
	b.write(b.stderr, "complaint")
	waitFor(t, func() bool { return errOut.String() == "complaint" })
	b.write(b.stdout, "berth\n")
	b.drain(p)
	<-second.Done()
	if one.String() != "name? " || two.String() != "name? berth\n" {
		t.Errorf("clients saw %q, %q", one.String(), two.String())
	}
	if err := errors.Join(first.Err(), second.Err()); err != nil {
		t.Error(err)
	}
	late := subscribed(t, p, &one, nil)
	<-late.Done()
}

// TestSlowSubscriberIsDropped: a slow client affects neither the container nor another client.
func TestSlowSubscriberIsDropped(t *testing.T) {
	b := newBench(t)
	p := b.open()
	reader, writer := io.Pipe() // the client never reads
	slow := subscribed(t, p, writer, nil)
	broken := subscribed(t, p, brokenWriter{}, nil)
	line := strings.Repeat("x", 1023) + "\n"
	lines := 2 * backlogMax / len(line)
	seen := &countingWriter{t: t, line: line, done: make(chan struct{}), want: lines * len(line)}
	fast := subscribed(t, p, seen, nil)
	for i := range lines {
		b.write(b.stdout, line)
		if i%1024 == 0 {
			// The fast client reads as fast as required.
			waitFor(t, func() bool { return seen.behind(b, p) < backlogMax/2 })
		}
	}
	<-slow.Done()
	if err := slow.Err(); !errors.Is(err, errs.Exhausted) {
		t.Errorf("slow client: %v, want Exhausted", err)
	}
	<-broken.Done()
	if err := broken.Err(); !errors.Is(err, io.ErrClosedPipe) {
		t.Errorf("broken client: %v, want its writer's error", err)
	}
	b.drain(p)
	<-fast.Done()
	<-seen.done
	if err := fast.Err(); err != nil {
		t.Error(err)
	}
	reader.Close()
}

type brokenWriter struct{}

func (brokenWriter) Write([]byte) (int, error) { return 0, io.ErrClosedPipe }

// countingWriter expects the same line repeatedly.
type countingWriter struct {
	t    *testing.T
	line string
	lockedBuffer
	got, want int
	done      chan struct{}
}

func (w *countingWriter) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, c := range p {
		if c != w.line[w.got%len(w.line)] {
			w.t.Errorf("byte %d is %q", w.got, c)
			return 0, io.ErrShortWrite
		}
		w.got++
	}
	if w.got == w.want {
		close(w.done)
	}
	return len(p), nil
}

func (w *countingWriter) behind(b *bench, p *Pump) int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return int(p.Stats().Read[0]) - w.got
}

// A client that was subscribed to the previous pump gets what was read meanwhile, and nothing
// twice.
func TestResubscribeMissesNothing(t *testing.T) {
	b := newBench(t)
	p := b.open()
	var before, back, fresh lockedBuffer
	sub := subscribed(t, p, &before, nil)
	b.write(b.stdout, "one\ntwo? ")
	waitFor(t, func() bool { return before.String() == "one\ntwo? " })
	p.Close()
	<-sub.Done()
	p = b.open()
	b.write(b.stdout, "three\n")
	b.expect("0.log", "stdout F one", "stdout F two? three")
	again, other := resubscribed(t, p, &back, nil), subscribed(t, p, &fresh, nil)
	b.write(b.stdout, "four\n")
	b.drain(p)
	<-again.Done()
	<-other.Done()
	if back.String() != "three\nfour\n" || fresh.String() != "four\n" {
		t.Errorf("who came back saw %q, who came anew %q", back.String(), fresh.String())
	}
}

func TestReplayIsBounded(t *testing.T) {
	b := newBench(t)
	p := b.open()
	p.Close()
	p = b.open()
	line := strings.Repeat("x", 1023) + "\n"
	for range replayMax/len(line) + 1 {
		b.write(b.stdout, line)
	}
	waitFor(t, func() bool { return p.Stats().Read[0] > replayMax })
	var back lockedBuffer
	sub := resubscribed(t, p, &back, nil)
	b.drain(p)
	<-sub.Done()
	if back.String() != "" {
		t.Errorf("%d bytes were kept, at most %d are", len(back.String()), replayMax)
	}
}

func subscribed(t *testing.T, p *Pump, stdout, stderr io.Writer) *Subscription {
	t.Helper()
	sub, err := p.Subscribe(stdout, stderr)
	if err != nil {
		t.Fatal(err)
	}
	return sub
}

func resubscribed(t *testing.T, p *Pump, stdout, stderr io.Writer) *Subscription {
	t.Helper()
	sub, err := p.Resubscribe(stdout, stderr)
	if err != nil {
		t.Fatal(err)
	}
	return sub
}

// stuckWriter blocks until the test ends, like a client that does not read.
type stuckWriter struct{ t *testing.T }

func (w stuckWriter) Write([]byte) (int, error) {
	<-w.t.Context().Done()
	return 0, io.ErrClosedPipe
}

// A container decides how its output is split. In any case a client that does not read costs at
// most backlogMax, and not a multiple of it.
func TestBacklogCountsItsMemory(t *testing.T) {
	for name, streams := range map[string][]crilog.Stream{
		"single bytes":                {crilog.Stdout},
		"single bytes of two streams": {crilog.Stdout, crilog.Stderr},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t)
			p := b.open()
			sub := subscribed(t, p, stuckWriter{t}, stuckWriter{t})
			before := heap()
			most := int64(0)
			for i := range 4 << 20 {
				p.subscribers.send(streams[i%len(streams)], []byte{'x'})
				if i%(1<<19) == 0 {
					most = max(most, heap()-before)
				}
			}
			if most = max(most, heap()-before); most > 2*backlogMax {
				t.Errorf("a client that does not read takes %d bytes of memory, want at most %d", most, 2*backlogMax)
			}
			sub.Close()
		})
	}
}

// Single bytes that a new supervisor reads cost at most replayMax.
func TestReplayCountsItsMemory(t *testing.T) {
	f := &fanOut{budget: &budget{}}
	f.startReplay()
	before := heap()
	for i := range replayMax / chunkOverhead {
		f.send(crilog.Stream(i%int(crilog.Streams)), []byte{'x'})
	}
	if took := heap() - before; took > 2*replayMax {
		t.Errorf("output for replay takes %d bytes of memory, want at most %d", took, 2*replayMax)
	}
}

// The bytes of a chunk arrive in order, however chunks were joined.
func TestBacklogKeepsOrder(t *testing.T) {
	var b backlog
	var want, got strings.Builder
	for i := range 3 * chunkMax {
		stream := crilog.Stream(i / 5000 % 2)
		piece := strings.Repeat(string(rune('a'+i%26)), 1+i%7)
		b.add(stream, []byte(piece))
		fmt.Fprintf(&want, "%d%s", stream, strings.Join(strings.Split(piece, ""), fmt.Sprint(int(stream))))
	}
	for {
		c, ok := b.next()
		if !ok {
			break
		}
		for _, char := range c.data {
			fmt.Fprintf(&got, "%d%c", c.stream, char)
		}
	}
	if got.String() != want.String() {
		t.Error("output came out of the backlog in another order than it went in")
	}
	if b.cost != 0 {
		t.Errorf("an empty backlog costs %d bytes", b.cost)
	}
}

func TestSubscribersAreLimited(t *testing.T) {
	b := newBench(t)
	p := b.open()
	var subs []*Subscription
	for range subscribersMax {
		subs = append(subs, subscribed(t, p, io.Discard, nil))
	}
	if _, err := p.Subscribe(io.Discard, nil); !errors.Is(err, errs.Exhausted) {
		t.Fatalf("subscriber %d: %v, want Exhausted", subscribersMax+1, err)
	}
	subs[0].Close()
	if _, err := p.Subscribe(io.Discard, nil); err != nil {
		t.Errorf("after one left: %v", err)
	}
}

// The containers of a pod share a budget. The client with the largest backlog is dropped, and a
// client that reads keeps its stream.
func TestPodsShareABudget(t *testing.T) {
	b := newBench(t)
	one := b.open()
	other := newBench(t)
	other.cfg.LogDir, other.cfg.LogPath, other.loop = b.cfg.LogDir, "other.log", b.loop
	two := other.open()
	// Another pod does not count.
	stranger := newBench(t)
	stranger.loop = b.loop
	three := stranger.open()
	var stuck []*Subscription
	for range 3 {
		stuck = append(stuck, subscribed(t, one, stuckWriter{t}, nil), subscribed(t, two, stuckWriter{t}, nil))
	}
	var seen lockedBuffer
	reads := subscribed(t, two, &seen, nil)
	apart := subscribed(t, three, stuckWriter{t}, nil)
	piece := bytes.Repeat([]byte("x"), 1<<20)
	for i := range 6 {
		one.subscribers.send(crilog.Stdout, piece)
		two.subscribers.send(crilog.Stdout, piece)
		three.subscribers.send(crilog.Stdout, piece)
		// A client that was not scheduled yet has the same backlog as one that does not read.
		waitFor(t, func() bool { return len(seen.String()) == (i+1)<<20 })
	}
	dropped := 0
	for _, sub := range stuck {
		if sub.isOver() {
			dropped++
			if err := sub.Err(); !errors.Is(err, errs.Exhausted) {
				t.Errorf("a dropped client got %v, want Exhausted", err)
			}
		}
	}
	if dropped == 0 || dropped == len(stuck) {
		t.Errorf("%d of %d clients that do not read were dropped, want some", dropped, len(stuck))
	}
	if used := one.subscribers.budget.used.Load(); used > podBacklogMax {
		t.Errorf("the pod's clients keep %d bytes, want at most %d", used, podBacklogMax)
	}
	if apart.isOver() {
		t.Error("a client of another pod was dropped")
	}
	if reads.isOver() {
		t.Errorf("the client that reads was dropped: %v", reads.Err())
	}
}
