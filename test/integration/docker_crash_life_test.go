//go:build integration && e2e

package integration

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/berthrun/berth/internal/crilog"
	"github.com/berthrun/berth/internal/engine"
	"github.com/berthrun/berth/internal/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// crashActor is one worker of a kubelet.
type crashActor struct {
	*dockerCrash
	name string
	rng  *rand.Rand
}

func (c *dockerCrash) act(number int, name string, life func(*crashActor, string) error) {
	a := &crashActor{dockerCrash: c, name: name, rng: rand.New(rand.NewPCG(c.seed, uint64(number)+1))}
	c.succeeded(name)
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

// succeeded counts a call of an actor.
func (c *dockerCrash) succeeded(actor string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.calls[actor]++
}

// retry repeats a call that an outage has disturbed, as a kubelet does.
func (a *crashActor) retry(what string, call func(ctx context.Context) error) error {
	var last error
	for deadline := time.Now().Add(require.Patience(5 * time.Minute)); time.Now().Before(deadline) && !a.hasFailed(); time.Sleep(20 * time.Millisecond) {
		begun := time.Now()
		ctx, stop := context.WithTimeout(context.Background(), require.Patience(40*time.Second))
		last = call(ctx)
		stop()
		if last == nil {
			a.succeeded(a.name)
			return nil
		}
		// An engine that was killed while it started a command reports the end of the container late.
		late := status.Code(last) == codes.Unavailable && a.isAway(engineDies, begun.Add(-2*time.Minute))
		if !late && !a.isAway(engineDies|berthDies, begun.Add(-10*time.Second)) {
			return fmt.Errorf("%s: %w", what, last)
		}
	}
	if a.hasFailed() {
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
	if err == nil && a.isOver(sandbox) {
		ctx, stop := context.WithTimeout(context.Background(), require.Patience(10*time.Second))
		defer stop()
		if now, err := a.statusOf(ctx, one.id); err == nil && now.GetState() == runtimeapi.ContainerState_CONTAINER_CREATED {
			return nil, nil // it will never start
		}
	}
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
// start, and run the program again: its lines then begin again once, with later times.
func checkNumbers(path string, lines int, isDisturbed bool) (whole bool, err error) {
	f, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	defer f.Close()
	last, found, mayRunAgain := -1, 0, isDisturbed
	var at time.Time
	for reader := crilog.NewReader(f); ; found++ {
		line, err := reader.Next()
		if errors.Is(err, io.EOF) {
			return found == lines && last == lines-1, nil
		}
		if err != nil {
			return false, err
		}
		if isDisturbed && strings.HasPrefix(string(line.Text), shellInit) {
			continue
		}
		n, err := strconv.Atoi(string(line.Text))
		if err == nil && n <= last && mayRunAgain && line.Time.After(at) {
			// Its first lines may be among those that the engine had not stored.
			mayRunAgain, last = false, n-1
		}
		if err != nil || n <= last {
			return false, fmt.Errorf("its log has %q of %v after %d of %v", line.Text, line.Time, last, at)
		}
		last, at = n, line.Time
	}
}

// shellInit begins the complaint of a shell whose directory is gone: an engine that starts again may
// unmount the root of a container whose start was under way.
const shellInit = "shell-init: "

func withoutShellInit(text string) string {
	if !strings.HasPrefix(text, shellInit) {
		return text
	}
	_, rest, _ := strings.Cut(text, "\n")
	return rest
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
		stderr := string(answer.GetStderr())
		if a.isAway(engineDies, one.born) {
			stderr = withoutShellInit(stderr)
		}
		switch {
		case err == nil && int(answer.GetExitCode()) == code && string(answer.GetStdout()) == fmt.Sprintf("out %d\n", i) && stderr == fmt.Sprintf("err %d\n", i):
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
