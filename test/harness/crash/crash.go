// Package crash kills berth's processes while pods start, log, exit and run execs, and compares the
// result with the expected one: every container that should run does, every line is in its log once
// and in order, every exit code is right, and nothing is left in the end.
//
// Actors simulate kubelets (load.go): they send requests, repeat them while berth is down, and
// check the answers. Rounds (round.go) kill processes and restart them. Known exits happen while
// something is dead: a container exits when its trigger file appears, and the test holds back half
// of the triggers until the next kill.
package crash

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/berthrun/berth/internal/require"
	"github.com/berthrun/berth/test/harness"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials/insecure"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// Kind is what dies in a round.
type Kind string

// The kinds.
const (
	Daemon           Kind = "daemon"
	Supervisor       Kind = "supervisor"
	Keeper           Kind = "keeper"
	DaemonSupervisor Kind = "daemon+supervisor"
	All              Kind = "all three"
)

func (k Kind) daemonDies() bool { return k == Daemon || k == DaemonSupervisor || k == All }

// Options of a crash test.
type Options struct {
	// Seed of everything random; 0 picks one.
	Seed uint64
	// Rounds of each kind, in shuffled order.
	Rounds map[Kind]int
	// EachStage adds rounds until every stage of a job was hit that often.
	EachStage int
	// Actors is how many pods are active at once.
	Actors int
}

// Seed returns the one that BERTH_CRASH_SEED names, to repeat an earlier run, or 0.
func Seed(t testing.TB) uint64 {
	t.Helper()
	return harness.Seed(t, "BERTH_CRASH_SEED")
}

// test is one run.
type test struct {
	t    testing.TB
	b    *harness.Berth
	opts Options
	rng  *rand.Rand

	runtime runtimeapi.RuntimeServiceClient
	// triggers is the directory that all containers see as /triggers.
	triggers string
	// settled is the directory that all containers see as /settled: see writer.
	settled string
	stages  *stageTable
	exits   exitCounts
	done    doneCounts

	stop     chan struct{} // closed when the test starts no more pods
	actors   sync.WaitGroup
	failures chan struct{} // closed at the first failure
	failOnce sync.Once

	mu      sync.Mutex
	history []string
	// windows in which all three were dead.
	windows []window
	// outages counts the beginning and the end of each outage.
	outages int
	alive   map[string]*container // those that must run
	held    []*container
}

// window is a time in which something was dead.
type window struct{ from, to time.Time }

// Run runs the whole test against a berth of its own.
func Run(t *testing.T, opts Options) {
	t.Helper()
	if opts.Seed == 0 {
		opts.Seed = uint64(time.Now().UnixNano())
	}
	t.Logf("seed %d", opts.Seed)
	require.Binary(t, "chattr")
	b := harness.Start(t, harness.Options{})
	b.NeedsPart(t, harness.Supervisors) // over an engine: TestCrashOverDocker
	c := newTest(t, b, opts)
	ground := c.groundState()
	c.begin()
	kinds := c.shuffled()
	for i, kind := range kinds {
		if c.failed() {
			break
		}
		c.round(i, kind, "")
	}
	aimed := c.aim(len(kinds))
	c.finish(ground)
	if alien := c.stages.unknown(); len(alien) > 0 {
		c.errorf("stages that this test does not know: %q", alien)
	}
	t.Logf("%d rounds at random moments, %d aimed at stages; known exits: %d while something was dead, %d while all lived; %s\n%s",
		len(kinds), aimed, c.exits.dead.Load(), c.exits.alive.Load(), &c.done, c.stages)
}

// aim kills the daemon at stages that random kills hit too seldom, and returns how often.
func (c *test) aim(number int) (rounds int) {
	for missing := c.stages.missing(c.opts.EachStage); missing != "" && !c.failed(); missing = c.stages.missing(c.opts.EachStage) {
		if rounds == 20*len(allStages()) {
			c.errorf("stage %q was hit less than %d times, also after %d more rounds", missing, c.opts.EachStage, rounds)
		}
		c.round(number+rounds, Daemon, missing)
		rounds++
	}
	return rounds
}

func newTest(t testing.TB, b *harness.Berth, opts Options) *test {
	c := &test{
		t: t, b: b, opts: opts, rng: rand.New(rand.NewPCG(opts.Seed, 1)),
		triggers: filepath.Join(b.Dir, "triggers"), settled: filepath.Join(b.Dir, "settled"), stages: newStageTable(filepath.Join(b.Dir, "berth.log")),
		stop: make(chan struct{}), failures: make(chan struct{}), alive: map[string]*container{},
	}
	for _, dir := range []string{c.triggers, c.settled} {
		if err := os.Mkdir(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	conn, err := grpc.NewClient("unix://"+b.Socket, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithConnectParams(grpc.ConnectParams{Backoff: backoff.Config{BaseDelay: 5 * time.Millisecond, Multiplier: 1.5, MaxDelay: 50 * time.Millisecond}}))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	c.runtime = runtimeapi.NewRuntimeServiceClient(conn)
	return c
}

// shuffled returns the kinds of all rounds in a random order.
func (c *test) shuffled() []Kind {
	var kinds []Kind
	for _, kind := range []Kind{Daemon, Supervisor, Keeper, DaemonSupervisor, All} {
		for range c.opts.Rounds[kind] {
			kinds = append(kinds, kind)
		}
	}
	c.rng.Shuffle(len(kinds), func(i, j int) { kinds[i], kinds[j] = kinds[j], kinds[i] })
	return kinds
}

// finish ends everything and checks what is left.
func (c *test) finish(before ground) {
	close(c.stop)
	ended := make(chan struct{})
	go func() { c.actors.Wait(); close(ended) }()
	for waiting := true; waiting; {
		c.fireHeld(func(*container) bool { return true })
		select {
		case <-ended:
			waiting = false
		case <-time.After(100 * time.Millisecond): // pods may still be held
		}
	}
	if !c.failed() {
		c.compareGround(before)
	}
}

// note adds a line to what is printed when a round fails.
func (c *test) note(format string, args ...any) {
	line := time.Now().UTC().Format("15:04:05.000000 ") + fmt.Sprintf(format, args...)
	c.mu.Lock()
	defer c.mu.Unlock()
	const most = 60
	c.history = append(c.history[max(0, len(c.history)-most):], line)
}

// errorf fails the test, prints what the last rounds did, and ends the rounds.
func (c *test) errorf(format string, args ...any) {
	c.t.Helper()
	c.t.Errorf("%s "+format, append([]any{time.Now().UTC().Format("15:04:05.000000")}, args...)...)
	c.failOnce.Do(func() {
		c.mu.Lock()
		history := strings.Join(c.history, "\n")
		c.mu.Unlock()
		c.t.Logf("what the last rounds did:\n%s", history)
		c.keepLogs()
		close(c.failures)
	})
}

// keepLogs copies the logs of berth's processes to where `go test -artifacts` keeps them.
func (c *test) keepLogs() {
	for _, log := range []string{c.stages.path, filepath.Join(c.b.State, "supervisor.log")} {
		data, err := os.ReadFile(log)
		if err == nil {
			err = os.WriteFile(filepath.Join(c.t.ArtifactDir(), filepath.Base(log)), data, 0o600)
		}
		if err != nil {
			c.t.Logf("cannot keep a log: %v", err)
		}
	}
}

func (c *test) failed() bool {
	select {
	case <-c.failures:
		return true
	default:
		return false
	}
}

// ended reports whether no new pods are wanted.
func (c *test) ended() bool {
	select {
	case <-c.stop:
		return true
	case <-c.failures:
		return true
	default:
		return false
	}
}

// sleep waits, or until the test ends.
func (c *test) sleep(d time.Duration) {
	select {
	case <-time.After(d):
	case <-c.stop:
	case <-c.failures:
	}
}

// lostAll reports whether all three were dead at some time since from.
func (c *test) lostAll(from time.Time) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, w := range c.windows {
		if w.to.IsZero() || w.to.After(from) {
			return true
		}
	}
	return false
}

// outageSince reports whether something has been dead since outageCount returned count.
func (c *test) outageSince(count int) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.outages != count || c.outages%2 == 1
}

func (c *test) outageCount() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.outages
}

// awayTimeout is how long a request is retried while berth is away.
func awayTimeout() time.Duration { return require.Patience(60 * time.Second) }

// retryWhileAway retries a call while berth is away, or returns an error that asks for a retry.
func (c *test) retryWhileAway(call func(ctx context.Context) error) error {
	deadline := time.Now().Add(awayTimeout())
	for {
		ctx, cancel := context.WithTimeout(context.Background(), awayTimeout()/2)
		err := call(ctx)
		cancel()
		if !away(err) || time.Now().After(deadline) {
			return err
		}
		time.Sleep(5 * time.Millisecond) // a kubelet waits, too
	}
}
