package crash

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/berthrun/berth/test/harness"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// exitCounts are the known exits that happened while something was dead, and while all lived.
type exitCounts struct{ dead, alive atomic.Int64 }

// doneCounts are what the actors completed.
type doneCounts struct{ pods, lines, execs, cutExecs atomic.Int64 }

func (d *doneCounts) String() string {
	return fmt.Sprintf("%d pods removed, %d lines read, %d execs answered and %d cut off",
		d.pods.Load(), d.lines.Load(), d.execs.Load(), d.cutExecs.Load())
}

// actor is one kubelet's worker: it runs pod after pod.
type actor struct {
	*test
	name string
	rng  *rand.Rand
	pods int
}

// begin starts the load.
func (c *test) begin() {
	for i := range c.opts.Actors {
		c.act(i, fmt.Sprintf("pod%d", i), (*actor).life)
	}
	for i, special := range []struct {
		name string
		life func(*actor, string) error
		part string // that it needs, "" for none
	}{{"exec", (*actor).execs, ""}, {"rotate", (*actor).rotations, ""}, {"badstart", (*actor).badStart, ""}, {"cursed", (*actor).uncreatable, harness.EarlyFaults}} {
		if c.b.Has(special.part) {
			c.act(1000+i, special.name, special.life)
		}
	}
}

// act runs one pod's life after the other until the test ends.
func (c *test) act(seed int, name string, life func(*actor, string) error) {
	a := &actor{test: c, name: name, rng: rand.New(rand.NewPCG(c.opts.Seed, uint64(seed)+2))}
	c.actors.Go(func() {
		for ; !c.ended(); a.pods++ {
			pod := fmt.Sprintf("%s-%d", a.name, a.pods)
			if err := life(a, pod); err != nil {
				c.errorf("pod %s: %v", pod, err)
				return
			}
		}
	})
}

// life is one pod: it starts, runs, exits in one of the known ways, and is checked and removed. A
// goroutine of its own waits for a pod whose exit waits for the next kill.
func (a *actor) life(pod string) error {
	config := a.b.Sandbox(pod)
	sandbox, err := a.run(config)
	if err != nil {
		return err
	}
	var all []*container
	for i := range 1 + a.rng.IntN(2) {
		one := a.newContainer(pod, i, sandbox)
		if err := a.launch(one, config); err != nil {
			return fmt.Errorf("container %d: %w", i, err)
		}
		one.logs = follow(filepath.Join(config.LogDirectory, one.config.LogPath))
		if err := a.identify(one); err != nil {
			return err
		}
		all = append(all, one)
	}
	for _, one := range all {
		runs, err := a.awaitFirstLine(one)
		if err != nil {
			return err
		}
		if runs && !one.tty {
			a.expect(one)
		}
	}
	a.sleep(time.Duration(a.rng.Int64N(int64(600 * time.Millisecond))))
	end := a.randomEnd()
	a.actors.Go(func() {
		for _, one := range all {
			if err := end(one); err != nil {
				a.errorf("pod %s, container %.12s (%s): %v", pod, one.id, one.name, err)
				return
			}
		}
		if err := a.remove(sandbox, config); err != nil {
			a.errorf("pod %s: %v", pod, err)
		}
	})
	return nil
}

// awaitFirstLine returns when the container's program has its signal handlers. This may never
// happen when all three died: the start may have been under way, or the terminal was hung up,
// perhaps before the program ran.
func (a *actor) awaitFirstLine(one *container) (runs bool, err error) {
	for deadline := time.Now().Add(awayTimeout()); one.logs.seen() == 0; time.Sleep(followEvery) {
		if a.lostAll(one.born) {
			if one.tty {
				return false, nil
			}
			now, _, err := a.status(one.id)
			if err != nil || now.State == runtimeapi.ContainerState_CONTAINER_EXITED {
				return false, err
			}
		}
		if time.Now().After(deadline) {
			return false, fmt.Errorf("container %.12s (%s) has not written a line in %s", one.id, one.name, awayTimeout())
		}
	}
	return true, nil
}

func (a *actor) run(config *runtimeapi.PodSandboxConfig) (id string, err error) {
	err = a.retryWhileAway(func(ctx context.Context) error {
		answer, err := a.runtime.RunPodSandbox(ctx, &runtimeapi.RunPodSandboxRequest{Config: config})
		id = answer.GetPodSandboxId()
		return err
	})
	if err != nil {
		return "", fmt.Errorf("run sandbox: %w", err)
	}
	return id, nil
}

func (a *actor) remove(sandbox string, config *runtimeapi.PodSandboxConfig) error {
	if err := a.retryWhileAway(func(ctx context.Context) error {
		_, err := a.runtime.StopPodSandbox(ctx, &runtimeapi.StopPodSandboxRequest{PodSandboxId: sandbox})
		return err
	}); err != nil {
		return fmt.Errorf("stop sandbox: %w", err)
	}
	if err := a.retryWhileAway(func(ctx context.Context) error {
		_, err := a.runtime.RemovePodSandbox(ctx, &runtimeapi.RemovePodSandboxRequest{PodSandboxId: sandbox})
		return err
	}); err != nil {
		return fmt.Errorf("remove sandbox: %w", err)
	}
	a.done.pods.Add(1)
	return os.RemoveAll(config.LogDirectory)
}

// trapCode is a writer's exit code after its stop signal.
const trapCode = 77

func (a *actor) newContainer(pod string, i int, sandbox string) *container {
	one := &container{
		pod: pod, name: fmt.Sprintf("%s-c%d", pod, i), sandbox: sandbox, triggered: make(chan struct{}),
		code: 1 + a.rng.IntN(125), tty: a.rng.IntN(4) == 0,
	}
	tty, trap := "", strconv.Itoa(trapCode)
	if one.tty {
		tty = "tty"
	}
	burst := []int{3, 20, 100}[a.rng.IntN(3)]
	config := a.b.Container("c"+strconv.Itoa(i), "")
	config.Command = []string{"/bin/sh", "-c", script(), "writer", one.name, strconv.Itoa(burst), tty, trap}
	config.Tty = one.tty
	config.Mounts = []*runtimeapi.Mount{
		{ContainerPath: "/triggers", HostPath: a.triggers, Readonly: true}, {ContainerPath: "/settled", HostPath: a.settled},
	}
	one.config = config
	return one
}

// randomEnd selects at random how the containers of a pod exit.
func (a *actor) randomEnd() func(*container) error {
	switch a.rng.IntN(6) {
	case 0:
		grace := int64(10 + a.rng.IntN(10))
		return func(one *container) error { return a.endByStop(one, grace, trapCode) }
	case 1:
		return func(one *container) error { return a.endByStop(one, 0, 128+9) }
	default:
		return a.endByTrigger
	}
}

// endByTrigger makes a container exit with its code, now or at the next kill, half of them each.
func (a *actor) endByTrigger(one *container) error {
	held, err := a.holdTrigger(one)
	if err != nil {
		return err
	}
	if held {
		<-one.triggered
	} else {
		if err := a.trigger(one); err != nil {
			return err
		}
		a.exits.alive.Add(1)
	}
	now, err := a.awaitExit(one)
	if err != nil {
		return err
	}
	return a.check(one, now, one.code, true)
}

// holdTrigger makes a container quiet and leaves its trigger to the next round, unless enough
// containers wait for it.
func (a *actor) holdTrigger(one *container) (bool, error) {
	const most = 16
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.ended() || len(a.held) >= most || a.exits.dead.Load()+int64(len(a.held)) > a.exits.alive.Load() {
		return false, nil
	}
	one.quiet = true
	a.held = append(a.held, one)
	return true, os.WriteFile(filepath.Join(a.triggers, one.name+".quiet"), nil, 0o644)
}

func (a *actor) endByStop(one *container, grace int64, want int) error {
	a.expectNoMore(one)
	if err := a.retryWhileAway(func(ctx context.Context) error {
		_, err := a.runtime.StopContainer(ctx, &runtimeapi.StopContainerRequest{ContainerId: one.id, Timeout: grace})
		return err
	}); err != nil {
		return fmt.Errorf("stop: %w", err)
	}
	now, err := a.awaitExit(one)
	if err != nil {
		return err
	}
	return a.check(one, now, want, want == trapCode)
}

// resident is a pod that runs until the test ends.
func (a *actor) resident(pod string) (*container, func() error, error) {
	config := a.b.Sandbox(pod)
	sandbox, err := a.run(config)
	if err != nil {
		return nil, nil, err
	}
	one := a.newContainer(pod, 0, sandbox)
	one.tty, one.config.Tty, one.config.Command[6] = false, false, ""
	if err := a.launch(one, config); err != nil {
		return nil, nil, err
	}
	one.logs = follow(filepath.Join(config.LogDirectory, one.config.LogPath))
	// Before its first line it has not created what commands wait on, and the follower may not have
	// the log that a rotation renames.
	runs, err := a.awaitFirstLine(one)
	if err == nil && !runs {
		if err = a.remove(sandbox, config); err == nil {
			return a.resident(pod) // its start was under way when all three died
		}
	}
	if err != nil {
		return nil, nil, err
	}
	a.expect(one)
	return one, func() error {
		if err := a.trigger(one); err != nil {
			return err
		}
		now, err := a.awaitExit(one)
		if err != nil {
			return err
		}
		if err := a.check(one, now, one.code, true); err != nil {
			return err
		}
		return a.remove(sandbox, config)
	}, nil
}

// badStart is a pod with programs that cannot be executed: a missing file, a file that is not a
// program, and an init that dies before its start.
func (a *actor) badStart(pod string) error {
	config := a.b.Sandbox(pod)
	sandbox, err := a.run(config)
	if err != nil {
		return err
	}
	absent := a.newContainer(pod, 0, sandbox)
	absent.config.Command, absent.config.LogPath = []string{"/no/such/program"}, ""
	noise := a.newContainer(pod, 1, sandbox)
	noise.config.Command, noise.config.LogPath = []string{"/triggers/noise"}, ""
	if err := os.WriteFile(filepath.Join(a.triggers, "noise"), []byte{1, 2, 3, 4}, 0o755); err != nil {
		return err
	}
	all := []*container{absent, noise}
	if a.b.Has(harness.ContainerProcesses) {
		killed := a.newContainer(pod, 2, sandbox)
		killed.afterCreate = func() error { return killInit(killed.id) }
		all = append(all, killed)
	}
	for _, one := range all {
		if err := a.launch(one, config); err != nil && status.Code(err) != codes.FailedPrecondition && status.Code(err) != codes.InvalidArgument {
			return fmt.Errorf("%s: %w", one.name, err)
		}
		now, err := a.awaitExit(one)
		if err != nil {
			return err
		}
		// The init of runc 1.1 ends with 1. A shim that reaps it, and a keeper that reaps it for a dead supervisor,
		// do not see that it has executed nothing.
		if now.ExitCode <= 125 && !(harness.Handled() && now.ExitCode == 1) {
			return fmt.Errorf("%s never ran and ended with %d (%s: %s)", one.name, now.ExitCode, now.Reason, now.Message)
		}
	}
	a.sleep(time.Duration(a.rng.Int64N(int64(100 * time.Millisecond))))
	return a.remove(sandbox, config)
}

// uncreatable is a pod whose container can neither be created nor, for a while, removed. A
// directory cannot be mounted on a file, and files can be created in the directory of its log, but
// not removed. The next attempt removes what the previous one left.
func (a *actor) uncreatable(pod string) error {
	config := a.b.Sandbox(pod)
	sandbox, err := a.run(config)
	if err != nil {
		return err
	}
	one := a.newContainer(pod, 0, sandbox)
	one.tty, one.config.Tty, one.config.Command[6] = false, false, ""
	dir := filepath.Dir(filepath.Join(config.LogDirectory, one.config.LogPath))
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	if err := appendOnly(dir, true); err != nil {
		return err
	}
	lacking := a.b.Container(one.config.Metadata.Name, "")
	lacking.Mounts, lacking.LogPath = []*runtimeapi.Mount{{HostPath: a.triggers, ContainerPath: "/bin/busybox"}}, one.config.LogPath
	for range 3 {
		if err := a.retryWhileAway(func(ctx context.Context) error {
			_, err := a.runtime.CreateContainer(ctx, &runtimeapi.CreateContainerRequest{PodSandboxId: sandbox, Config: lacking, SandboxConfig: config})
			return err
		}); err == nil {
			return errors.Join(errors.New("a container was made with a directory on a file"), appendOnly(dir, false))
		}
		a.sleep(time.Duration(a.rng.Int64N(int64(50 * time.Millisecond))))
	}
	if err := appendOnly(dir, false); err != nil {
		return err
	}
	if err := a.launch(one, config); err != nil {
		return err
	}
	one.logs = follow(filepath.Join(config.LogDirectory, one.config.LogPath))
	if runs, err := a.awaitFirstLine(one); err != nil || !runs {
		return errors.Join(err, a.remove(sandbox, config))
	}
	if err := a.trigger(one); err != nil {
		return err
	}
	now, err := a.awaitExit(one)
	if err != nil {
		return err
	}
	if err := a.check(one, now, one.code, true); err != nil {
		return err
	}
	return a.remove(sandbox, config)
}

// appendOnly forbids removals in a directory, or allows them again.
func appendOnly(dir string, on bool) error {
	flag := "-a"
	if on {
		flag = "+a"
	}
	if out, err := exec.Command("chattr", flag, dir).CombinedOutput(); err != nil {
		return fmt.Errorf("chattr %s %s: %w: %s", flag, dir, err, out)
	}
	return nil
}
