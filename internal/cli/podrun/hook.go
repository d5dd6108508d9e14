package podrun

import (
	"context"
	"time"
)

// minGrace is what a container has left after its preStop hook took all of its grace.
const minGrace = 2 * time.Second

// postStart runs the hook of a container that has just started; it ends with the
// container. One that fails ends the container, as under a kubelet.
func (k *podRun) postStart(ctx context.Context, a *attempt) error {
	if a.spec.Lifecycle == nil || a.spec.Lifecycle.PostStart == nil {
		return nil
	}
	hook, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() {
		if k.await(hook, a) == nil {
			cancel()
		}
	}()
	err := k.handler(a).Hook(hook, a.spec.Lifecycle.PostStart)
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if err == nil || a.hasEnded() {
		return nil
	}
	k.say("%s: its postStart hook failed, the container is stopped: %v", a.spec.Name, err)
	a.failedProbe.Store(true)
	return k.terminate(ctx, a, k.grace(), nil)
}

// terminate runs the preStop hook, waits for the container's turn, and stops it with
// what is left of its grace.
func (k *podRun) terminate(ctx context.Context, a *attempt, grace time.Duration, waitTurn func(ctx context.Context)) error {
	deadline := time.Now().Add(grace)
	waiting, cancel := context.WithDeadline(ctx, deadline)
	defer cancel()
	if l := a.spec.Lifecycle; grace > 0 && l != nil && l.PreStop != nil {
		if err := k.handler(a).Hook(waiting, l.PreStop); err != nil && ctx.Err() == nil {
			k.say("%s: its preStop hook failed: %v", a.spec.Name, err)
		}
	}
	if waitTurn != nil {
		waitTurn(waiting)
	}
	if grace > 0 {
		grace = max(time.Until(deadline), min(grace, minGrace))
	}
	return k.askToStop(ctx, a, grace)
}

// grace is what the pod's containers have to end by themselves.
func (k *podRun) grace() time.Duration {
	if k.evicted.Load() {
		return time.Second
	}
	return time.Duration(*k.pod.Spec.TerminationGracePeriodSeconds) * time.Second
}
