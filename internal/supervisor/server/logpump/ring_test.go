package logpump

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"

	"github.com/berthrun/berth/internal/crilog"
	"github.com/berthrun/berth/internal/sys/sysfd"
)

// ringed returns a pump without a worker, with a ring for its standard output that has waiting as an
// unfinished line.
func (b *bench) ringed(waiting string) (*Pump, *stream) {
	b.t.Helper()
	var ends [crilog.Streams]*os.File
	for i := range ends {
		var err error
		ends[i], err = sysfd.ReopenPipe(b.reader[i], os.O_RDONLY)
		must(b.t, err)
	}
	p, err := newPump(b.loop, b.cfg, ends[0], ends[1])
	must(b.t, err)
	b.t.Cleanup(p.Close)
	must(b.t, p.create(b.ctx()))
	s := &p.streams[crilog.Stdout]
	if waiting != "" {
		b.write(b.stdout, waiting)
	}
	_, err = s.fill(spliceMax)
	must(b.t, err)
	must(b.t, p.enterRing(s))
	if s.ring == nil {
		b.t.Fatal("there is no ring")
	}
	return p, s
}

// kill closes what the kernel closes when the process is killed.
func (p *Pump) kill() {
	for i := range p.streams {
		p.dropRing(&p.streams[i])
		p.streams[i].close()
	}
	p.journal.close()
}

// pages returns n pages of lines that differ. The last line is unfinished.
func pages(n int) string {
	var text strings.Builder
	for i := 0; text.Len() < n*pageSize; i++ {
		fmt.Fprintf(&text, "line %d of a container that writes a lot\n", i)
	}
	return text.String()[:n*pageSize]
}

// TestRingReadStopsAnywhere stops a read into a ring between all of its steps, and after each number of
// pages. The successor has each byte once.
func TestRingReadStopsAnywhere(t *testing.T) {
	const all = 4
	for _, waiting := range []string{"", "before "} {
		for read := -2; read <= all; read++ {
			t.Run(fmt.Sprintf("waiting=%q/pages=%d", waiting, read), func(t *testing.T) {
				b := newBench(t)
				p, s := b.ringed(waiting)
				text := pages(all)
				b.write(b.stdout, text+"behind")
				begin, end := s.size, s.size+all*pageSize
				if read > -2 {
					s.ring.prepare(begin, end, p.journal.record.seal())
				}
				if read > -1 {
					p.journal.fillRing(s.id, begin, end)
				}
				if read > 0 {
					n, err := sysfd.SplicePipe(s.ring.file, begin%s.ring.room, s.pipe, read*pageSize)
					if err != nil || n != read*pageSize {
						t.Fatal(n, err)
					}
				}
				p.kill()
				b.drain(b.open())
				b.expectText("0.log", waiting+text+"behind")
				if left, err := os.Stat(ringPath(b.cfg.Dir, crilog.Stdout)); err == nil {
					t.Errorf("%s is left", left.Name())
				}
			})
		}
	}
}

// version is that of the pump's record.
func (b *bench) version() uint32 {
	b.t.Helper()
	r, err := openRecord(recordPath(b.cfg.Dir))
	must(b.t, err)
	defer r.close()
	return r.version()
}

// expectText waits until the text of the log's lines is want, but for the last newline.
func (b *bench) expectText(name, want string) {
	b.t.Helper()
	var text strings.Builder
	for _, line := range b.lines(name) {
		_, line, _ = strings.Cut(line, " ")
		tag, line, _ := strings.Cut(line, " ")
		text.WriteString(line)
		if tag == "F" {
			text.WriteByte('\n')
		}
	}
	if text.String() != want {
		b.t.Errorf("the log has %d bytes of text, the container wrote %d", text.Len(), len(want))
	}
}

// TestRingGoesRound reads more than the ring has room for, in reads that end anywhere in it, and leaves
// the ring with an unfinished line.
func TestRingGoesRound(t *testing.T) {
	b := newBench(t)
	p, s := b.ringed("an unfinished line, ")
	want := bytes.NewBufferString("an unfinished line, ")
	buf, err := p.loop.workspace(p.maxText, p.done)
	must(t, err)
	defer buf.release()
	must(t, buf.enlarge(0, p.done))
	for i := 0; want.Len() < 5*int(s.ring.room); i++ {
		text := pages(1 + i%13)
		b.write(b.stdout, text)
		want.WriteString(text)
		for there := 1; there > 0; {
			_, err := p.copyFrom(s, buf, batchMax)
			must(t, err)
			there, err = sysfd.PipeBuffered(s.pipe)
			must(t, err)
		}
	}
	p.Close()
	if got := b.version(); got != recordVersion {
		t.Errorf("a record without a ring has version %d, want %d: an older supervisor must read it", got, recordVersion)
	}
	b.write(b.stdout, "the end")
	want.WriteString("the end")
	b.drain(b.open())
	b.expectText("0.log", want.String())
}

// TestFloodUsesARing: a container that writes as fast as it can gets a ring, and gives it back when it
// has ended.
func TestFloodUsesARing(t *testing.T) {
	b := newBench(t)
	p := b.open()
	stop := b.flood(b.stdout)
	waitFor(t, func() bool {
		_, err := os.Stat(ringPath(b.cfg.Dir, crilog.Stdout))
		return err == nil
	})
	wrote := stop()
	b.drain(p)
	waitFor(t, func() bool {
		_, err := os.Stat(ringPath(b.cfg.Dir, crilog.Stdout))
		return os.IsNotExist(err)
	})
	if got := p.Stats().Lines; got != wrote {
		t.Errorf("the log has %d lines, the container wrote %d", got, wrote)
	}
	if n := len(b.loop.ringSlots); n != 0 {
		t.Errorf("%d rings are in use, want none", n)
	}
}

// TestRotationUnderFlood rotates the log of a container that floods: each line is in one of the files,
// in order.
func TestRotationUnderFlood(t *testing.T) {
	b := newBench(t)
	p := b.open()
	stop := b.flood(b.stdout)
	const rotations = 3
	for i := range rotations {
		before := p.Stats().Written
		waitFor(t, func() bool { return p.Stats().Written > before+256<<10 })
		must(t, os.Rename(b.path("0.log"), b.path(fmt.Sprintf("0.log.%d", i))))
		must(t, p.Reopen(b.ctx()))
	}
	wrote := stop()
	b.drain(p)
	var all bytes.Buffer
	for i := range rotations {
		text, err := os.ReadFile(b.path(fmt.Sprintf("0.log.%d", i)))
		must(t, err)
		all.Write(text)
	}
	text, err := os.ReadFile(b.path("0.log"))
	must(t, err)
	all.Write(text)
	must(t, os.WriteFile(b.path("all"), all.Bytes(), 0o600))
	b.expectFlood("all", wrote)
}

// TestSubscriberSeesAFlood: an attached client gets each byte of a flood once, whether it was read
// into the stage or into a ring.
func TestSubscriberSeesAFlood(t *testing.T) {
	b := newBench(t)
	p := b.open()
	var seen lockedBuffer
	sub := subscribed(t, p, &seen, nil)
	var want strings.Builder
	// Less than the backlog of a client has room for.
	for i := 0; want.Len() < backlogMax/2; i++ {
		text := pages(16)[i%100:]
		b.write(b.stdout, text)
		want.WriteString(text)
	}
	b.drain(p)
	<-sub.Done()
	if err := sub.Err(); err != nil {
		t.Fatal(err)
	}
	if seen.String() != want.String() {
		t.Errorf("the client saw %d bytes, the container wrote %d", len(seen.String()), want.Len())
	}
}

// floodLine is a line of bench.flood.
const floodLine = "a line of a container that writes as fast as it can, and never waits for anything\n"

// flood writes lines as fast as it can until the function that it returns is called, which returns how
// many it has written.
func (b *bench) flood(f *os.File) (stop func() (lines int64)) {
	ctx, cancel := context.WithCancel(context.Background())
	b.t.Cleanup(cancel)
	block := []byte(strings.Repeat(floodLine, 64<<10/len(floodLine)))
	var lines int64
	var writing sync.WaitGroup
	writing.Go(func() {
		for ctx.Err() == nil {
			if _, err := f.Write(block); err != nil {
				b.t.Error(err)
				return
			}
			lines += int64(len(block) / len(floodLine))
		}
	})
	return func() int64 {
		cancel()
		writing.Wait()
		return lines
	}
}
