package logpump

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/berthrun/berth/internal/crilog"
	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/sys/sysfile"
)

// sickPlace is a place whose files call onWrite before each write.
type sickPlace struct {
	place
	onWrite func(f logFile, p []byte, off int64) (int, error)
}

type sickFile struct {
	logFile
	place *sickPlace
}

func (s *sickPlace) open(create bool) (logFile, error) { return s.wrap(s.place.open(create)) }

func (s *sickPlace) find(id sysfile.FileID) (logFile, error) { return s.wrap(s.place.find(id)) }

func (s *sickPlace) wrap(f logFile, err error) (logFile, error) {
	if err != nil {
		return nil, err
	}
	return sickFile{f, s}, nil
}

func (f sickFile) WriteAt(p []byte, off int64) (int, error) {
	return f.place.onWrite(f.logFile, p, off)
}

// sicken makes the logs below dir call onWrite.
func (b *bench) sicken(dir string, onWrite func(f logFile, p []byte, off int64) (int, error)) {
	healthy := b.loop.locate
	b.loop.locate = func(d, path string) place {
		if d != dir {
			return healthy(d, path)
		}
		return &sickPlace{healthy(d, path), onWrite}
	}
}

// TestWriteStopsAnywhere stops each write after some of its bytes. The pump itself or a successor
// repeats the write. The log is the same in the end, and no byte that was in it changes.
func TestWriteStopsAnywhere(t *testing.T) {
	for _, successor := range []bool{false, true} {
		for nth := int64(1); nth <= 3; nth++ {
			for _, part := range []float64{0, 0.01, 0.5, 0.99, 1} {
				t.Run(fmt.Sprintf("successor=%v/write=%d/part=%v", successor, nth, part), func(t *testing.T) {
					stopWrite(t, successor, nth, part)
				})
			}
		}
	}
}

func stopWrite(t *testing.T, successor bool, nth int64, part float64) {
	b := newBench(t)
	b.cfg.MaxText = 16
	var writes atomic.Int64
	var stopped atomic.Pointer[Pump]
	failed := make(chan struct{})
	var seen string
	b.sicken(b.cfg.LogDir, func(f logFile, p []byte, off int64) (int, error) {
		if writes.Add(1) != nth {
			return f.WriteAt(p, off)
		}
		n := int(part * float64(len(p)))
		if _, err := f.WriteAt(p[:n], off); err != nil {
			return 0, err
		}
		data, err := os.ReadFile(b.path("0.log"))
		if err != nil {
			return 0, err
		}
		seen = string(data)
		if successor {
			stopped.Load().Close()
		}
		close(failed)
		return n, syscall.ENOSPC
	})
	p := b.open()
	stopped.Store(p)
	var want []string
	for i := range 4 {
		text := fmt.Sprintf("message %d of the container", i)
		b.write(b.stdout, text+"\n")
		want = append(want, "stdout P "+text[:16], "stdout F "+text[16:])
		if int64(i) < nth-1 {
			b.expect("0.log", want...)
		}
	}
	<-failed
	if successor {
		// The record contains the length of lines, so the successor splits them at the same length.
		b.cfg.MaxText = 100
		p = b.open()
	}
	b.write(b.stdout, "end")
	b.drain(p)
	b.expect("0.log", append(want, "stdout P end")...)
	data, err := os.ReadFile(b.path("0.log"))
	if err != nil {
		t.Fatal(err)
	}
	if !strings.HasPrefix(string(data), seen) {
		t.Errorf("bytes changed:\n%s", cmp.Diff(seen, string(data)))
	}
}

// TestRotationDuringRedo renames the log between an interrupted write and its repetition. The write
// is completed in the old file.
func TestRotationDuringRedo(t *testing.T) {
	for name, made := range map[string]bool{"new log made": true, "new log not made": false} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t)
			var once sync.Once
			failed := make(chan struct{})
			var pump atomic.Pointer[Pump]
			b.sicken(b.cfg.LogDir, func(f logFile, p []byte, off int64) (n int, err error) {
				stop := false
				once.Do(func() { stop = true })
				if !stop {
					return f.WriteAt(p, off)
				}
				defer close(failed)
				pump.Load().Close()
				n, err = f.WriteAt(p[:len(p)/2], off)
				return n, errors.Join(err, syscall.EIO)
			})
			p := b.open()
			pump.Store(p)
			b.write(b.stdout, "in the old file\n")
			<-failed
			if err := os.Rename(b.path("0.log"), b.path("0.log.old")); err != nil {
				t.Fatal(err)
			}
			if made {
				if err := os.WriteFile(b.path("0.log"), nil, 0o640); err != nil {
					t.Fatal(err)
				}
			}
			p = b.open()
			b.expect("0.log.old", "stdout F in the old file")
			if err := p.Reopen(b.ctx()); err != nil {
				t.Fatal(err)
			}
			b.write(b.stdout, "in the new file\n")
			b.drain(p)
			b.expect("0.log.old", "stdout F in the old file")
			b.expect("0.log", "stdout F in the new file")
		})
	}
}

// TestRedoWithADeletedLog: the write goes to a new file then.
func TestRedoWithADeletedLog(t *testing.T) {
	b := newBench(t)
	var once sync.Once
	failed := make(chan struct{})
	var pump atomic.Pointer[Pump]
	b.sicken(b.cfg.LogDir, func(f logFile, p []byte, off int64) (n int, err error) {
		n, err = f.WriteAt(p, off)
		once.Do(func() {
			pump.Load().Close()
			close(failed)
			err = syscall.EIO
		})
		return n, err
	})
	p := b.open()
	pump.Store(p)
	b.write(b.stdout, "the line\n")
	<-failed
	if err := os.Remove(b.path("0.log")); err != nil {
		t.Fatal(err)
	}
	b.drain(b.open())
	b.expect("0.log", "stdout F the line")
}

// TestFullDiskLosesNothing: the container waits, and continues when there is space.
func TestFullDiskLosesNothing(t *testing.T) {
	b := newBench(t)
	var full atomic.Bool
	full.Store(true)
	b.sicken(b.cfg.LogDir, func(f logFile, p []byte, off int64) (int, error) {
		if full.Load() {
			return 0, syscall.ENOSPC
		}
		return f.WriteAt(p, off)
	})
	p := b.open()
	var want []string
	for i := range 10 {
		line := strings.Repeat("x", i)
		b.write(b.stdout, line+"\n")
		want = append(want, "stdout F "+line)
	}
	waitFor(t, func() bool { return errors.Is(p.LogError(), syscall.ENOSPC) })
	if err := p.Reopen(b.ctx()); !errors.Is(err, errs.Unavailable) {
		t.Errorf("Reopen: %v, want Unavailable", err)
	}
	short, cancel := context.WithTimeout(b.ctx(), 10*time.Millisecond)
	defer cancel()
	if err := p.Drain(short); !errors.Is(err, errs.Deadline) || !errors.Is(err, syscall.ENOSPC) {
		t.Errorf("Drain: %v, want Deadline because of a full disk", err)
	}
	full.Store(false)
	b.drain(p)
	b.expect("0.log", want...)
	if err := p.LogError(); err != nil {
		t.Error(err)
	}
}

// TestHungDiskStopsItsPodOnly: pods whose log directory answers continue. The containers of the
// other pod block only a few threads. No request with a deadline waits for them.
func TestHungDiskStopsItsPodOnly(t *testing.T) {
	b := newBench(t)
	hung := t.TempDir()
	release := make(chan struct{})
	var inside, most atomic.Int64
	b.sicken(hung, func(f logFile, p []byte, off int64) (int, error) {
		if n := inside.Add(1); n > most.Load() {
			most.Store(n)
		}
		<-release
		inside.Add(-1)
		return f.WriteAt(p, off)
	})
	var others []*bench
	var pumps []*Pump
	for range 2 * gateWidth {
		other := newBench(t)
		other.loop = b.loop
		other.cfg.LogDir, other.cfg.LogPath = hung, fmt.Sprintf("%d.log", len(others))
		others, pumps = append(others, other), append(pumps, other.open())
	}
	for _, other := range others {
		other.write(other.stdout, "sooner or later\n")
	}
	waitFor(t, func() bool { return inside.Load() == gateWidth })
	for _, p := range pumps {
		waitFor(t, func() bool { return errors.Is(p.LogError(), errs.Unavailable) })
	}
	p := b.open()
	b.write(b.stdout, "in time\n")
	b.drain(p)
	b.expect("0.log", "stdout F in time")
	short, cancel := context.WithTimeout(b.ctx(), 10*time.Millisecond)
	defer cancel()
	for name, call := range map[string]func(context.Context) error{"Drain": pumps[0].Drain, "Reopen": pumps[0].Reopen} {
		if err := call(short); !errors.Is(err, errs.Deadline) {
			t.Errorf("%s: %v, want Deadline", name, err)
		}
	}
	// Close does not wait either.
	pumps[len(pumps)-1].Close()
	close(release)
	for i, other := range others[:len(others)-1] {
		other.drain(pumps[i])
		other.expect(other.cfg.LogPath, "stdout F sooner or later")
	}
	if most.Load() > gateWidth {
		t.Errorf("%d writes at once in one log directory, want at most %d", most.Load(), gateWidth)
	}
}

// TestOpenGivesUpOnHungDirectory: a request ends at its deadline.
func TestOpenGivesUpOnHungDirectory(t *testing.T) {
	b := newBench(t)
	release := make(chan struct{})
	opened := make(chan struct{})
	healthy := b.loop.locate
	b.loop.locate = func(dir, path string) place { return slowPlace{healthy(dir, path), release, opened} }
	ctx, cancel := context.WithTimeout(b.ctx(), 10*time.Millisecond)
	defer cancel()
	if _, err := b.loop.Open(ctx, b.cfg, b.reader[crilog.Stdout], nil); !errors.Is(err, errs.Unavailable) {
		t.Errorf("Open: %v, want Unavailable", err)
	}
	close(release)
	<-opened
	b.loop.locate = healthy
	b.write(b.stdout, "fine\n")
	b.drain(b.open())
	b.expect("0.log", "stdout F fine")
}

type slowPlace struct {
	place
	release <-chan struct{}
	opened  chan<- struct{}
}

func (s slowPlace) open(create bool) (logFile, error) {
	<-s.release
	defer close(s.opened)
	return s.place.open(create)
}

// TestStageIsBounded: a container that writes endlessly into a log that cannot be written is
// blocked by its pipe. A container that always leaves a line incomplete gets the space of its stage
// back.
func TestStageIsBounded(t *testing.T) {
	b := newBench(t)
	b.open()
	// Odd sizes, so that reads end inside of lines.
	piece := strings.Repeat("x", 4000) + "\n" + strings.Repeat("y", 95)
	total := 0
	for total < 32<<20 {
		b.write(b.stdout, piece)
		total += len(piece)
	}
	st := syscall.Stat_t{}
	waitFor(t, func() bool {
		if err := syscall.Stat(stagePath(b.cfg.Dir, crilog.Stdout), &st); err != nil {
			t.Fatal(err)
		}
		return st.Blocks*512 <= trimEvery+spliceMax+crilog.DefaultMaxText+2*pageSize
	})
}

// TestEmptiesTheStageBeforeTheRecord: in the other order, a kill between the two would make a
// successor write the stage again.
func TestEmptiesTheStageBeforeTheRecord(t *testing.T) {
	b := newBench(t)
	b.open().Close()
	path := stagePath(b.cfg.Dir, crilog.Stdout)
	must(t, os.WriteFile(path, []byte("one\n"), 0o600))
	p, err := newPump(b.loop, b.cfg, nil, nil)
	must(t, err)
	defer p.Close()
	r, err := openRecord(recordPath(b.cfg.Dir))
	must(t, err)
	must(t, p.adopt(r))
	s := &p.streams[crilog.Stdout]
	s.stage.Close()
	s.stage, err = os.Open(path)
	must(t, err)
	s.ended = true
	s.busy = true
	if err := p.turn(); err == nil {
		t.Fatal("a stage that is open for reading only was emptied")
	}
	if got := r.load().consumed[crilog.Stdout]; got != 4 {
		t.Errorf("stage has 4 bytes, the record says %d are consumed", got)
	}
	b.drain(b.open())
	b.expect("0.log", "stdout F one")
}

// TestIdleHasNoGoroutine: containers that write nothing need no goroutine.
func TestIdleHasNoGoroutine(t *testing.T) {
	b := newBench(t)
	before := runtime.NumGoroutine()
	for i := range 20 {
		other := newBench(t)
		other.loop = b.loop
		p := other.open()
		other.write(other.stdout, fmt.Sprintf("line %d\nunfinished", i))
		other.expect("0.log", fmt.Sprintf("stdout F line %d", i))
		defer p.Close()
		before++ // newBench runs a loop of its own
	}
	waitFor(t, func() bool { return runtime.NumGoroutine() <= before })
}

// A fork copies the descriptor table, and the child closes its descriptors. The log must not be in
// it, because a close calls the file system, which may hang.
func TestLogIsNotOpenInTheTableOfDescriptors(t *testing.T) {
	b := newBench(t)
	p := b.open()
	b.write(b.stdout, "a line\n")
	b.drain(p)
	b.expect("0.log", "stdout F a line")
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	held := 0
	for _, entry := range entries {
		target, err := os.Readlink("/proc/self/fd/" + entry.Name())
		if err != nil || target != b.path("0.log") {
			continue
		}
		held++
		var pos, flags int64
		info, err := os.ReadFile("/proc/self/fdinfo/" + entry.Name())
		if err == nil {
			_, err = fmt.Sscanf(string(info), "pos:\t%d\nflags:\t%o", &pos, &flags)
		}
		if err != nil || flags&sysfile.OpenPath == 0 {
			t.Errorf("descriptor %s of the log has flags %o: %v", entry.Name(), flags, err)
		}
	}
	if held == 0 {
		t.Error("no descriptor of the log was found")
	}
}

// TestAbandonedPumpMakesNoFile: output arrives while a container is removed. The worker of its pump may still run, but
// it makes nothing in the directory that the caller removes.
func TestAbandonedPumpMakesNoFile(t *testing.T) {
	b := newBench(t)
	for range 200 {
		p := b.open()
		b.write(b.stdout, "late\n")
		b.remove(p)
		for working := true; working; runtime.Gosched() {
			p.mu.Lock()
			working = p.working
			p.mu.Unlock()
		}
		if left, err := os.ReadDir(b.cfg.Dir); err != nil || len(left) > 0 {
			t.Fatalf("left behind: %v, %v", left, err)
		}
	}
}
