package podrun

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/berthrun/berth/internal/cli/podyaml/podspec"
)

// errStopped says that another client has stopped the pod.
var errStopped = errors.New("something else stopped the pod")

// errDeadline says that activeDeadlineSeconds are over.
var errDeadline = errors.New("the pod was active for longer than spec.activeDeadlineSeconds")

// errBackoffLimit says that a Job has failed.
var errBackoffLimit = errors.New("its Job's backoffLimit allows no further restart")

// errRestartAll says that a rule requires all containers to start again.
var errRestartAll = errors.New("a restartPolicyRule restarts all containers")

// supervisePod supervises the pod until its containers are done. It starts the pod again
// from its init containers when a rule says so.
func (k *podRun) supervisePod(ctx context.Context) error {
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
		err := k.supervisePodOnce(ctx)
		if !errors.Is(err, errRestartAll) || ctx.Err() != nil {
			return err
		}
		if !k.restarts.take() {
			return fmt.Errorf("%w: %w", err, errBackoffLimit)
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

// supervisePodOnce runs the init containers in order, then supervises the containers until
// all are done. When it returns, what runs stays running.
func (k *podRun) supervisePodOnce(ctx context.Context) error {
	ctx, cancel := context.WithCancelCause(ctx)
	k.ready.expect(k.readinessCount())
	var kept sync.WaitGroup
	// The supervision of sidecars ends here, the sidecars end in stopAll.
	defer kept.Wait()
	defer cancel(nil)

	for i := range k.pod.Spec.InitContainers {
		c := &k.pod.Spec.InitContainers[i]
		if !podspec.IsSidecar(c) {
			if err := k.runInit(ctx, c); err != nil {
				return err
			}
			continue
		}
		started := make(chan struct{})
		kept.Go(func() {
			if err := k.superviseContainer(ctx, c, corev1.RestartPolicyAlways, nil, started); err != nil {
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
			err := k.superviseContainer(ctx, c, k.policy(c), begun, nil)
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
func (k *podRun) runInit(ctx context.Context, c *corev1.Container) error {
	policy := k.policy(c)
	if policy == corev1.RestartPolicyAlways {
		policy = corev1.RestartPolicyOnFailure
	}
	if err := k.superviseContainer(ctx, c, policy, nil, nil); err != nil {
		return err
	}
	if code := k.latest(c.Name).status.GetExitCode(); code != 0 {
		return fmt.Errorf("init container %s failed with exit code %d", c.Name, code)
	}
	return nil
}

// policy of a container goes before the pod's.
func (k *podRun) policy(c *corev1.Container) corev1.RestartPolicy {
	if c.RestartPolicy != nil {
		return corev1.RestartPolicy(*c.RestartPolicy)
	}
	return k.pod.Spec.RestartPolicy
}

// next is the number of a container's next attempt.
func (k *podRun) next(name string) uint32 {
	if a := k.latest(name); a != nil {
		return a.n + 1
	}
	return 0
}

// superviseContainer starts a container, again and again as policy says, until it is done for
// good. Of the channels that are not nil begun is closed when it was started and its
// postStart hook is done, started when it has started up, each for the first time.
func (k *podRun) superviseContainer(ctx context.Context, c *corev1.Container, policy corev1.RestartPolicy, begun, started chan struct{}) error {
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
			return err // the file prevents a start: do not retry
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
		if !k.restarts.take() {
			if err == nil {
				err = fmt.Errorf("%s ended (%s)", c.Name, a.outcome())
			}
			return fmt.Errorf("%w: %w", err, errBackoffLimit)
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
