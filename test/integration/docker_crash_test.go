//go:build integration && e2e

package integration

import (
	"encoding/json"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"net/http"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/berthrun/berth/internal/docker/dockertest"
	"github.com/berthrun/berth/internal/require"
	"github.com/berthrun/berth/internal/sys/sysproc"
	"github.com/berthrun/berth/test/harness"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// What dies in a round of TestCrashOverDocker.
const (
	engineDies = 1 << iota
	berthDies
)

// TestCrashOverDocker kills the Docker engine (with its containerd), berth, or both while pods are
// created, run, log, run commands, exit and are removed, and compares the result with what was
// expected. BERTH_CRASH_SEED repeats a run, BERTH_CRASH_ROUNDS sets the rounds.
//
// An outage of the engine takes what only the engine knew: see docs/docker.md, "What an engine
// cannot hold". Whatever did not overlap with one has to be exact.
func TestCrashOverDocker(t *testing.T) {
	for _, live := range []bool{true, false} {
		t.Run(fmt.Sprintf("live-restore=%v", live), func(t *testing.T) { crashOverDocker(t, live) })
	}
}

func crashOverDocker(t *testing.T, live bool) {
	seed := harness.Seed(t, "BERTH_CRASH_SEED")
	if seed == 0 {
		seed = uint64(time.Now().UnixNano())
	}
	t.Logf("seed %d", seed)
	b := harness.Start(t, harness.Options{Docker: &dockertest.Options{LiveRestore: live, Args: []string{"--shutdown-timeout", "1"}}})
	c := &dockerCrash{
		t: t, b: b, hand: newByHand(b), live: live, seed: seed, rng: rand.New(rand.NewPCG(seed, 0)),
		stop: make(chan struct{}), failed: make(chan struct{}), calls: make(map[string]int),
	}
	before := c.ground()
	for i := range harness.Number(t, "BERTH_CRASH_ACTORS", 4) {
		c.act(i, fmt.Sprintf("life%d", i), (*crashActor).life)
	}
	c.act(100, "execs", (*crashActor).execs)
	c.act(101, "badstart", (*crashActor).badStart)
	for i := range harness.Number(t, "BERTH_CRASH_ROUNDS", 6) {
		if c.hasFailed() {
			break
		}
		c.round(i, 1+i%(engineDies|berthDies))
	}
	close(c.stop)
	c.actors.Wait()
	t.Logf("%d pods, %d commands; %d exits were exact, %d overlapped with an outage of the engine and were exact, %d unknown, %d ended by the engine; %d logs lack lines",
		c.count("pods"), c.count("commands"), c.count("exact"), c.count("exact in an outage"), c.count("unknown"), c.count("ended"), c.count("logs with gaps"))
	if !c.hasFailed() {
		c.compare(before)
	}
}

// dockerCrash is one run.
type dockerCrash struct {
	t    *testing.T
	b    *harness.Berth
	hand *byHand
	live bool
	seed uint64
	rng  *rand.Rand

	stop, failed chan struct{}
	actors       sync.WaitGroup

	mu      sync.Mutex
	outages []crashOutage
	counts  map[string]int
	// calls are how many calls of each actor have succeeded since the last round.
	calls    map[string]int
	isFailed bool
}

// crashOutage is a time in which something was dead.
type crashOutage struct {
	what     int
	from, to time.Time
}

func (c *dockerCrash) errorf(format string, args ...any) {
	c.t.Helper()
	c.t.Errorf(time.Now().UTC().Format("15:04:05.000 ")+format, args...)
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.isFailed {
		c.isFailed = true
		close(c.failed)
		c.t.Logf("outages: %+v", c.outages)
	}
}

func (c *dockerCrash) hasFailed() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.isFailed
}

func (c *dockerCrash) add(what string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.counts == nil {
		c.counts = map[string]int{}
	}
	c.counts[what]++
}

func (c *dockerCrash) count(what string) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.counts[what]
}

// isAway reports whether one of the given things was dead at some time since from.
func (c *dockerCrash) isAway(what int, from time.Time) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.ContainsFunc(c.outages, func(o crashOutage) bool {
		return o.what&what != 0 && (o.to.IsZero() || o.to.After(from))
	})
}

// awaitProgress waits until a call of each actor has succeeded since the last round. On a machine that
// is too busy for that, an actor would otherwise never get through.
func (c *dockerCrash) awaitProgress() {
	done := func() bool {
		c.mu.Lock()
		defer c.mu.Unlock()
		for _, calls := range c.calls {
			if calls == 0 {
				return false
			}
		}
		return true
	}
	for deadline := time.Now().Add(require.Patience(time.Minute)); !done() && time.Now().Before(deadline) && !c.hasFailed(); {
		time.Sleep(50 * time.Millisecond)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for name := range c.calls {
		c.calls[name] = 0
	}
}

// round kills, waits and starts again, and checks what everybody says then.
func (c *dockerCrash) round(number, what int) {
	pause := func(most time.Duration) {
		select {
		case <-time.After(time.Duration(c.rng.Int64N(int64(most)))):
		case <-c.failed:
		}
	}
	pause(require.Patience(4 * time.Second))
	c.awaitProgress()
	c.mu.Lock()
	at := len(c.outages)
	c.outages = append(c.outages, crashOutage{what: what, from: time.Now()})
	c.mu.Unlock()
	c.t.Logf("%s round %d: %d dies", time.Now().UTC().Format("15:04:05.000"), number, what)
	if what&berthDies != 0 {
		c.b.KillDaemon()
	}
	if what&engineDies != 0 {
		c.b.Docker.Kill()
	}
	pause(time.Second)
	if what&engineDies != 0 {
		c.b.Docker.Launch()
	}
	if what&berthDies != 0 {
		c.b.StartDaemon()
	}
	c.b.Await("the runtime to be ready", func() bool { return runtimeReady(c.b).GetStatus() })
	c.mu.Lock()
	c.outages[at].to = time.Now()
	c.mu.Unlock()
	c.agree(number)
}

// agree waits until berth and the engine say the same of each container that exists: what is
// running in berth runs in the engine, and what has exited does not.
func (c *dockerCrash) agree(number int) {
	var last map[string]string
	for deadline := time.Now().Add(require.Patience(40 * time.Second)); ; time.Sleep(100 * time.Millisecond) {
		now := c.disagreements()
		for id, what := range last {
			if now[id] != what {
				delete(last, id)
			}
		}
		if last == nil {
			last = now
		}
		if len(last) == 0 {
			return
		}
		if time.Now().After(deadline) {
			c.errorf("round %d: berth and the engine do not agree: %v", number, last)
			return
		}
	}
}

func (c *dockerCrash) disagreements() map[string]string {
	found := map[string]string{}
	list, err := c.b.Runtime.ListContainers(c.b.Ctx(), &runtimeapi.ListContainersRequest{})
	if err != nil {
		return map[string]string{"list": err.Error()}
	}
	engines := c.inEngine()
	for _, one := range list.GetContainers() {
		state, runs := one.GetState(), engines[one.GetId()] == "running"
		if state == runtimeapi.ContainerState_CONTAINER_RUNNING && !runs || state == runtimeapi.ContainerState_CONTAINER_EXITED && runs {
			found[one.GetId()] = fmt.Sprintf("%s is %v in berth, %q in the engine", one.GetMetadata().GetName(), state, engines[one.GetId()])
		}
	}
	return found
}

// inEngine returns the states of all containers of the engine by CRI's ids.
func (c *dockerCrash) inEngine() map[string]string {
	var all []struct {
		ID, State string
		Labels    map[string]string
	}
	if err := json.Unmarshal(c.hand.do(http.MethodGet, "/containers/json?all=1"), &all); err != nil {
		c.t.Fatal(err)
	}
	states := map[string]string{}
	for _, one := range all {
		id := one.Labels["run.berth.id"]
		if id == "" {
			id = one.ID
		}
		states[id] = one.State
	}
	return states
}

// ground is what exists without pods: files, and descriptors of berth.
func (c *dockerCrash) ground() (files []string) {
	for _, dir := range []string{"state", "root"} {
		_ = filepath.WalkDir(filepath.Join(c.b.Dir, dir), func(path string, entry fs.DirEntry, err error) error {
			switch {
			case err != nil:
			case strings.Contains(path, "/tombstones/"), strings.Contains(path, "/events"): // written in batches
			case entry.IsDir() && strings.HasSuffix(path, "/tombstones"):
			default:
				files = append(files, path)
			}
			return nil
		})
	}
	return append(files, harness.FindLeftovers(c.b.Dir).Mounts...)
}

// compare waits until nothing is left of the pods.
func (c *dockerCrash) compare(before []string) {
	c.b.RemoveAllPods()
	last := ""
	c.b.Await("nothing to be left", func() bool {
		left := slices.DeleteFunc(c.ground(), func(path string) bool { return slices.Contains(before, path) })
		for id, state := range c.inEngine() {
			left = append(left, "container "+id+" "+state)
		}
		all := harness.FindLeftovers(c.b.Dir)
		left = append(append(left, all.NetNS...), all.Cgroups...)
		// A shim that its containerd has lost is the engine's, but nothing may run below it.
		left = append(left, harness.Processes(func(pid int, line string) bool {
			return strings.Contains(line, "containerd-shim") && strings.Contains(line, filepath.Dir(c.b.Docker.Root)+"/") && hasChildren(pid)
		})...)
		if text := fmt.Sprint(left); text != last {
			c.t.Logf("left are %d: %q", len(left), left[:min(len(left), 5)])
			last = text
		}
		return len(left) == 0
	})
}

// hasChildren reports whether a process has children that have not ended.
func hasChildren(pid int) bool {
	children, _ := filepath.Glob("/proc/[0-9]*/stat")
	for _, file := range children {
		child, err := strconv.Atoi(filepath.Base(filepath.Dir(file)))
		if err != nil {
			continue
		}
		if proc, err := sysproc.ReadProc(child); err == nil && proc.PPid == pid && !proc.Zombie() {
			return true
		}
	}
	return false
}
