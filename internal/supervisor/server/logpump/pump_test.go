package logpump

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/berthrun/berth/internal/crilog"
	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/figures"
	"github.com/berthrun/berth/internal/sys/sysfd"
)

// patience bounds each wait. Nothing takes nearly that long.
const patience = 20 * time.Second

// bench is a container's end of a pump, and the directories around it.
type bench struct {
	t      testing.TB
	loop   *Loop
	cfg    Config
	reader [crilog.Streams]*os.File
	// The container's own ends.
	stdout, stderr *os.File
}

func newBench(t testing.TB) *bench {
	t.Helper()
	return newBenchOn(t, runLoop(t))
}

// newBenchOn is for one of several containers with one loop.
func newBenchOn(t testing.TB, loop *Loop) *bench {
	t.Helper()
	b := &bench{t: t, loop: loop}
	b.cfg = Config{Dir: stageDir(t), LogDir: t.TempDir(), LogPath: "0.log"}
	for i, end := range []**os.File{&b.stdout, &b.stderr} {
		reader, container, err := sysfd.OutputPipe(sysfd.Owner{})
		if err != nil {
			t.Fatal(err)
		}
		b.reader[i], *end = reader, container
		t.Cleanup(func() { reader.Close(); container.Close() })
	}
	return b
}

// ctx ends after patience.
func (b *bench) ctx() context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	b.t.Cleanup(cancel)
	return ctx
}

func runLoop(t testing.TB) *Loop {
	t.Helper()
	loop, err := NewLoop()
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() {
		if err := loop.Run(ctx); err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(func() {
		cancel()
		running.Wait()
		if err := loop.Close(); err != nil {
			t.Error(err)
		}
	})
	return loop
}

// stageDir is on tmpfs if there is a writable one.
func stageDir(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp("/dev/shm", "berth-logpump-")
	if err != nil {
		return t.TempDir()
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	return dir
}

// open opens a pump on duplicates, as a supervisor does whose keeper has the originals.
func (b *bench) open() *Pump {
	b.t.Helper()
	var ends [crilog.Streams]*os.File
	for i := range ends {
		var err error
		if ends[i], err = sysfd.ReopenPipe(b.reader[i], os.O_RDONLY); err != nil {
			b.t.Fatal(err)
		}
	}
	p, err := b.loop.Open(b.ctx(), b.cfg, ends[0], ends[1])
	if err != nil {
		b.t.Fatal(err)
	}
	b.t.Cleanup(p.Close)
	return p
}

// remove removes a pump and its files, as the removal of a container does.
func (b *bench) remove(p *Pump) {
	b.t.Helper()
	p.Abandon()
	files, err := os.ReadDir(b.cfg.Dir)
	if err != nil {
		b.t.Fatal(err)
	}
	for _, file := range files {
		if err := os.Remove(filepath.Join(b.cfg.Dir, file.Name())); err != nil {
			b.t.Fatal(err)
		}
	}
}

func (b *bench) drain(p *Pump) {
	b.t.Helper()
	if err := p.Drain(b.ctx()); err != nil {
		b.t.Fatal(err)
	}
}

func (b *bench) write(f *os.File, text string) {
	b.t.Helper()
	if _, err := f.WriteString(text); err != nil {
		b.t.Fatal(err)
	}
}

func (b *bench) path(name string) string { return filepath.Join(b.cfg.LogDir, name) }

// lines returns a log's lines as "stream tag text".
func (b *bench) lines(name string) []string {
	b.t.Helper()
	data, err := os.ReadFile(b.path(name))
	if err != nil {
		b.t.Fatal(err)
	}
	var lines []string
	for _, raw := range bytes.SplitAfter(data, []byte("\n")) {
		if len(raw) == 0 {
			continue
		}
		line, err := crilog.Parse(raw)
		if err != nil {
			// The last line may be incomplete.
			lines = append(lines, err.Error())
			continue
		}
		tag := "F"
		if line.Partial {
			tag = "P"
		}
		lines = append(lines, fmt.Sprintf("%s %s %s", line.Stream, tag, line.Text))
	}
	return lines
}

// expect waits until the log has the wanted lines.
func (b *bench) expect(name string, want ...string) {
	b.t.Helper()
	var got []string
	for deadline := time.Now().Add(patience); time.Now().Before(deadline); time.Sleep(time.Millisecond) {
		if _, err := os.Stat(b.path(name)); err != nil {
			continue
		}
		if got = b.lines(name); cmp.Equal(want, got) {
			return
		}
	}
	b.t.Fatalf("%s (-want +got)\n%s", name, cmp.Diff(want, got))
}

// expectEmptied waits until a stage is released. A drain does not wait for that.
func (b *bench) expectEmptied(stream crilog.Stream) {
	b.t.Helper()
	var size int64
	for deadline := time.Now().Add(patience); time.Now().Before(deadline); time.Sleep(time.Millisecond) {
		st, err := os.Stat(stagePath(b.cfg.Dir, stream))
		if err != nil {
			b.t.Fatal(err)
		}
		if size = st.Size(); size == 0 {
			return
		}
	}
	b.t.Fatalf("stage of %s keeps %d bytes", stream, size)
}

func TestLinesReachTheLog(t *testing.T) {
	b := newBench(t)
	p := b.open()
	b.write(b.stdout, "one\n")
	b.expect("0.log", "stdout F one")
	b.write(b.stderr, "two\nthree\nunfin")
	b.expect("0.log", "stdout F one", "stderr F two", "stderr F three")
	b.write(b.stderr, "ished\n")
	b.expect("0.log", "stdout F one", "stderr F two", "stderr F three", "stderr F unfinished")
	b.write(b.stdout, "last words")
	b.drain(p)
	b.expect("0.log", "stdout F one", "stderr F two", "stderr F three", "stderr F unfinished", "stdout P last words")
	if st, err := os.Stat(b.path("0.log")); err != nil || st.Mode().Perm() != 0o640 {
		t.Errorf("mode %v, %v", st.Mode(), err)
	}
	for _, stream := range []crilog.Stream{crilog.Stdout, crilog.Stderr} {
		b.expectEmptied(stream)
	}
	want := Stats{Read: [2]int64{14, 21}, Written: 5*int64(crilog.Overhead) + 3 + 3 + 5 + 10 + 10, Lines: 5}
	if diff := cmp.Diff(want, p.Stats()); diff != "" {
		t.Error(diff)
	}
}

// TestFigures: the loop adds up its pumps, and keeps what those that are closed have done. An unfinished line waits.
func TestFigures(t *testing.T) {
	b := newBench(t)
	p := b.open()
	b.write(b.stdout, "one\nunfin")
	b.expect("0.log", "stdout F one")
	waitFor(t, func() bool { return b.loop.Figures().PendingBytes == 5 })
	want := figures.Logs{ReadBytes: 9, WrittenBytes: uint64(crilog.Overhead) + 3, WrittenLines: 1, PendingBytes: 5}
	waitFor(t, func() bool { return b.loop.Figures() == want })
	b.drain(p)
	want = figures.Logs{ReadBytes: 9, WrittenBytes: 2*uint64(crilog.Overhead) + 3 + 5, WrittenLines: 2}
	p.Close()
	waitFor(t, func() bool { return b.loop.Figures() == want })
	if err := os.Remove(b.path("0.log")); err != nil {
		t.Fatal(err)
	}
	if got := b.loop.Figures(); got != want {
		t.Errorf("%+v after the end of the pump, want %+v", got, want)
	}
}

// TestFiguresNeverGoBack: what a pump has done is in the figures before, while and after it is closed.
func TestFiguresNeverGoBack(t *testing.T) {
	loop := runLoop(t)
	closed := make(chan struct{})
	var watch sync.WaitGroup
	watch.Go(func() {
		for last := loop.Figures(); ; {
			got := loop.Figures()
			if got.ReadBytes < last.ReadBytes || got.WrittenBytes < last.WrittenBytes || got.WrittenLines < last.WrittenLines {
				t.Errorf("%+v after %+v", got, last)
				return
			}
			last = got
			select {
			case <-closed:
				return
			default:
			}
		}
	})
	const pumps = 100
	for range pumps {
		b := newBenchOn(t, loop)
		b.write(b.stdout, "one\n")
		p := b.open()
		b.drain(p)
		p.Close()
	}
	close(closed)
	watch.Wait()
	if got := loop.Figures(); got.ReadBytes != 4*pumps || got.WrittenLines != pumps {
		t.Errorf("%+v, want 4 bytes and a line of each of %d pumps", got, pumps)
	}
}

func TestSuccessorContinues(t *testing.T) {
	b := newBench(t)
	p := b.open()
	b.write(b.stdout, "one\nbegun by the first, ")
	b.expect("0.log", "stdout F one")
	p.Close()
	b.write(b.stdout, "ended by the second\n")
	p = b.open()
	b.drain(p)
	b.expect("0.log", "stdout F one", "stdout F begun by the first, ended by the second")
}

// TestStageEmptiedBeforeTheRecordChanged: a process was killed between the two operations.
func TestStageEmptiedBeforeTheRecordChanged(t *testing.T) {
	b := newBench(t)
	p := b.open()
	b.write(b.stdout, "one\n")
	b.drain(p)
	p.Close()
	r, err := openRecord(recordPath(b.cfg.Dir))
	if err != nil {
		t.Fatal(err)
	}
	pos := r.load()
	pos.consumed[crilog.Stdout] = 4
	r.publish(pos)
	r.close()
	b.write(b.stdout, "two\n")
	b.drain(b.open())
	b.expect("0.log", "stdout F one", "stdout F two")
}

func TestNewPumpAppends(t *testing.T) {
	b := newBench(t)
	p := b.open()
	b.write(b.stdout, "first attempt\n")
	b.drain(p)
	b.remove(p)
	b.write(b.stdout, "second attempt\n")
	b.drain(b.open())
	b.expect("0.log", "stdout F first attempt", "stdout F second attempt")
}

func TestReopenRotates(t *testing.T) {
	b := newBench(t)
	p := b.open()
	b.write(b.stdout, "old\n")
	b.expect("0.log", "stdout F old")
	if err := os.Rename(b.path("0.log"), b.path("0.log.1")); err != nil {
		t.Fatal(err)
	}
	b.write(b.stdout, "still old\n")
	b.expect("0.log.1", "stdout F old", "stdout F still old")
	if err := p.Reopen(b.ctx()); err != nil {
		t.Fatal(err)
	}
	// The log was not renamed since, so it is the same file.
	if err := p.Reopen(b.ctx()); err != nil {
		t.Fatal(err)
	}
	b.write(b.stdout, "new\n")
	b.drain(p)
	b.expect("0.log.1", "stdout F old", "stdout F still old")
	b.expect("0.log", "stdout F new")
	if got := p.Stats().Reopened; got != 1 {
		t.Errorf("reopened %d times, want 1", got)
	}
}

func TestSuccessorFindsRenamedLog(t *testing.T) {
	b := newBench(t)
	p := b.open()
	b.write(b.stdout, "one\n")
	b.expect("0.log", "stdout F one")
	p.Close()
	if err := os.Rename(b.path("0.log"), b.path("0.log.1")); err != nil {
		t.Fatal(err)
	}
	b.write(b.stdout, "two\n")
	p = b.open()
	// No client has requested a new log, so the rename may be undone.
	b.expect("0.log.1", "stdout F one", "stdout F two")
	if err := p.Reopen(b.ctx()); err != nil {
		t.Fatal(err)
	}
	b.write(b.stdout, "three\n")
	b.expect("0.log", "stdout F three")
}

func TestDeletedLogIsCreatedAgain(t *testing.T) {
	b := newBench(t)
	b.cfg.LogPath = "app/0.log"
	if err := os.Mkdir(b.path("app"), 0o755); err != nil {
		t.Fatal(err)
	}
	var said bytes.Buffer
	b.cfg.Log = slog.New(slog.NewTextHandler(&said, nil))
	p := b.open()
	b.write(b.stdout, "one\n")
	b.expect("app/0.log", "stdout F one")
	if err := os.Remove(b.path("app/0.log")); err != nil {
		t.Fatal(err)
	}
	b.write(b.stdout, "two\n")
	b.expect("app/0.log", "stdout F two")
	if err := os.RemoveAll(b.path("app")); err != nil {
		t.Fatal(err)
	}
	// The container continues, even beyond what the pipe and the stage can hold.
	for range 100 {
		b.write(b.stdout, strings.Repeat("lost line\n", 1000))
	}
	if err := p.Reopen(b.ctx()); !errors.Is(err, errs.Unavailable) {
		t.Errorf("Reopen without a directory: %v, want Unavailable", err)
	}
	waitFor(t, func() bool { return p.Stats().Discarded == 100*10_000 })
	if err := p.LogError(); err == nil {
		t.Error("LogError says that all is well")
	}
	if err := os.Mkdir(b.path("app"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := p.Reopen(b.ctx()); err != nil {
		t.Fatal(err)
	}
	b.write(b.stdout, "three\n")
	b.drain(p)
	b.expect("app/0.log", "stdout F three")
	if err := p.LogError(); err != nil {
		t.Error(err)
	}
	p.Close()
	for _, want := range []string{"log file is gone", `"bytes discarded so far"=1000000`} {
		if !strings.Contains(said.String(), want) {
			t.Errorf("the log of berth lacks %q: %s", want, said.String())
		}
	}
}

func TestCutLogHasNoHole(t *testing.T) {
	b := newBench(t)
	b.open()
	b.write(b.stdout, "one\n")
	b.expect("0.log", "stdout F one")
	if err := os.Truncate(b.path("0.log"), 0); err != nil {
		t.Fatal(err)
	}
	b.write(b.stdout, "two\n")
	b.expect("0.log", "stdout F two")
}

func TestNoLogPathDiscards(t *testing.T) {
	b := newBench(t)
	b.cfg.LogPath, b.cfg.LogDir = "", ""
	p := b.open()
	var seen lockedBuffer
	sub := subscribed(t, p, &seen, nil)
	b.write(b.stderr, "to nobody\n")
	b.write(b.stdout, "to a client")
	b.drain(p)
	<-sub.Done()
	if got := seen.String(); got != "to a client" || sub.Err() != nil {
		t.Errorf("client saw %q, %v", got, sub.Err())
	}
}

func TestOneStream(t *testing.T) {
	b := newBench(t)
	end, err := sysfd.ReopenPipe(b.reader[0], os.O_RDONLY) // the pump closes it at any time
	if err != nil {
		t.Fatal(err)
	}
	p, err := b.loop.Open(b.ctx(), b.cfg, end, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	b.write(b.stdout, "a terminal\r\n")
	b.drain(p)
	b.expect("0.log", "stdout F a terminal\r")
}

func TestOpenRefuses(t *testing.T) {
	b := newBench(t)
	outside := t.TempDir()
	for name, prepare := range map[string]func() error{
		"link":      func() error { return os.Symlink(outside+"/x", b.path("link")) },
		"dir/0.log": func() error { return os.Symlink(outside, b.path("dir")) },
		"folder":    func() error { return os.Mkdir(b.path("folder"), 0o755) },
	} {
		if err := prepare(); err != nil {
			t.Fatal(name, err)
		}
	}
	for path, kind := range map[string]error{
		"../0.log": errs.Invalid, "/etc/0.log": errs.Invalid, "a/../../0.log": errs.Invalid, ".": errs.Invalid,
		"link": errs.Invalid, "dir/0.log": errs.Invalid, "folder": errs.Invalid,
		"missing/0.log": errs.Unavailable,
	} {
		cfg := b.cfg
		cfg.LogPath = path
		_, err := b.loop.Open(b.ctx(), cfg, b.reader[0], b.reader[1])
		var fault *errs.Fault
		if !errors.Is(err, kind) || !errors.As(err, &fault) || fault.Cause != errs.CauseLog || fault.Path != path {
			t.Errorf("%s: %#v, want %v", path, err, kind)
		}
	}
	cfg := b.cfg
	cfg.MaxText = MaxMaxText + 1
	if _, err := b.loop.Open(b.ctx(), cfg, b.reader[0], b.reader[1]); !errors.Is(err, errs.Invalid) {
		t.Errorf("MaxText: %v, want Invalid", err)
	}
	if left, err := os.ReadDir(outside); err != nil || len(left) > 0 {
		t.Errorf("written outside: %v, %v", left, err)
	}
	// The pipes still belong to the test.
	b.write(b.stdout, "fine\n")
	b.drain(b.open())
	b.expect("0.log", "stdout F fine")
}

func TestRecordRefuses(t *testing.T) {
	b := newBench(t)
	b.open().Close()
	path := recordPath(b.cfg.Dir)
	good, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		at   int
		kind error
	}{"magic": {0, errs.State}, "version": {8, errs.Unsupported}, "line length": {15, errs.State}} {
		bad := bytes.Clone(good)
		bad[c.at] ^= 0x40
		if err := os.WriteFile(path, bad, 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := b.loop.Open(b.ctx(), b.cfg, b.reader[0], b.reader[1]); !errors.Is(err, c.kind) {
			t.Errorf("%s: %v, want %v", name, err, c.kind)
		}
	}
}

func TestDrainDoesNotWaitForAWriterWithoutEnd(t *testing.T) {
	b := newBench(t)
	p := b.open()
	b.write(b.stdout, "before\n")
	stop := make(chan struct{})
	var writing sync.WaitGroup
	writing.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
				b.stdout.WriteString("stray\n")
			}
		}
	})
	b.drain(p)
	close(stop)
	writing.Wait()
	if got := b.lines("0.log")[0]; got != "stdout F before" {
		t.Errorf("first line is %q", got)
	}
}

func TestPipeWithoutWritersEnds(t *testing.T) {
	b := newBench(t)
	p := b.open()
	b.write(b.stdout, "bye\n")
	b.stdout.Close()
	b.stderr.Close()
	b.expect("0.log", "stdout F bye")
	b.drain(p)
}

func waitFor(t *testing.T, done func() bool) {
	t.Helper()
	for deadline := time.Now().Add(patience); !done(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("it did not happen")
		}
	}
}

// lockedBuffer is a buffer that two goroutines can use.
type lockedBuffer struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.Write(p)
}

func (b *lockedBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.String()
}
