package crash

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/sys/sysproc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// container is a requested container, and its expected state.
type container struct {
	pod, name string
	id        string
	sandbox   string
	config    *runtimeapi.ContainerConfig
	logs      *follower
	tty       bool
	born      time.Time
	code      int // that its trigger holds
	pid       int
	start     uint64
	triggered chan struct{}
	quiet     bool // it writes nothing any more
	// afterCreate, if set, is called between creation and start.
	afterCreate func() error
}

// away reports whether an error means that berth is down, or needs more time.
func away(err error) bool {
	switch status.Code(err) {
	case codes.Unavailable, codes.DeadlineExceeded:
		return true
	default:
		return false
	}
}

// trigger makes the container exit with its code.
func (c *test) trigger(one *container) error {
	c.expectNoMore(one)
	defer close(one.triggered)
	file := filepath.Join(c.triggers, one.name)
	if err := os.WriteFile(file+".new", []byte(strconv.Itoa(one.code)+"\n"), 0o644); err != nil {
		return err
	}
	return os.Rename(file+".new", file)
}

// expect records that the container must run from now on, expectNoMore that it may exit.
func (c *test) expect(one *container) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.alive[one.id] = one
}

func (c *test) expectNoMore(one *container) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.alive, one.id)
}

// hasSettled reports whether a container that should be quiet is, and its pipe is empty: all of its
// output has been read.
func (c *test) hasSettled(one *container) bool {
	text, err := os.ReadFile(filepath.Join(c.settled, one.name))
	if err != nil {
		return false
	}
	lines, err := strconv.Atoi(strings.TrimSpace(string(text)))
	return err == nil && one.logs.seen() >= lines
}

// hasEnded reports whether the container's init has exited. The test keeps no descriptor of the init
// meanwhile: with one, the kernel would keep the exit code for the test.
func (c *test) hasEnded(one *container) bool {
	if c.b.GVisor {
		return c.b.EndedInGVisor(one.id)
	}
	proc, err := sysproc.ReadProc(one.pid)
	return err != nil || proc.Start != one.start || proc.Zombie()
}

func (c *test) status(id string) (*runtimeapi.ContainerStatus, map[string]string, error) {
	var answer *runtimeapi.ContainerStatusResponse
	err := c.retryWhileAway(func(ctx context.Context) (err error) {
		answer, err = c.runtime.ContainerStatus(ctx, &runtimeapi.ContainerStatusRequest{ContainerId: id, Verbose: true})
		return err
	})
	if err != nil {
		return nil, nil, fmt.Errorf("status: %w", err)
	}
	return answer.Status, answer.Info, nil
}

// launch creates and starts the container in its sandbox. If the answer of a start was lost, it
// looks the container up, as a kubelet does.
func (c *test) launch(one *container, sandboxConfig *runtimeapi.PodSandboxConfig) error {
	begun := time.Now()
	err := c.retryWhileAway(func(ctx context.Context) error {
		answer, err := c.runtime.CreateContainer(ctx, &runtimeapi.CreateContainerRequest{
			PodSandboxId: one.sandbox, Config: one.config, SandboxConfig: sandboxConfig,
		})
		one.id = answer.GetContainerId()
		if status.Code(err) == codes.AlreadyExists && c.lostAll(begun) {
			// The container was created, the answer was lost, and it exited when all three died
			// (its terminal was hung up): a kubelet requests the next attempt.
			one.config.Metadata.Attempt++
			return status.Error(codes.Unavailable, err.Error())
		}
		return err
	})
	if err != nil {
		return fmt.Errorf("create: %w", err)
	}
	if one.afterCreate != nil {
		if err := one.afterCreate(); err != nil {
			return err
		}
	}
	one.born = time.Now()
	for {
		ctx, cancel := context.WithTimeout(context.Background(), awayTimeout()/2)
		_, err := c.runtime.StartContainer(ctx, &runtimeapi.StartContainerRequest{ContainerId: one.id})
		cancel()
		if err == nil {
			return nil
		}
		if status.Code(err) == codes.FailedPrecondition && c.lostAll(begun) {
			return nil // its terminal was hung up before: the status shows it
		}
		if !away(err) {
			return fmt.Errorf("start: %w", err)
		}
		if time.Since(one.born) > awayTimeout() {
			return fmt.Errorf("start: not in %s: %w", awayTimeout(), err)
		}
		now, _, err := c.status(one.id)
		if err != nil {
			return err
		}
		if now.State != runtimeapi.ContainerState_CONTAINER_CREATED {
			return nil
		}
	}
}

// killInit kills the processes in the container's cgroup, as the host's OOM killer would.
func killInit(id string) error {
	var pids []string
	err := filepath.WalkDir("/sys/fs/cgroup", func(path string, entry fs.DirEntry, err error) error {
		if err == nil && entry.IsDir() && strings.HasSuffix(strings.TrimSuffix(path, ".scope"), id) && len(pids) == 0 {
			var procs []byte
			procs, err = os.ReadFile(filepath.Join(path, "cgroup.procs"))
			pids = strings.Fields(string(procs))
		}
		if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENODEV) {
			err = nil // other processes start and exit, and their cgroups go
		}
		return err
	})
	for _, text := range pids {
		if pid, err := strconv.Atoi(text); err == nil && pid > 1 {
			_ = syscall.Kill(pid, syscall.SIGKILL) // it may have ended
		}
	}
	return err
}

// identify finds the container's process.
func (c *test) identify(one *container) error {
	_, info, err := c.status(one.id)
	if err != nil {
		return err
	}
	var shown struct{ Pid int }
	if err := json.Unmarshal([]byte(info["info"]), &shown); err != nil {
		return fmt.Errorf("verbose status: %w", err)
	}
	proc, err := sysproc.ReadProc(shown.Pid)
	if err != nil {
		return errs.IgnoreNotFound(err) // a terminal's, that was hung up
	}
	one.pid, one.start = shown.Pid, proc.Start
	return nil
}

// awaitExit waits until the container is reported as exited.
func (c *test) awaitExit(one *container) (*runtimeapi.ContainerStatus, error) {
	deadline := time.Now().Add(awayTimeout())
	for {
		now, _, err := c.status(one.id)
		if err != nil {
			return nil, err
		}
		if now.State == runtimeapi.ContainerState_CONTAINER_EXITED {
			return now, nil
		}
		if time.Now().After(deadline) {
			return nil, fmt.Errorf("it is %s for %s after its trigger", now.State, awayTimeout())
		}
		time.Sleep(20 * time.Millisecond) // a kubelet that polls
	}
}

// check compares an exited container with what was expected: its code, and all its lines. While all
// three were dead, only the kernel knew. Then an exit may be unknown and the last lines lost, and a
// terminal was hung up.
func (c *test) check(one *container, now *runtimeapi.ContainerStatus, want int, whole bool) error {
	gap := c.lostAll(one.born)
	const unknown, hangup = 255, 128 + 1
	switch {
	case int(now.ExitCode) == want:
	case gap && now.Reason == "StartError": // its start was under way, and no process was left to record its exit
	case gap && now.ExitCode == unknown && now.Reason == "Unknown":
	case gap && one.tty && now.ExitCode == hangup:
		want = hangup
	default:
		return fmt.Errorf("exit code %d (%s: %s), want %d", now.ExitCode, now.Reason, now.Message, want)
	}
	whole = whole && int(now.ExitCode) == want && want != hangup && !(gap && one.tty)
	if err := one.logs.finish(whole && !gap, one.tty); err != nil {
		return fmt.Errorf("log: %w", err)
	}
	c.done.lines.Add(int64(one.logs.seen()))
	return nil
}
