package logs

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/moby/moby/api/types/container"

	"github.com/berthrun/berth/internal/crilog"
	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/require"
)

// bench is a container of a fake engine, and its log.
type bench struct {
	testing.TB
	engine  *fakeEngine
	c       Container
	maxLine int
	write   writeFunc
	said    *bytes.Buffer
	m       *Manager
}

func newBench(t testing.TB) *bench {
	t.Helper()
	logs := filepath.Join(t.TempDir(), "pod")
	dir := filepath.Join(t.TempDir(), "state")
	for _, dir := range []string{filepath.Join(logs, "app"), dir} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	b := &bench{TB: t, engine: newFakeEngine(), write: writeFile}
	b.c = Container{ID: "c1", EngineID: "e1", Path: filepath.Join(logs, "app", "0.log"), Dir: dir}
	t.Cleanup(func() {
		if b.m != nil {
			b.m.Close()
		}
	})
	return b
}

// start starts a manager, after the former one was closed, and follows the container.
func (b *bench) start() {
	b.Helper()
	if b.m != nil {
		b.m.Close()
	}
	out := b.Output()
	if b.said != nil {
		out = b.said
	}
	b.m = newManager(b.engine, slog.New(slog.NewTextHandler(out, nil)), b.maxLine)
	b.m.write = func(f *logFile, p []byte, offset int64) error { return b.write(f, p, offset) }
	b.c.TTY = b.engine.tty
	if err := b.m.Follow(b.c); err != nil {
		b.Fatal(err)
	}
}

func (b *bench) context() context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), require.Patience(30*time.Second))
	b.Cleanup(cancel)
	return ctx
}

// drain ends the container and waits for the end of its log.
func (b *bench) drain() {
	b.Helper()
	b.engine.end()
	if err := b.m.Drain(b.context(), b.c.ID); err != nil {
		b.Fatal(err)
	}
}

// waitFor waits until the log has as many lines.
func (b *bench) waitFor(lines int) {
	b.Helper()
	b.until(func() bool {
		raw, err := os.ReadFile(b.c.Path)
		return err == nil && bytes.Count(raw, []byte("\n")) >= lines
	})
}

func (b *bench) until(done func() bool) {
	b.Helper()
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for ctx := b.context(); !done(); {
		select {
		case <-tick.C:
		case <-ctx.Done():
			b.Fatal("it did not happen")
		}
	}
}

// lines are those of the log, without their times.
func (b *bench) lines() []string {
	b.Helper()
	return linesOf(b.TB, b.c.Path)
}

func linesOf(t testing.TB, path string) []string {
	t.Helper()
	raw, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	lines := []string{}
	for line := range strings.Lines(string(raw)) {
		if _, err := crilog.Parse([]byte(line)); err != nil || !strings.HasSuffix(line, "\n") {
			t.Fatalf("%q is not a whole line: %v", line, err)
		}
		_, text, _ := strings.Cut(strings.TrimSuffix(line, "\n"), " ")
		lines = append(lines, text)
	}
	return lines
}

func (b *bench) expect(want ...string) {
	b.Helper()
	if diff := cmp.Diff(want, b.lines()); diff != "" {
		b.Errorf("(-want +got)\n%s", diff)
	}
}

func TestLinesReachTheLog(t *testing.T) {
	b := newBench(t)
	b.engine.print(crilog.Stdout, at(1), "one\n")
	b.engine.print(crilog.Stderr, at(2), "two\n")
	b.start()
	b.waitFor(2)
	b.engine.print(crilog.Stdout, at(3), "\n")
	b.engine.print(crilog.Stdout, at(4), "last words")
	b.drain()
	b.expect("stdout F one", "stderr F two", "stdout F ", "stdout P last words")
	raw, _ := os.ReadFile(b.c.Path)
	if want := "2026-01-02T03:04:05.000000001Z stdout F one\n"; !bytes.HasPrefix(raw, []byte(want)) {
		t.Errorf("the log begins with %q, want %q", raw[:len(want)], want)
	}
	if st, err := os.Stat(b.c.Path); err != nil || st.Mode() != 0o640 {
		t.Errorf("the log has mode %v, %v", st.Mode(), err)
	}
}

func TestPartsAreJoined(t *testing.T) {
	for _, tty := range []bool{false, true} {
		b := newBench(t)
		b.maxLine = 10
		b.engine.tty = tty
		b.engine.print(crilog.Stdout, at(1), "12345")
		if !tty {
			b.engine.print(crilog.Stderr, at(2), "between\n")
		}
		b.engine.print(crilog.Stdout, at(1), "67890abc")
		b.engine.print(crilog.Stdout, at(1), "\n")
		b.engine.print(crilog.Stdout, at(3), "1234567890")
		b.engine.print(crilog.Stdout, at(3), "\n")
		b.start()
		b.drain()
		want := []string{"stdout P 1234567890", "stdout F abc", "stdout F 1234567890"}
		if !tty {
			want = append([]string{"stderr F between"}, want...)
		}
		b.expect(want...)
	}
}

// Parts with times of their own, as journald has them, become lines with these times.
func TestPartsWithOtherTimesAreNotJoined(t *testing.T) {
	b := newBench(t)
	b.engine.print(crilog.Stdout, at(1), "first ")
	b.engine.print(crilog.Stdout, at(2), "second\n")
	b.start()
	b.drain()
	b.expect("stdout P first ", "stdout F second")
}

func TestCreatedContainerIsFollowedWhenItStarts(t *testing.T) {
	b := newBench(t)
	b.engine.status = container.StateCreated
	b.start()
	b.engine.change(func() { b.engine.status = container.StateRunning })
	b.engine.print(crilog.Stdout, at(1), "hello\n")
	if err := b.m.Follow(b.c); err != nil {
		t.Fatal(err)
	}
	b.waitFor(1)
	b.drain()
	b.expect("stdout F hello")
}

func TestSuccessorContinues(t *testing.T) {
	for _, filters := range []bool{false, true} {
		for _, forgotten := range []bool{false, true} {
			t.Run(fmt.Sprintf("filters %v, record lost %v", filters, forgotten), func(t *testing.T) {
				b := newBench(t)
				b.engine.filters = filters
				b.engine.print(crilog.Stdout, at(1), "one\n")
				// Stored after a later message; the same text at another time; later one time twice,
				// which needs a clock of microseconds.
				b.engine.print(crilog.Stderr, at(5000), "err\n")
				b.engine.print(crilog.Stdout, at(4), "one\n")
				b.start()
				b.waitFor(3)
				b.m.Close()
				if forgotten {
					if err := os.Remove(recordPath(b.c.Dir)); err != nil {
						t.Fatal(err)
					}
				}
				b.engine.print(crilog.Stdout, at(5000), "two\n")
				b.engine.print(crilog.Stderr, at(5000), "err\n")
				b.start()
				b.drain()
				b.expect("stdout F one", "stderr F err", "stdout F one", "stdout F two", "stderr F err")
			})
		}
	}
}

// A line that began long ago is not lost by an engine that filters by time.
func TestOldUnfinishedLineContinues(t *testing.T) {
	b := newBench(t)
	b.maxLine = 8
	b.engine.filters = true
	b.engine.print(crilog.Stdout, at(1), "12345678abc")
	b.engine.print(crilog.Stderr, at(int64(time.Hour)), "later\n")
	b.start()
	b.waitFor(2)
	b.engine.print(crilog.Stdout, at(1), "def\n")
	b.start()
	b.drain()
	b.expect("stdout P 12345678", "stderr F later", "stdout F abcdef")
}

// The beginning of a line was read, and nothing of it is in the log.
func TestOldWaitingLineContinues(t *testing.T) {
	b := newBench(t)
	b.engine.filters = true
	b.engine.print(crilog.Stdout, at(1), "abc")
	b.engine.print(crilog.Stderr, at(int64(time.Hour)), "later\n")
	b.start()
	b.waitFor(1)
	b.start()
	b.drain()
	b.expect("stderr F later", "stdout P abc")
}

func TestClockIsSetBack(t *testing.T) {
	b := newBench(t)
	for i, nanos := range []int64{1e12, 2e12, 3, 4} {
		b.engine.print(crilog.Stdout, at(nanos), fmt.Sprintf("%d\n", i))
	}
	b.start()
	b.waitFor(4)
	b.m.Close()
	b.engine.print(crilog.Stdout, at(5), "5\n")
	b.start()
	b.drain()
	b.expect("stdout F 0", "stdout F 1", "stdout F 2", "stdout F 3", "stdout F 5")
}

func TestEngineThatDropsTheEnd(t *testing.T) {
	b := newBench(t)
	b.engine.dropsEnd = true
	b.engine.print(crilog.Stdout, at(1), "one\n")
	b.start()
	b.waitFor(1)
	b.engine.change(func() {
		b.engine.logged = append(b.engine.logged, message{at: at(2), raw: []byte("two\n")}, message{at: at(3), raw: []byte("three\n")})
		b.engine.status = container.StateExited
	})
	if err := b.m.Drain(b.context(), b.c.ID); err != nil {
		t.Fatal(err)
	}
	b.expect("stdout F one", "stdout F two", "stdout F three")
}

func TestStreamBreaks(t *testing.T) {
	b := newBench(t)
	for i := range int64(10) {
		b.engine.print(crilog.Stdout, at(i+1), fmt.Sprintf("line %d\n", i))
	}
	for cut := 1; cut < 100; cut += 7 {
		b.engine.cut = cut
		b.start()
		b.waitFor(10)
		b.m.Close()
		want := make([]string, 10)
		for i := range want {
			want[i] = fmt.Sprintf("stdout F line %d", i)
		}
		b.expect(want...)
		if b.engine.cut != 0 {
			t.Fatal("no stream was cut")
		}
		if err := errors.Join(os.Remove(b.c.Path), os.Remove(recordPath(b.c.Dir))); err != nil {
			t.Fatal(err)
		}
	}
}

func TestEngineIsDownForAWhile(t *testing.T) {
	b := newBench(t)
	b.engine.print(crilog.Stdout, at(1), "one\n")
	b.start()
	b.waitFor(1)
	b.engine.change(func() { b.engine.down = errs.Unavailable })
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if err := b.m.Drain(ctx, b.c.ID); !errors.Is(err, errs.Unavailable) {
		t.Errorf("drain without an engine: %v", err)
	}
	b.engine.change(func() {
		b.engine.down = nil
		b.engine.logged = append(b.engine.logged, message{at: at(2), raw: []byte("two\n")})
	})
	b.waitFor(2)
	b.drain()
	b.expect("stdout F one", "stdout F two")
}

func TestContainerIsRemovedBehindOurBack(t *testing.T) {
	b := newBench(t)
	b.engine.print(crilog.Stdout, at(1), "one\n")
	b.engine.print(crilog.Stdout, at(2), "half")
	b.start()
	b.waitFor(1)
	b.engine.change(func() { b.engine.down = errs.NotFound })
	if err := b.m.Drain(b.context(), b.c.ID); err != nil {
		t.Fatal(err)
	}
	b.expect("stdout F one", "stdout P half")
}

// An engine that cannot read its file behind a damaged place is made to read from the end.
func TestDamagedFileOfTheEngine(t *testing.T) {
	b := newBench(t)
	for i := range int64(20) {
		b.engine.print(crilog.Stdout, at(i+1), fmt.Sprintf("%d\n", i))
	}
	b.engine.damaged = 5
	b.start()
	b.waitFor(15)
	b.drain()
	got := b.lines()
	if got[0] != "stdout F 0" || got[4] != "stdout F 4" || got[5] != "stdout F 10" || got[len(got)-1] != "stdout F 19" {
		t.Errorf("got %q", got)
	}
}

func TestDriverWithoutReads(t *testing.T) {
	b := newBench(t)
	b.said = &bytes.Buffer{}
	b.start()
	b.m.Forget("c1")
	b.m.Close()
	b.m = newManager(unreadable{b.engine}, slog.New(slog.NewTextHandler(b.said, nil)), 0)
	if err := b.m.Follow(b.c); err != nil {
		t.Fatal(err)
	}
	if err := b.m.Drain(b.context(), b.c.ID); err != nil {
		t.Fatal(err)
	}
	b.m.Close()
	if !strings.Contains(b.said.String(), "cannot read this container's output") {
		t.Errorf("said %q", b.said)
	}
}

func TestReopenRotates(t *testing.T) {
	b := newBench(t)
	b.engine.print(crilog.Stdout, at(1), "one\n")
	b.start()
	b.waitFor(1)
	if err := b.m.Reopen(b.context(), "c1"); err != nil { // nothing was renamed
		t.Fatal(err)
	}
	b.engine.print(crilog.Stdout, at(2), "two\n")
	b.waitFor(2)
	old := b.c.Path + ".20260101-000000"
	if err := os.Rename(b.c.Path, old); err != nil {
		t.Fatal(err)
	}
	if err := b.m.Reopen(b.context(), "c1"); err != nil {
		t.Fatal(err)
	}
	b.engine.print(crilog.Stdout, at(3), "three\n")
	b.waitFor(1)
	b.start()
	b.drain()
	b.expect("stdout F three")
	if diff := cmp.Diff([]string{"stdout F one", "stdout F two"}, linesOf(t, old)); diff != "" {
		t.Error(diff)
	}
	if err := b.m.Reopen(b.context(), "c1"); !errors.Is(err, errs.State) {
		t.Errorf("reopen of a complete log: %v", err)
	}
}

// Nothing was written to the new file when the process was killed.
func TestSuccessorAfterReopen(t *testing.T) {
	for _, forgotten := range []bool{false, true} {
		b := newBench(t)
		b.engine.print(crilog.Stdout, at(1), "one\n")
		b.start()
		b.waitFor(1)
		if err := os.Rename(b.c.Path, b.c.Path+".20260101-000000"); err != nil {
			t.Fatal(err)
		}
		if err := b.m.Reopen(b.context(), "c1"); err != nil {
			t.Fatal(err)
		}
		b.m.Close()
		if forgotten {
			if err := os.Remove(recordPath(b.c.Dir)); err != nil {
				t.Fatal(err)
			}
		}
		b.engine.print(crilog.Stdout, at(2), "two\n")
		b.start()
		b.drain()
		b.expect("stdout F two")
	}
}

// A kubelet that gets no answer renames the file back. A new file at the path would be lost.
func TestSuccessorFindsRenamedLog(t *testing.T) {
	b := newBench(t)
	b.engine.print(crilog.Stdout, at(1), "one\n")
	b.start()
	b.waitFor(1)
	b.m.Close()
	old := b.c.Path + ".20260101-000000"
	if err := os.Rename(b.c.Path, old); err != nil {
		t.Fatal(err)
	}
	b.engine.print(crilog.Stdout, at(2), "two\n")
	b.start()
	b.until(func() bool { return len(linesOf(t, old)) == 2 })
	if _, err := os.Stat(b.c.Path); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("there is a file at the path: %v", err)
	}
	if err := b.m.Reopen(b.context(), "c1"); err != nil {
		t.Fatal(err)
	}
	b.engine.print(crilog.Stdout, at(3), "three\n")
	b.drain()
	b.expect("stdout F three")
}

func TestDeletedLogIsCreatedAgain(t *testing.T) {
	b := newBench(t)
	b.engine.print(crilog.Stdout, at(1), "one\n")
	b.start()
	b.waitFor(1)
	if err := os.Remove(b.c.Path); err != nil {
		t.Fatal(err)
	}
	b.engine.print(crilog.Stdout, at(2), "two\n")
	b.waitFor(1)
	b.m.Close()
	if err := os.Remove(b.c.Path); err != nil {
		t.Fatal(err)
	}
	b.engine.print(crilog.Stdout, at(3), "three\n")
	b.start()
	b.waitFor(1)
	b.expect("stdout F three")
	b.drain()
}

// Output waits with the engine while the log's directory is missing.
func TestMissingDirectory(t *testing.T) {
	b := newBench(t)
	dir := filepath.Dir(b.c.Path)
	if err := os.RemoveAll(dir); err != nil {
		t.Fatal(err)
	}
	if err := newManager(b.engine, nil, 0).Begin(b.context(), b.c); !errors.Is(err, errs.Unavailable) {
		t.Errorf("begin without a directory: %v", err)
	}
	b.engine.print(crilog.Stdout, at(1), "one\n")
	b.start()
	b.engine.end()
	if err := b.m.Drain(b.context(), "c1"); !errors.Is(err, errs.Unavailable) {
		t.Errorf("drain without a directory: %v", err)
	}
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	b.waitFor(1)
	b.until(func() bool { return b.m.Drain(b.context(), "c1") == nil })
	b.expect("stdout F one")
}

func TestTruncatedLogHasNoHole(t *testing.T) {
	b := newBench(t)
	b.engine.print(crilog.Stdout, at(1), "one\n")
	b.start()
	b.waitFor(1)
	if err := os.Truncate(b.c.Path, 0); err != nil {
		t.Fatal(err)
	}
	b.engine.print(crilog.Stdout, at(2), "two\n")
	b.drain()
	b.expect("stdout F two")
}

func TestFullDiskLosesNothing(t *testing.T) {
	b := newBench(t)
	var full atomic.Bool
	b.write = func(f *logFile, p []byte, offset int64) error {
		if !full.Load() {
			return writeFile(f, p, offset)
		}
		// Some of it fits.
		return errors.Join(writeFile(f, p[:len(p)/2], offset), errs.OfDisk(syscall.ENOSPC))
	}
	full.Store(true)
	var want []string
	for i := range int64(20000) {
		b.engine.print(crilog.Stdout, at(i+1), fmt.Sprintf("line %d\n", i))
		want = append(want, fmt.Sprintf("stdout F line %d", i))
	}
	b.start()
	f, err := b.m.find("c1")
	if err != nil {
		t.Fatal(err)
	}
	b.until(func() bool {
		_, fault := f.outlet.state()
		return fault != nil
	})
	if err := b.m.Reopen(b.context(), "c1"); !errors.Is(err, errs.Unavailable) || !errors.Is(err, errs.Exhausted) {
		t.Errorf("reopen with a full disk: %v", err)
	}
	full.Store(false)
	b.drain()
	b.expect(want...)
}

// A log whose disk hangs holds up no other, nor Close, nor Forget.
func TestHungDisk(t *testing.T) {
	b := newBench(t)
	release := make(chan struct{})
	hung := make(chan struct{}, 1)
	other := filepath.Join(filepath.Dir(b.c.Path), "other.log")
	b.write = func(f *logFile, p []byte, offset int64) error {
		if f.path.Name() != other {
			signal(hung)
			<-release
		}
		return writeFile(f, p, offset)
	}
	b.engine.print(crilog.Stdout, at(1), "one\n")
	b.start()
	<-hung
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Millisecond)
	defer cancel()
	if err := b.m.Reopen(ctx, "c1"); !errors.Is(err, errs.Unavailable) {
		t.Errorf("reopen: %v", err)
	}
	dir := t.TempDir()
	if err := b.m.Follow(Container{ID: "c2", EngineID: "e2", Path: other, Dir: dir}); err != nil {
		t.Fatal(err)
	}
	b.engine.end()
	if err := b.m.Drain(b.context(), "c2"); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"stdout F one"}, linesOf(t, other)); diff != "" {
		t.Error(diff)
	}
	b.m.Forget("c1")
	close(release)
}

// A line that a killed process wrote in part is completed, and no byte of it changes.
func TestTornLineIsCompleted(t *testing.T) {
	b := newBench(t)
	b.engine.print(crilog.Stdout, at(1), "one\n")
	b.start()
	b.waitFor(1)
	b.m.Close()
	f, err := os.OpenFile(b.c.Path, os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	f.WriteString("2026-01-02T03:04:05.000000002Z stdout F tw")
	f.Close()
	cut := false
	b.write = func(f *logFile, p []byte, offset int64) error {
		st, err := f.state()
		cut = cut || err != nil || st.Size == offset
		return writeFile(f, p, offset)
	}
	b.engine.print(crilog.Stdout, at(2), "two\n")
	b.start()
	b.drain()
	b.expect("stdout F one", "stdout F two")
	if cut {
		t.Error("the line was cut off before it was written")
	}
}

func TestTornLineThatDoesNotComeAgainIsCutOff(t *testing.T) {
	for _, more := range []bool{false, true} {
		b := newBench(t)
		b.engine.print(crilog.Stdout, at(1), "one\n")
		b.start()
		b.waitFor(1)
		b.m.Close()
		f, err := os.OpenFile(b.c.Path, os.O_APPEND|os.O_WRONLY, 0)
		if err != nil {
			t.Fatal(err)
		}
		f.WriteString("2026-01-02T03:04:05.000000002Z stdout F a long line that the engine has lost")
		f.Close()
		want := []string{"stdout F one"}
		if more {
			b.engine.print(crilog.Stdout, at(3), "new\n")
			want = append(want, "stdout F new")
		}
		b.start()
		b.drain()
		b.expect(want...)
	}
}

// dockershim made links to the engine's files. A kubelet reads those while it has them open.
func TestLinkOfDockershimBecomesALog(t *testing.T) {
	b := newBench(t)
	target := filepath.Join(t.TempDir(), "e1-json.log")
	if err := errors.Join(os.WriteFile(target, []byte("{}\n"), 0o600), os.Symlink(target, b.c.Path)); err != nil {
		t.Fatal(err)
	}
	b.engine.print(crilog.Stdout, at(1), "one\n")
	b.start()
	b.drain()
	b.expect("stdout F one")
	if raw, err := os.ReadFile(target); err != nil || string(raw) != "{}\n" {
		t.Errorf("the engine's file has %q, %v", raw, err)
	}
}

// Nothing else than a regular file is written to or removed.
func TestLogIsNoFile(t *testing.T) {
	secret := filepath.Join(t.TempDir(), "secret")
	if err := os.WriteFile(secret, []byte("s"), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, make := range map[string]func(path string) error{
		"link":             func(path string) error { return os.Symlink(secret, path) },
		"link to nothing":  func(path string) error { return os.Symlink(secret+"-absent", path) },
		"fifo":             func(path string) error { return syscall.Mkfifo(path, 0o600) },
		"directory":        func(path string) error { return os.Mkdir(path, 0o700) },
		"linked directory": func(path string) error { return linkDirectory(filepath.Dir(path), filepath.Dir(secret)) },
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t)
			if err := make(b.c.Path); err != nil {
				t.Fatal(err)
			}
			m := newManager(b.engine, slog.New(slog.DiscardHandler), 0)
			defer m.Close()
			err := m.Begin(b.context(), b.c)
			var fault *errs.Fault
			if !errors.Is(err, errs.Invalid) || !errors.As(err, &fault) || fault.Cause != errs.CauseLog {
				t.Errorf("begin: %v", err)
			}
			b.engine.print(crilog.Stdout, at(1), "one\n")
			b.start()
			b.engine.end()
			if err := b.m.Drain(b.context(), "c1"); !errors.Is(err, errs.Unavailable) {
				t.Errorf("drain: %v", err)
			}
			if raw, _ := os.ReadFile(secret); string(raw) != "s" {
				t.Errorf("it wrote %q through the link", raw)
			}
			if entries, _ := os.ReadDir(filepath.Dir(secret)); len(entries) != 1 {
				t.Errorf("it made %v through the link", entries)
			}
		})
	}
}

func linkDirectory(dir, target string) error {
	return errors.Join(os.Remove(dir), os.Symlink(target, dir))
}

func TestNoPathNoLog(t *testing.T) {
	b := newBench(t)
	b.c.Path = ""
	b.start()
	if err := b.m.Drain(b.context(), "c1"); err != nil {
		t.Error(err)
	}
	if err := b.m.Reopen(b.context(), "c1"); !errors.Is(err, errs.State) {
		t.Errorf("reopen: %v", err)
	}
	b.m.Forget("c1")
	if err := b.m.Drain(b.context(), "c1"); !errors.Is(err, errs.NotFound) {
		t.Errorf("drain of a forgotten container: %v", err)
	}
}

func TestFollowRefuses(t *testing.T) {
	m := newManager(newFakeEngine(), nil, 0)
	good := Container{ID: "c", EngineID: "e", Path: "/logs/pod/app/0.log", Dir: "/dir"}
	for name, spoil := range map[string]func(c *Container){
		"no id":          func(c *Container) { c.ID = "" },
		"no engine id":   func(c *Container) { c.EngineID = "" },
		"relative path":  func(c *Container) { c.Path = "pod/app/0.log" },
		"path with dots": func(c *Container) { c.Path = "/logs/pod/../../etc/passwd" },
		"path above":     func(c *Container) { c.Root = "/logs/other" },
		"path is root":   func(c *Container) { c.Root = "/logs/pod/app/0.log" },
		"relative dir":   func(c *Container) { c.Dir = "dir" },
		"no file":        func(c *Container) { c.Path = "/" },
	} {
		c := good
		spoil(&c)
		if err := m.Follow(c); !errors.Is(err, errs.Invalid) {
			t.Errorf("%s: %v", name, err)
		}
		if err := m.Begin(t.Context(), c); !errors.Is(err, errs.Invalid) {
			t.Errorf("%s: begin: %v", name, err)
		}
	}
	m.Close()
	if err := m.Follow(good); !errors.Is(err, errs.Unavailable) {
		t.Errorf("after Close: %v", err)
	}
}

func TestDamagedRecord(t *testing.T) {
	for _, content := range []string{"", "{", `{"version":2}`, `{"version":1,"offset":-1}`, strings.Repeat("\x00", recordSize)} {
		b := newBench(t)
		b.engine.print(crilog.Stdout, at(1), "one\n")
		b.start()
		b.waitFor(1)
		b.m.Close()
		if err := os.WriteFile(recordPath(b.c.Dir), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		b.engine.print(crilog.Stdout, at(2), "two\n")
		b.start()
		b.drain()
		b.expect("stdout F one", "stdout F two")
	}
}
