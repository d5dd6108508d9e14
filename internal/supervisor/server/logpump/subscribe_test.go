package logpump

import (
	"errors"
	"io"
	"strings"
	"testing"

	"github.com/berthrun/berth/internal/errs"
)

func TestSubscribersSeeOutputAtOnce(t *testing.T) {
	b := newBench(t)
	p := b.open()
	b.write(b.stdout, "before\n")
	b.expect("0.log", "stdout F before")
	var one, two, errOut lockedBuffer
	first := p.Subscribe(&one, nil)
	second := p.Subscribe(&two, &errOut)
	// A prompt has no newline and must be seen nevertheless.
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
	late := p.Subscribe(&one, nil)
	<-late.Done()
}

// TestSlowSubscriberIsDropped: neither the container nor another client notices.
func TestSlowSubscriberIsDropped(t *testing.T) {
	b := newBench(t)
	p := b.open()
	reader, writer := io.Pipe() // nobody reads
	slow := p.Subscribe(writer, nil)
	broken := p.Subscribe(brokenWriter{}, nil)
	line := strings.Repeat("x", 1023) + "\n"
	lines := 2 * backlogMax / len(line)
	seen := &countingWriter{t: t, line: line, done: make(chan struct{}), want: lines * len(line)}
	fast := p.Subscribe(seen, nil)
	for i := range lines {
		b.write(b.stdout, line)
		if i%1024 == 0 {
			// The fast client is as fast as a client must be.
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

// countingWriter expects the same line again and again.
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

// Who was subscribed to a predecessor comes back to what was read meanwhile, and to
// nothing twice.
func TestResubscribeMissesNothing(t *testing.T) {
	b := newBench(t)
	p := b.open()
	var before, back, fresh lockedBuffer
	sub := p.Subscribe(&before, nil)
	b.write(b.stdout, "one\ntwo? ")
	waitFor(t, func() bool { return before.String() == "one\ntwo? " })
	p.Close()
	<-sub.Done()
	p = b.open()
	b.write(b.stdout, "three\n")
	b.expect("0.log", "stdout F one", "stdout F two? three")
	again, other := p.Resubscribe(&back, nil), p.Subscribe(&fresh, nil)
	b.write(b.stdout, "four\n")
	b.drain(p)
	<-again.Done()
	<-other.Done()
	if back.String() != "three\nfour\n" || fresh.String() != "four\n" {
		t.Errorf("who came back saw %q, who came anew %q", back.String(), fresh.String())
	}
}

func TestRecallIsBounded(t *testing.T) {
	b := newBench(t)
	p := b.open()
	p.Close()
	p = b.open()
	line := strings.Repeat("x", 1023) + "\n"
	for range recallMax/len(line) + 1 {
		b.write(b.stdout, line)
	}
	waitFor(t, func() bool { return p.Stats().Read[0] > recallMax })
	var back lockedBuffer
	sub := p.Resubscribe(&back, nil)
	b.drain(p)
	<-sub.Done()
	if back.String() != "" {
		t.Errorf("%d bytes were kept, at most %d are", len(back.String()), recallMax)
	}
}
