package podrun

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berthrun/berth/internal/cli/podyaml"
	"github.com/berthrun/berth/internal/criclient/stream"
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
	// message is its last words, set with status.
	message string
	// began is when it was started.
	began time.Time
	// failedProbe says that the keeper ended it for a failed probe.
	failedProbe atomic.Bool
}

// errStopped says that somebody else has stopped the pod.
var errStopped = errors.New("the pod was stopped by somebody else")

// errDeadline says that activeDeadlineSeconds are over.
var errDeadline = errors.New("the pod was active for longer than spec.activeDeadlineSeconds")

// errRestartAll says that a rule wants all containers to start again.
var errRestartAll = errors.New("a restartPolicyRule restarts all containers")

// keepAll keeps the pod until its containers are done, and starts it again from its
// init containers when a rule says so.
func (k *keeper) keepAll(ctx context.Context) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	if limit := k.pod.Spec.ActiveDeadlineSeconds; limit != nil {
		// Not a deadline of ctx: calls under way would end by it first, and their
		// error would hide the cause.
		over := time.AfterFunc(time.Duration(*limit)*time.Second, func() { cancel(errDeadline) })
		defer over.Stop()
	}
	go k.watchUsage(ctx, cancel)
	for {
		err := k.keepOnce(ctx)
		if !errors.Is(err, errRestartAll) || ctx.Err() != nil {
			return err
		}
		k.say("%v", err)
		if err := k.stopContainers(ctx); err != nil {
			return err
		}
		if err := sleep(ctx, k.Timings.BackoffMin); err != nil {
			return err
		}
	}
}

// keepOnce runs the init containers in order, then keeps the containers until all
// are done. It leaves running what runs when it returns.
func (k *keeper) keepOnce(ctx context.Context) error {
	ctx, cancel := context.WithCancelCause(ctx)
	k.ready.expect(k.counted())
	var kept sync.WaitGroup
	// The sidecars' keepers end here, the sidecars in stopAll.
	defer kept.Wait()
	defer cancel(nil)

	for i := range k.pod.Spec.InitContainers {
		c := &k.pod.Spec.InitContainers[i]
		if !podyaml.IsSidecar(c) {
			if err := k.runInit(ctx, c); err != nil {
				return err
			}
			continue
		}
		started := make(chan struct{})
		kept.Go(func() {
			if err := k.keep(ctx, c, corev1.RestartPolicyAlways, nil, started); err != nil {
				cancel(err)
			}
		})
		select {
		case <-started:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	var containers sync.WaitGroup
	for i := range k.pod.Spec.Containers {
		c := &k.pod.Spec.Containers[i]
		// One after the other, each with its postStart hook.
		begun := make(chan struct{})
		containers.Go(func() {
			err := k.keep(ctx, c, k.policy(c), begun, nil)
			if err != nil {
				cancel(err)
			}
		})
		select {
		case <-begun:
		case <-ctx.Done():
		}
		if ctx.Err() != nil {
			break
		}
	}
	containers.Wait()
	return context.Cause(ctx)
}

// runInit runs an init container until it succeeds.
func (k *keeper) runInit(ctx context.Context, c *corev1.Container) error {
	policy := k.policy(c)
	if policy == corev1.RestartPolicyAlways {
		policy = corev1.RestartPolicyOnFailure
	}
	if err := k.keep(ctx, c, policy, nil, nil); err != nil {
		return err
	}
	if code := k.latest(c.Name).status.GetExitCode(); code != 0 {
		return fmt.Errorf("init container %s failed with exit code %d", c.Name, code)
	}
	return nil
}

// policy of a container goes before the pod's.
func (k *keeper) policy(c *corev1.Container) corev1.RestartPolicy {
	if c.RestartPolicy != nil {
		return corev1.RestartPolicy(*c.RestartPolicy)
	}
	return k.pod.Spec.RestartPolicy
}

// next is the number of a container's next attempt.
func (k *keeper) next(name string) uint32 {
	if a := k.latest(name); a != nil {
		return a.n + 1
	}
	return 0
}

// keep starts a container, again and again as policy says, until it is done for
// good. Of the channels that are not nil begun is closed when it was started and its
// postStart hook is done, started when it has started up, each for the first time.
func (k *keeper) keep(ctx context.Context, c *corev1.Container, policy corev1.RestartPolicy, begun, started chan struct{}) error {
	pause := k.Timings.BackoffMin
	var begunOnce, startedOnce sync.Once
	first := k.next(c.Name)
	for n := first; ; n++ {
		began := time.Now()
		a, err := k.start(ctx, c, n)
		if err == nil {
			if err := k.postStart(ctx, a); err != nil {
				return err
			}
		}
		if begun != nil {
			begunOnce.Do(func() { close(begun) })
		}
		switch {
		case err == nil:
			probes, stopProbes := context.WithCancel(ctx)
			k.probe(probes, a, func() {
				if started != nil {
					startedOnce.Do(func() { close(started) })
				}
			})
			err = k.await(ctx, a)
			stopProbes()
			if err != nil {
				return err
			}
		case n == first || ctx.Err() != nil:
			return err // what cannot start at all is the file's fault: no use in trying
		default:
			k.say("%s: %v", c.Name, err)
		}
		if err == nil {
			again, err := restarts(policy, a)
			if err != nil {
				return err
			}
			if !again {
				if a.message != "" {
					k.say("%s ended (%s)", c.Name, a.outcome())
				}
				return nil
			}
		}
		if err := k.checkSandbox(ctx); err != nil {
			return err
		}
		if time.Since(began) > 2*k.Timings.BackoffMax {
			pause = k.Timings.BackoffMin
		}
		if err == nil {
			k.say("%s ended (%s), restart in %s", c.Name, a.outcome(), pause)
		}
		if err := sleep(ctx, pause); err != nil {
			return err
		}
		pause = min(2*pause, k.Timings.BackoffMax)
	}
}

// restarts reports whether an ended container starts again: the first rule that its exit
// code matches decides, then the policy. The error says that all start again.
func restarts(policy corev1.RestartPolicy, a *attempt) (bool, error) {
	code := a.status.GetExitCode()
	for _, rule := range a.spec.RestartPolicyRules {
		in := slices.Contains(rule.ExitCodes.Values, code)
		if in != (rule.ExitCodes.Operator == corev1.ContainerRestartRuleOnExitCodesOpIn) {
			continue
		}
		if rule.Action == corev1.ContainerRestartRuleActionRestartAllContainers {
			return false, fmt.Errorf("%s ended (%s): %w", a.spec.Name, a.outcome(), errRestartAll)
		}
		return true, nil
	}
	switch policy {
	case corev1.RestartPolicyAlways:
		return true, nil
	case corev1.RestartPolicyOnFailure:
		return code != 0 || a.failedProbe.Load(), nil
	}
	return false, nil
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

// start creates and starts an attempt, and shows what it writes.
func (k *keeper) start(ctx context.Context, c *corev1.Container, n uint32) (*attempt, error) {
	made, err := k.Bundle.Container(c, n, &k.facts)
	if err != nil {
		return nil, err
	}
	if err := k.prepare(made); err != nil {
		return nil, err
	}
	config := made.Config
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	showing := ctx
	ctx, stop := k.unhurried(ctx)
	defer stop()
	a := &attempt{spec: c, n: n, ended: make(chan struct{})}
	err = k.patiently(ctx, func() error {
		resp, err := k.Conn.Runtime.CreateContainer(ctx, &runtimeapi.CreateContainerRequest{
			PodSandboxId: k.sandboxID, Config: config, SandboxConfig: k.Bundle.Sandbox(&k.facts),
		})
		a.id = resp.GetContainerId()
		return err
	})
	if err != nil {
		return nil, err
	}
	k.replace(a)
	err = k.patiently(ctx, func() error {
		_, err := k.Conn.Runtime.StartContainer(ctx, &runtimeapi.StartContainerRequest{ContainerId: a.id})
		if errors.Is(err, errs.State) && k.hasStarted(ctx, a) {
			return nil // by the call that was cut off
		}
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("cannot start container %s: %w", c.Name, err)
	}
	a.began = time.Now()
	k.show(showing, a, filepath.Join(k.facts.LogDir, config.LogPath))
	if a.before == nil {
		return a, nil
	}
	oldest := a.before.before
	a.before.before = nil
	return a, k.forget(ctx, oldest)
}

func (k *keeper) hasStarted(ctx context.Context, a *attempt) bool {
	resp, err := k.Conn.Runtime.ContainerStatus(ctx, &runtimeapi.ContainerStatusRequest{ContainerId: a.id})
	return err == nil && resp.Status.GetStartedAt() != 0
}

// replace makes a the latest attempt of its name.
func (k *keeper) replace(a *attempt) {
	k.mu.Lock()
	defer k.mu.Unlock()
	a.before = k.attempts[a.spec.Name]
	k.attempts[a.spec.Name] = a
}

func (k *keeper) latest(name string) *attempt {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.attempts[name]
}

// forget removes an ended attempt; its log file stays until the pod goes.
func (k *keeper) forget(ctx context.Context, a *attempt) error {
	if a == nil {
		return nil
	}
	err := k.patiently(ctx, func() error {
		_, err := k.Conn.Runtime.RemoveContainer(ctx, &runtimeapi.RemoveContainerRequest{ContainerId: a.id})
		return err
	})
	if err != nil {
		return err
	}
	return k.unprepare(a)
}

// lastWords is how long an attachment may go on after its container has ended.
const lastWords = 2 * time.Second

// show prints the attempt's log, or joins the terminal to it, until it has ended. It
// outlives ctx, as a container that is asked to stop has things to say.
func (k *keeper) show(ctx context.Context, a *attempt, logPath string) {
	if k.Out == nil {
		return
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	k.followers.Go(func() {
		defer cancel()
		if k.Attach == a.spec.Name {
			err := k.attach(ctx, a)
			if !errors.Is(err, errs.State) {
				if err != nil {
					k.say("%s: %v", a.spec.Name, err)
				}
				return
			}
			// It ended before anybody could attach: its log has all of it.
		}
		k.out.follow(ctx, a, logPath)
	})
}

func (k *keeper) attach(ctx context.Context, a *attempt) error {
	resp, err := k.Conn.Runtime.Attach(ctx, &runtimeapi.AttachRequest{
		ContainerId: a.id, Tty: a.spec.TTY, Stdin: a.spec.Stdin, Stdout: true, Stderr: !a.spec.TTY,
	})
	if err != nil {
		return err
	}
	streams := stream.Streams{Out: k.Out, TTY: a.spec.TTY}
	if a.spec.Stdin {
		streams.In = k.In
	}
	if !a.spec.TTY {
		streams.Err = k.Err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() {
		select {
		case <-a.ended:
			if sleep(ctx, lastWords) == nil {
				cancel()
			}
		case <-ctx.Done():
		}
	}()
	_, err = stream.Run(ctx, resp.Url, streams)
	if ctx.Err() != nil {
		return nil
	}
	return err
}

// await waits until the attempt has ended, and returns an error when ctx ends first.
func (k *keeper) await(ctx context.Context, a *attempt) error {
	for {
		status, err := k.look(ctx, a)
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

// look asks for the attempt's status. A container that somebody has removed has
// ended, nobody knows how.
func (k *keeper) look(ctx context.Context, a *attempt) (status *runtimeapi.ContainerStatus, err error) {
	err = k.patiently(ctx, func() error {
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
func (k *keeper) checkSandbox(ctx context.Context) error {
	var state runtimeapi.PodSandboxState
	err := k.patiently(ctx, func() error {
		resp, err := k.Conn.Runtime.PodSandboxStatus(ctx, &runtimeapi.PodSandboxStatusRequest{PodSandboxId: k.sandboxID})
		state = resp.GetStatus().GetState()
		return err
	})
	if errors.Is(err, errs.NotFound) || (err == nil && state != runtimeapi.PodSandboxState_SANDBOX_READY) {
		return errStopped
	}
	return err
}
