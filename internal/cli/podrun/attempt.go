package podrun

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berthrun/berth/internal/errs"
)

// attempt is one container of a name; a restart makes the next.
type attempt struct {
	spec *corev1.Container
	n    uint32
	id   string
	// before is the attempt before it, which is kept for `berth pod logs -p`.
	before *attempt
	// ended is closed once the exit is known; status is set before.
	ended  chan struct{}
	once   sync.Once
	status *runtimeapi.ContainerStatus
	// message is its termination message, set with status.
	message string
	// began is when it was started.
	began time.Time
	// failedProbe says that a failed probe or hook ended it.
	failedProbe atomic.Bool
}

func (a *attempt) outcome() string {
	s := a.status
	text := fmt.Sprintf("exit code %d", s.GetExitCode())
	switch s.GetReason() {
	case "", "Completed", "Error":
	default:
		text += ", " + s.GetReason()
	}
	for _, message := range []string{s.GetMessage(), a.message} {
		if message != "" {
			text += ": " + message
		}
	}
	return text
}

func (a *attempt) hasEnded() bool {
	select {
	case <-a.ended:
		return true
	default:
		return false
	}
}

// start creates and starts an attempt, and shows what it writes. On error the attempt does not run.
func (k *podRun) start(ctx context.Context, c *corev1.Container, n uint32) (*attempt, error) {
	made, err := k.Bundle.Container(c, n, &k.facts)
	if err != nil {
		return nil, err
	}
	a := &attempt{spec: c, n: n, ended: make(chan struct{})}
	if err := k.prepare(made); err != nil {
		return nil, errors.Join(err, k.unprepare(a))
	}
	config := made.Config
	k.usePulled(config)
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	err = k.create(ctx, func(ctx context.Context) error {
		resp, err := k.Conn.Runtime.CreateContainer(ctx, &runtimeapi.CreateContainerRequest{
			PodSandboxId: k.sandboxID, Config: config, SandboxConfig: k.Bundle.Sandbox(&k.facts),
		})
		a.id = resp.GetContainerId()
		return err
	})
	if err != nil {
		return nil, errors.Join(err, k.unprepare(a))
	}
	k.replace(a)
	err = k.create(ctx, func(ctx context.Context) error {
		_, err := k.Conn.Runtime.StartContainer(ctx, &runtimeapi.StartContainerRequest{ContainerId: a.id})
		if errors.Is(err, errs.State) && k.hasStarted(ctx, a) {
			return nil // by the call that was cut off
		}
		return err
	})
	if err != nil {
		return nil, errors.Join(fmt.Errorf("cannot start container %s: %w", c.Name, err), k.discard(ctx, a))
	}
	a.began = time.Now()
	k.show(ctx, a, filepath.Join(k.facts.LogDir, config.LogPath))
	if a.before == nil {
		return a, nil
	}
	oldest := a.before.before
	a.before.before = nil
	if err := k.removeAttempt(ctx, oldest); err != nil {
		k.say("%s: its attempt %d is left until the pod is removed: %v", c.Name, oldest.n, err)
	}
	return a, nil
}

// discard removes an attempt that did not start, since the next try makes another. The first one of a name ends the
// pod, and stays for people to look at.
func (k *podRun) discard(ctx context.Context, a *attempt) error {
	if a.before == nil {
		return nil
	}
	if err := k.removeAttempt(ctx, a); err != nil {
		return err
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.attempts[a.spec.Name] = a.before
	return nil
}

func (k *podRun) hasStarted(ctx context.Context, a *attempt) bool {
	resp, err := k.Conn.Runtime.ContainerStatus(ctx, &runtimeapi.ContainerStatusRequest{ContainerId: a.id})
	return err == nil && resp.Status.GetStartedAt() != 0
}

// replace makes a the latest attempt of its name.
func (k *podRun) replace(a *attempt) {
	k.mu.Lock()
	defer k.mu.Unlock()
	a.before = k.attempts[a.spec.Name]
	k.attempts[a.spec.Name] = a
}

func (k *podRun) latest(name string) *attempt {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.attempts[name]
}

// removeAttempt removes an ended attempt; its log file stays until the pod goes.
func (k *podRun) removeAttempt(ctx context.Context, a *attempt) error {
	if a == nil {
		return nil
	}
	err := k.create(ctx, func(ctx context.Context) error {
		_, err := k.Conn.Runtime.RemoveContainer(ctx, &runtimeapi.RemoveContainerRequest{ContainerId: a.id})
		return err
	})
	if err != nil {
		return err
	}
	return k.unprepare(a)
}

// await waits until the attempt has ended, and returns an error when ctx ends first.
func (k *podRun) await(ctx context.Context, a *attempt) error {
	for {
		status, err := k.containerStatus(ctx, a)
		if err != nil {
			return err
		}
		if status.GetState() == runtimeapi.ContainerState_CONTAINER_EXITED {
			a.end(status, k.message(a, status))
			return nil
		}
		if err := sleep(ctx, k.Timings.Poll); err != nil {
			return err
		}
	}
}

// containerStatus asks for the attempt's status. A container that another client has
// removed has ended with an unknown exit code.
func (k *podRun) containerStatus(ctx context.Context, a *attempt) (status *runtimeapi.ContainerStatus, err error) {
	err = k.retryUnavailable(ctx, func(ctx context.Context) error {
		resp, err := k.Conn.Runtime.ContainerStatus(ctx, &runtimeapi.ContainerStatusRequest{ContainerId: a.id})
		status = resp.GetStatus()
		return err
	})
	if errors.Is(err, errs.NotFound) {
		return &runtimeapi.ContainerStatus{
			State: runtimeapi.ContainerState_CONTAINER_EXITED, ExitCode: 255, Reason: "Removed",
		}, nil
	}
	return status, err
}

func (a *attempt) end(status *runtimeapi.ContainerStatus, message string) {
	a.once.Do(func() {
		a.status, a.message = status, message
		close(a.ended)
	})
}

// checkSandbox reports whether there is still a sandbox to start containers in.
func (k *podRun) checkSandbox(ctx context.Context) error {
	var state runtimeapi.PodSandboxState
	err := k.retryUnavailable(ctx, func(ctx context.Context) error {
		resp, err := k.Conn.Runtime.PodSandboxStatus(ctx, &runtimeapi.PodSandboxStatusRequest{PodSandboxId: k.sandboxID})
		state = resp.GetStatus().GetState()
		return err
	})
	if errors.Is(err, errs.NotFound) || (err == nil && state != runtimeapi.PodSandboxState_SANDBOX_READY) {
		return errStopped
	}
	return err
}
