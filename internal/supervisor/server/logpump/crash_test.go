package logpump

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"hash"
	"hash/fnv"
	"io"
	"log/slog"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/berthrun/berth/internal/crilog"
)

// TestCrash kills the process that pumps at random moments. Meanwhile a container writes at full
// speed to both streams, and the test renames the log, has it reopened, and reads it. Afterwards
// every line is in the log once, in order.
//
// BERTH_CRASH_SEED repeats a run's choices, but not its moments. BERTH_CRASH_ROUNDS is the number
// of kills. Without it they continue for about 12 seconds, longer on a slow machine.
func TestCrash(t *testing.T) {
	seed := envInt(t, "BERTH_CRASH_SEED", time.Now().UnixNano())
	rounds := envInt(t, "BERTH_CRASH_ROUNDS", 0)
	t.Logf("BERTH_CRASH_SEED=%d", seed)
	c := newCrash(t, uint64(seed))
	begin := time.Now()
	for int64(c.kills) < rounds || rounds == 0 && (time.Since(begin) < 12*time.Second || !c.enough() && time.Since(begin) < 2*time.Minute) {
		c.insist = rounds == 0 && time.Since(begin) >= 12*time.Second
		c.round()
	}
	c.finish()
	t.Logf("%d kills, %d of them with a ring, %d in a read into one, %d rotations (%d taken back), %d lines, %d MiB of log",
		c.kills, c.ringKills, c.readKills, c.rotations, c.takenBack, c.check.lines[0]+c.check.lines[1], c.check.bytes>>20)
	if !c.enough() {
		t.Errorf("too few kills or rotations to mean anything")
	}
}

func (c *crash) enough() bool { return c.kills >= 20 && c.ringKills >= 3 && c.rotations >= 3 }

// crash is one run. This process is container, keeper, kubelet and log collector. The child is the
// supervisor.
type crash struct {
	t       *testing.T
	rnd     *rand.Rand
	bench   *bench
	child   *child
	follow  *follower
	check   *checker
	stop    atomic.Bool
	writers sync.WaitGroup

	kills, rotations, takenBack int
	// ringKills is how many kills left a ring behind, readKills how many a read into one.
	ringKills, readKills int
	// insist is set when chance has not brought enough of them on this machine: each round lasts long
	// enough for a ring, and rotates the log to the end.
	insist bool
}

func newCrash(t *testing.T, seed uint64) *crash {
	c := &crash{
		t:     t,
		rnd:   rand.New(rand.NewPCG(seed, 99)),
		bench: newBench(t),
		check: newChecker(t, seed),
	}
	for stream, pipe := range []*os.File{c.bench.stdout, c.bench.stderr} {
		c.writers.Go(func() { c.writeLines(seed, crilog.Stream(stream), pipe) })
	}
	c.child = startChild(c.bench)
	c.child.await('o')
	c.follow = followFile(t, c.bench.path("0.log"))
	return c
}

// round kills the child 0.2 to 18 ms after the start of its main. Some rounds rotate the log
// meanwhile, and some last longer, so that the child has a ring when it is killed.
func (c *crash) round() {
	if c.rnd.IntN(10) == 0 || c.insist {
		c.rotate()
	}
	if c.rnd.IntN(8) == 0 || c.insist {
		time.Sleep(3 * c.lifetime())
	}
	if c.insist {
		time.Sleep(20 * c.lifetime())
	}
	time.Sleep(c.lifetime())
	c.restart()
}

func (c *crash) lifetime() time.Duration {
	return 200*time.Microsecond + time.Duration(c.rnd.Int64N(int64(17800*time.Microsecond)))
}

func (c *crash) restart() {
	c.child.kill()
	c.kills++
	c.countRings()
	c.child = startChild(c.bench)
}

// countRings looks into the record of the child that was just killed.
func (c *crash) countRings() {
	r, err := openRecord(recordPath(c.bench.cfg.Dir))
	must(c.t, err)
	defer r.close()
	used, reading := false, false
	for _, ring := range r.load().rings {
		used = used || ring.room != 0
		reading = reading || ring.filling != 0
	}
	if used {
		c.ringKills++
	}
	if reading {
		c.readKills++
	}
}

// rotate does what a kubelet does. It renames the log and requests a new one. Without an answer it
// either undoes the rename or repeats the request. The child may die at any point.
func (c *crash) rotate() {
	log, old := c.bench.path("0.log"), c.bench.path("0.log.old")
	if c.rnd.IntN(2) == 0 {
		c.child.kill()
		c.kills++
		must(c.t, os.Rename(log, old))
		c.child = startChild(c.bench)
	} else {
		must(c.t, os.Rename(log, old))
	}
	// Each attempt has twice the time of the previous one, so that one succeeds on a slow machine
	// too.
	for patience := c.lifetime() / 8; ; patience *= 2 {
		child := c.child
		killer := time.AfterFunc(patience, func() { child.cmd.Process.Kill() })
		acknowledged := child.ask('R') && child.await('r')
		killer.Stop()
		if acknowledged {
			break
		}
		c.restart()
		if _, err := os.Lstat(log); os.IsNotExist(err) && c.rnd.IntN(3) == 0 && !c.insist {
			// The child that was just started may create the log at this moment, if it found
			// neither name. The test has to avoid that.
			c.child.await('o')
			if _, err := os.Lstat(log); err == nil {
				c.t.Fatal("a successor made a new log though the old one was there under another name")
			}
			must(c.t, os.Rename(old, log))
			c.takenBack++
			return
		}
	}
	c.rotations++
	c.follow.end()
	c.check.file(old)
	must(c.t, os.Remove(old))
	c.follow = followFile(c.t, log)
}

func (c *crash) finish() {
	c.stop.Store(true)
	c.writers.Wait()
	if !c.child.ask('D') || !c.child.await('d') {
		c.t.Fatal("the last child did not drain")
	}
	c.child.kill()
	c.follow.end()
	c.check.file(c.bench.path("0.log"))
	c.check.end()
}

// writeLines is the container. It writes as fast as it can, in pieces that do not end with lines.
// At times it writes line by line, so that the pump has pauses. It reports the number of lines to
// the checker.
func (c *crash) writeLines(seed uint64, stream crilog.Stream, pipe *os.File) {
	lines := newLines(seed, stream)
	how := rand.New(rand.NewPCG(seed, 7+uint64(stream)))
	var out []byte
	for !c.stop.Load() {
		if how.IntN(200) == 0 {
			c.talk(lines, pipe)
		}
		out = out[:0]
		for range 1 + how.IntN(40)*how.IntN(2) {
			out = append(out, lines.next()...)
		}
		for len(out) > 0 {
			n := len(out)
			if how.IntN(4) == 0 {
				n = 1 + how.IntN(n)
			}
			if _, err := pipe.Write(out[:n]); err != nil {
				c.t.Error(err)
				return
			}
			out = out[n:]
		}
	}
	c.check.wrote[stream] = lines.n
}

// talk writes some lines one by one.
func (c *crash) talk(lines *lineSource, pipe *os.File) {
	for range 200 {
		if _, err := pipe.Write(lines.next()); err != nil {
			c.t.Error(err)
		}
		time.Sleep(20 * time.Microsecond)
	}
}

// lineSource generates the lines of one stream, the same ones for the same seed.
type lineSource struct {
	rnd *rand.Rand
	n   int
	buf []byte
}

func newLines(seed uint64, stream crilog.Stream) *lineSource {
	return &lineSource{rnd: rand.New(rand.NewPCG(seed, uint64(stream)))}
}

// next returns the next line, of 20 bytes to 45 KB. Most are short.
func (l *lineSource) next() []byte {
	size := 20 + l.rnd.IntN(200)
	switch l.rnd.IntN(50) {
	case 0:
		size = 20 + l.rnd.IntN(45_000)
	case 1:
		// Near the length at which lines are split.
		size = crilog.DefaultMaxText*(1+l.rnd.IntN(2)) - 3 + l.rnd.IntN(6)
	}
	l.buf = fmt.Appendf(l.buf[:0], "line %010d ", l.n)
	for len(l.buf) < size {
		l.buf = append(l.buf, 'a'+byte((l.n+len(l.buf))%26))
	}
	l.n++
	l.buf = append(l.buf, '\n')
	return l.buf
}

// checker reads the logs in the order of their rotation and compares them.
type checker struct {
	t     *testing.T
	want  [crilog.Streams]*lineSource
	part  [crilog.Streams][]byte
	lines [crilog.Streams]int
	wrote [crilog.Streams]int
	bytes int64
}

func newChecker(t *testing.T, seed uint64) *checker {
	return &checker{t: t, want: [crilog.Streams]*lineSource{newLines(seed, crilog.Stdout), newLines(seed, crilog.Stderr)}}
}

func (c *checker) file(path string) {
	c.t.Helper()
	f, err := os.Open(path)
	must(c.t, err)
	defer f.Close()
	st, err := f.Stat()
	must(c.t, err)
	c.bytes += st.Size()
	r := crilog.NewReader(f)
	for {
		line, err := r.Next()
		if errors.Is(err, io.EOF) && len(r.Rest()) == 0 {
			return
		}
		if err != nil {
			c.t.Fatalf("%s behind line %d of stdout and %d of stderr: %v, rest %.80q", path, c.lines[0], c.lines[1], err, r.Rest())
		}
		part := append(c.part[line.Stream], line.Text...)
		if !line.Partial {
			part = append(part, '\n')
			if want := c.want[line.Stream].next(); !bytes.Equal(part, want) {
				c.t.Fatalf("%s %s: got line of %d bytes %.60q, want %d bytes %.60q",
					path, line.Stream, len(part), part, len(want), want)
			}
			c.lines[line.Stream]++
			part = part[:0]
		}
		c.part[line.Stream] = part
	}
}

func (c *checker) end() {
	c.t.Helper()
	if c.lines != c.wrote {
		c.t.Errorf("log has %v lines, the container wrote %v", c.lines, c.wrote)
	}
	if len(c.part[0])+len(c.part[1]) > 0 {
		c.t.Errorf("unfinished lines: %.60q, %.60q", c.part[0], c.part[1])
	}
}

// follower reads a log while it is written, as a collector does.
type follower struct {
	t    *testing.T
	file *os.File
	last chan struct{}
	sum  chan hash.Hash64
	size int64
}

func followFile(t *testing.T, path string) *follower {
	t.Helper()
	file, err := os.Open(path)
	must(t, err)
	f := &follower{t: t, file: file, last: make(chan struct{}), sum: make(chan hash.Hash64, 1)}
	go f.run()
	return f
}

func (f *follower) run() {
	sum := fnv.New64a()
	buf := make([]byte, 64<<10)
	for last := false; ; {
		n, err := f.file.Read(buf)
		sum.Write(buf[:n])
		f.size += int64(n)
		if n > 0 {
			continue
		}
		if last || !errors.Is(err, io.EOF) {
			f.sum <- sum
			return
		}
		select {
		case <-f.last:
			last = true
		case <-time.After(200 * time.Microsecond):
		}
	}
}

// end compares the lines that were read during the run with the files.
func (f *follower) end() {
	f.t.Helper()
	close(f.last)
	seen := <-f.sum
	whole := fnv.New64a()
	_, err := f.file.Seek(0, io.SeekStart)
	must(f.t, err)
	n, err := io.Copy(whole, f.file)
	must(f.t, err)
	if n != f.size || seen.Sum64() != whole.Sum64() {
		f.t.Errorf("a follower read %d bytes, the file has %d; equal: %v", f.size, n, seen.Sum64() == whole.Sum64())
	}
	f.file.Close()
}

// child is the process that pumps.
type child struct {
	t    testing.TB
	cmd  *exec.Cmd
	asks *os.File
	says *bufio.Reader
	ends []*os.File
}

const childEnv = "BERTH_LOGPUMP_CHILD"

func startChild(b *bench) *child {
	b.t.Helper()
	c := &child{t: b.t}
	askedBy, asks, err := os.Pipe()
	must(b.t, err)
	says, saysTo, err := os.Pipe()
	must(b.t, err)
	c.cmd = exec.Command(os.Args[0])
	c.cmd.Env = append(os.Environ(), childEnv+"="+b.cfg.Dir+":"+b.cfg.LogDir)
	c.cmd.Stdin, c.cmd.Stdout, c.cmd.Stderr = askedBy, saysTo, os.Stderr
	c.cmd.ExtraFiles = b.reader[:]
	must(b.t, c.cmd.Start())
	askedBy.Close()
	saysTo.Close()
	c.asks, c.says, c.ends = asks, bufio.NewReader(says), []*os.File{asks, says}
	if !c.await('m') {
		b.t.Fatal("the child did not start")
	}
	return c
}

// await reads until the child prints the given text. It returns false if the child died before.
func (c *child) await(what byte) bool {
	for {
		got, err := c.says.ReadByte()
		if err != nil {
			return false
		}
		if got == '!' {
			rest, _ := c.says.ReadString(0)
			c.t.Fatal("child: ", rest)
		}
		if got == what {
			return true
		}
	}
}

func (c *child) ask(what byte) bool {
	_, err := c.asks.Write([]byte{what})
	return err == nil
}

func (c *child) kill() {
	c.cmd.Process.Kill()
	c.cmd.Wait()
	for _, end := range c.ends {
		end.Close()
	}
}

func TestMain(m *testing.M) {
	if places := os.Getenv(childEnv); places != "" {
		os.Stdout.WriteString("m")
		if err := runChild(places); err != nil {
			os.Stdout.WriteString("!" + err.Error())
		}
		os.Exit(1)
	}
	if size := os.Getenv(writerEnv); size != "" {
		if err := runWriter(size); err != nil {
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

func runChild(places string) error {
	loop, err := NewLoop()
	if err != nil {
		return err
	}
	go loop.Run(context.Background())
	dir, logDir := filepath.SplitList(places)[0], filepath.SplitList(places)[1]
	p, err := loop.Open(context.Background(), Config{
		Dir: dir, LogDir: logDir, LogPath: "0.log", Log: slog.New(slog.NewTextHandler(os.Stderr, nil)),
	}, os.NewFile(3, "stdout"), os.NewFile(4, "stderr"))
	if err != nil {
		return err
	}
	os.Stdout.WriteString("o")
	in := make([]byte, 1)
	for {
		if _, err := os.Stdin.Read(in); err != nil {
			return err
		}
		switch in[0] {
		case 'R':
			if err := p.Reopen(context.Background()); err != nil {
				return err
			}
			os.Stdout.WriteString("r")
		case 'D':
			if err := p.Drain(context.Background()); err != nil {
				return err
			}
			os.Stdout.WriteString("d")
		}
	}
}

func envInt(t *testing.T, name string, otherwise int64) int64 {
	t.Helper()
	text := os.Getenv(name)
	if text == "" {
		return otherwise
	}
	n, err := strconv.ParseInt(text, 10, 64)
	must(t, err)
	return n
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
