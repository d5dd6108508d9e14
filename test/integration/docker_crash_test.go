//go:build integration && e2e

package integration

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/berthrun/berth/internal/crilog"
	"github.com/berthrun/berth/internal/docker/dockertest"
	"github.com/berthrun/berth/internal/engine"
	"github.com/berthrun/berth/internal/require"
	"github.com/berthrun/berth/internal/sys/sysproc"
	"github.com/berthrun/berth/test/harness"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
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
		stop: make(chan struct{}), failed: make(chan struct{}),
	}
	before := c.ground()
	for i := range number(t, "BERTH_CRASH_ACTORS", 4) {
		c.act(i, fmt.Sprintf("life%d", i), (*crashActor).life)
	}
	c.act(100, "execs", (*crashActor).execs)
	c.act(101, "badstart", (*crashActor).badStart)
	for i := range number(t, "BERTH_CRASH_ROUNDS", 6) {
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

	mu       sync.Mutex
	outages  []crashOutage
	counts   map[string]int
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

// round kills, waits and starts again, and checks what everybody says then.
func (c *dockerCrash) round(number, what int) {
	pause := func(most time.Duration) {
		select {
		case <-time.After(time.Duration(c.rng.Int64N(int64(most)))):
		case <-c.failed:
		}
	}
	pause(require.Patience(4 * time.Second))
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

// crashActor is one worker of a kubelet.
type crashActor struct {
	*dockerCrash
	name string
	rng  *rand.Rand
}

func (c *dockerCrash) act(number int, name string, life func(*crashActor, string) error) {
	a := &crashActor{dockerCrash: c, name: name, rng: rand.New(rand.NewPCG(c.seed, uint64(number)+1))}
	c.actors.Go(func() {
		for i := 0; ; i++ {
			select {
			case <-c.stop:
				return
			case <-c.failed:
				return
			default:
			}
			pod := fmt.Sprintf("%s-%d", name, i)
			if err := life(a, pod); err != nil {
				c.errorf("pod %s: %v", pod, err)
				return
			}
		}
	})
}

// retry repeats a call that an outage has disturbed, as a kubelet does.
func (c *dockerCrash) retry(what string, call func(ctx context.Context) error) error {
	var last error
	for deadline := time.Now().Add(require.Patience(90 * time.Second)); time.Now().Before(deadline) && !c.hasFailed(); time.Sleep(20 * time.Millisecond) {
		begun := time.Now()
		ctx, stop := context.WithTimeout(context.Background(), require.Patience(40*time.Second))
		last = call(ctx)
		stop()
		if last == nil {
			return nil
		}
		if !c.isAway(engineDies|berthDies, begun.Add(-10*time.Second)) {
			return fmt.Errorf("%s: %w", what, last)
		}
	}
	if c.hasFailed() {
		return nil
	}
	return fmt.Errorf("%s, again and again: %w", what, last)
}

// crashContainer is a container, and what is known of it.
type crashContainer struct {
	id, log string
	born    time.Time
}

func (a *crashActor) run(config *runtimeapi.PodSandboxConfig) (id string, err error) {
	return id, a.retry("run sandbox", func(ctx context.Context) error {
		answer, err := a.b.Runtime.RunPodSandbox(ctx, &runtimeapi.RunPodSandboxRequest{Config: config})
		id = answer.GetPodSandboxId()
		if status.Code(err) == codes.AlreadyExists {
			config.Metadata.Attempt++ // it was lost before anybody got its id
		}
		return err
	})
}

func (a *crashActor) remove(sandbox string, config *runtimeapi.PodSandboxConfig) error {
	if err := a.retry("stop sandbox", func(ctx context.Context) error {
		_, err := a.b.Runtime.StopPodSandbox(ctx, &runtimeapi.StopPodSandboxRequest{PodSandboxId: sandbox})
		return err
	}); err != nil {
		return err
	}
	if err := a.retry("remove sandbox", func(ctx context.Context) error {
		_, err := a.b.Runtime.RemovePodSandbox(ctx, &runtimeapi.RemovePodSandboxRequest{PodSandboxId: sandbox})
		return err
	}); err != nil {
		return err
	}
	a.add("pods")
	return os.RemoveAll(config.LogDirectory)
}

// launch creates and starts a container. It is nil when an outage ended its sandbox before.
func (a *crashActor) launch(sandbox string, config *runtimeapi.PodSandboxConfig, name, script string) (*crashContainer, error) {
	one := &crashContainer{log: filepath.Join(config.LogDirectory, name, "0.log"), born: time.Now()}
	wanted := a.b.Container(name, script)
	err := a.retry("create", func(ctx context.Context) error {
		answer, err := a.b.Runtime.CreateContainer(ctx, &runtimeapi.CreateContainerRequest{PodSandboxId: sandbox, Config: wanted, SandboxConfig: config})
		one.id = answer.GetContainerId()
		if status.Code(err) == codes.AlreadyExists {
			wanted.Metadata.Attempt++
		}
		if a.isOver(sandbox) {
			return nil
		}
		return err
	})
	if err != nil || a.isOver(sandbox) {
		return nil, err
	}
	err = a.retry("start", func(ctx context.Context) error {
		_, err := a.b.Runtime.StartContainer(ctx, &runtimeapi.StartContainerRequest{ContainerId: one.id})
		if err == nil {
			return nil
		}
		now, statusErr := a.statusOf(ctx, one.id)
		if statusErr == nil && now.GetState() != runtimeapi.ContainerState_CONTAINER_CREATED || a.isOver(sandbox) {
			return nil
		}
		return errors.Join(err, statusErr)
	})
	return one, err
}

func (a *crashActor) statusOf(ctx context.Context, id string) (*runtimeapi.ContainerStatus, error) {
	answer, err := a.b.Runtime.ContainerStatus(ctx, &runtimeapi.ContainerStatusRequest{ContainerId: id})
	return answer.GetStatus(), err
}

// isOver reports whether an outage of the engine has ended a sandbox.
func (a *crashActor) isOver(sandbox string) bool {
	ctx, stop := context.WithTimeout(context.Background(), require.Patience(10*time.Second))
	defer stop()
	answer, err := a.b.Runtime.PodSandboxStatus(ctx, &runtimeapi.PodSandboxStatusRequest{PodSandboxId: sandbox})
	return err == nil && answer.GetStatus().GetState() == runtimeapi.PodSandboxState_SANDBOX_NOTREADY && a.isAway(engineDies, time.Time{})
}

// awaitExit waits until a container is reported as exited.
func (a *crashActor) awaitExit(one *crashContainer) (now *runtimeapi.ContainerStatus, err error) {
	for deadline := time.Now().Add(require.Patience(90 * time.Second)); time.Now().Before(deadline) && !a.hasFailed(); time.Sleep(50 * time.Millisecond) {
		ctx, stop := context.WithTimeout(context.Background(), require.Patience(10*time.Second))
		now, err = a.statusOf(ctx, one.id)
		stop()
		if err != nil && !a.isAway(berthDies, time.Now().Add(-10*time.Second)) {
			return nil, fmt.Errorf("status: %w", err)
		}
		if err == nil && now.GetState() == runtimeapi.ContainerState_CONTAINER_EXITED {
			return now, nil
		}
	}
	return nil, fmt.Errorf("container %.12s does not end: it is %v, %w", one.id, now.GetState(), err)
}

// life is one pod: it prints numbered lines and ends with a known code, by itself or by a stop.
func (a *crashActor) life(pod string) error {
	config := a.b.Sandbox(pod)
	sandbox, err := a.run(config)
	if err != nil {
		return err
	}
	lines, code, stopped := 50+a.rng.IntN(500), 1+a.rng.IntN(125), a.rng.IntN(3) == 0
	script := fmt.Sprintf(`trap 'exit 77' TERM; i=0; while [ $i -lt %d ]; do echo "$i"; i=$((i+1)); [ $((i%%10)) != 0 ] || sleep 0.03; done; `, lines)
	if stopped {
		code = 77
		script += "while :; do sleep 0.05; done"
	} else {
		script += fmt.Sprintf("exit %d", code)
	}
	one, err := a.launch(sandbox, config, "c", script)
	if err != nil {
		return err
	}
	if one == nil {
		return a.remove(sandbox, config)
	}
	if stopped {
		// It has its handler once all lines are there; an outage may have ended it before.
		for now := (*runtimeapi.ContainerStatus)(nil); !a.hasFailed() && now.GetState() != runtimeapi.ContainerState_CONTAINER_EXITED; time.Sleep(20 * time.Millisecond) {
			if text, _ := os.ReadFile(one.log); strings.Contains(string(text), fmt.Sprintf(" %d\n", lines-1)) {
				break
			}
			now, _ = a.statusOf(a.b.Ctx(), one.id)
			if time.Since(one.born) > require.Patience(90*time.Second) {
				return fmt.Errorf("container %.12s has not written its lines: %v", one.id, now)
			}
		}
		if err := a.retry("stop", func(ctx context.Context) error {
			_, err := a.b.Runtime.StopContainer(ctx, &runtimeapi.StopContainerRequest{ContainerId: one.id, Timeout: 20})
			return err
		}); err != nil {
			return err
		}
	}
	now, err := a.awaitExit(one)
	if err != nil {
		return err
	}
	if err := a.check(one, now, code, lines); err != nil {
		return fmt.Errorf("container %.12s: %w", one.id, err)
	}
	return a.remove(sandbox, config)
}

// check compares an exit and a log with what was expected.
func (a *crashActor) check(one *crashContainer, now *runtimeapi.ContainerStatus, code, lines int) error {
	disturbed := a.isAway(engineDies, one.born)
	switch got := int(now.GetExitCode()); {
	case got == code && !disturbed:
		a.add("exact")
	case got == code:
		a.add("exact in an outage")
	case !disturbed:
		return fmt.Errorf("code %d (%s: %s), want %d", got, now.GetReason(), now.GetMessage(), code)
	case got == engine.CodeUnknown && now.GetReason() == engine.ReasonUnknown && now.GetMessage() != "",
		got == engine.CodeStartError && now.GetReason() == engine.ReasonStartError && now.GetMessage() != "":
		a.add("unknown")
	case !a.live && (got == 137 || got == 143 || got == 77), got == 137 && now.GetReason() == "Error":
		a.add("ended") // by the engine, when it started again, or with its shim
	default:
		return fmt.Errorf("code %d (%s: %s) in an outage, want %d", got, now.GetReason(), now.GetMessage(), code)
	}
	whole, err := checkNumbers(one.log, lines, disturbed)
	switch {
	case err != nil:
		return err
	case !whole && !disturbed:
		return fmt.Errorf("its log lacks lines of %d", lines)
	case !whole:
		a.add("logs with gaps")
	}
	return nil
}

// checkNumbers reports whether a log has the numbers below lines. Numbers that come twice or in
// another order are an error. An engine that is killed while it starts a container may lose the
// start, and run the program again: its lines then begin again, with later times.
func checkNumbers(path string, lines int, mayRunAgain bool) (whole bool, err error) {
	f, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	defer f.Close()
	last, found := -1, 0
	var at time.Time
	for reader := crilog.NewReader(f); ; found++ {
		line, err := reader.Next()
		if errors.Is(err, io.EOF) {
			return found == lines && last == lines-1, nil
		}
		if err != nil {
			return false, err
		}
		n, err := strconv.Atoi(string(line.Text))
		again := mayRunAgain && n == 0 && line.Time.After(at)
		if err != nil || n <= last && !again {
			return false, fmt.Errorf("its log has %q of %v after %d of %v", line.Text, line.Time, last, at)
		}
		last, at = n, line.Time
	}
}

// execs runs commands in a pod of its own, until an outage ends it.
func (a *crashActor) execs(pod string) error {
	config := a.b.Sandbox(pod)
	sandbox, err := a.run(config)
	if err != nil {
		return err
	}
	one, err := a.launch(sandbox, config, "c", "while :; do sleep 1; done")
	if err != nil {
		return err
	}
	for i := 0; one != nil && i < 200; i++ {
		begun, code := time.Now(), i%100
		ctx, stop := context.WithTimeout(context.Background(), require.Patience(40*time.Second))
		answer, err := a.b.Runtime.ExecSync(ctx, &runtimeapi.ExecSyncRequest{
			ContainerId: one.id, Cmd: []string{"sh", "-c", fmt.Sprintf("echo out %d; echo err %d >&2; exit %d", i, i, code)}, Timeout: 30,
		})
		stop()
		disturbed := a.isAway(engineDies|berthDies, begun.Add(-5*time.Second))
		switch {
		case err == nil && int(answer.GetExitCode()) == code && string(answer.GetStdout()) == fmt.Sprintf("out %d\n", i) && string(answer.GetStderr()) == fmt.Sprintf("err %d\n", i):
			a.add("commands")
		case !disturbed:
			return fmt.Errorf("exec %d: %v, %w", i, answer, err)
		case err == nil && int(answer.GetExitCode()) != code:
			return fmt.Errorf("exec %d in an outage has an invented code: %v", i, answer)
		}
		select {
		case <-a.stop:
			return a.remove(sandbox, config)
		case <-a.failed:
			return nil
		case <-time.After(20 * time.Millisecond): // a probe is not busier
		}
		now, err := a.statusOf(a.b.Ctx(), one.id)
		if err == nil && now.GetState() == runtimeapi.ContainerState_CONTAINER_EXITED {
			if !a.isAway(engineDies, one.born) {
				return fmt.Errorf("container %.12s has ended: %v", one.id, now)
			}
			break
		}
	}
	return a.remove(sandbox, config)
}

// badStart is a pod with a program that does not exist, which is created and removed.
func (a *crashActor) badStart(pod string) error {
	config := a.b.Sandbox(pod)
	sandbox, err := a.run(config)
	if err != nil {
		return err
	}
	wanted := a.b.Container("c", "")
	wanted.Command = []string{"/no/such/program"}
	var id string
	if err := a.retry("create", func(ctx context.Context) error {
		answer, err := a.b.Runtime.CreateContainer(ctx, &runtimeapi.CreateContainerRequest{PodSandboxId: sandbox, Config: wanted, SandboxConfig: config})
		id = answer.GetContainerId()
		if status.Code(err) == codes.AlreadyExists {
			wanted.Metadata.Attempt++
		}
		if a.isOver(sandbox) {
			return nil
		}
		return err
	}); err != nil || id == "" {
		return errors.Join(err, a.remove(sandbox, config))
	}
	ctx, stop := context.WithTimeout(context.Background(), require.Patience(40*time.Second))
	defer stop()
	born := time.Now()
	if _, err := a.b.Runtime.StartContainer(ctx, &runtimeapi.StartContainerRequest{ContainerId: id}); err == nil {
		return errors.New("a program that does not exist has started")
	}
	now, err := a.statusOf(a.b.Ctx(), id)
	if err == nil && !a.isAway(engineDies|berthDies, born) && (now.GetState() != runtimeapi.ContainerState_CONTAINER_EXITED || now.GetReason() != engine.ReasonStartError) {
		return fmt.Errorf("a program that does not exist: %v", now)
	}
	select {
	case <-time.After(time.Duration(a.rng.Int64N(int64(500 * time.Millisecond)))):
	case <-a.failed:
	}
	return a.remove(sandbox, config)
}
