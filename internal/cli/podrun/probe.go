package podrun

import (
	"context"
	"errors"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/berthrun/berth/internal/cli/podrun/handler"
	"github.com/berthrun/berth/internal/cli/podyaml/podspec"
)

// readiness counts containers that are not ready yet.
type readiness struct {
	mu       sync.Mutex
	missing  int
	reported bool
}

func (r *readiness) expect(n int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.missing = n
}

// change counts one ready container more or less, and reports whether all are ready for
// the first time.
func (r *readiness) change(ready bool) (allForTheFirstTime bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if ready {
		r.missing--
	} else {
		r.missing++
	}
	if r.missing == 0 && !r.reported {
		r.reported = true
		return true
	}
	return false
}

// probe watches an attempt until ctx ends: its start-up, then whether it lives and
// whether it is ready. started is called when it has started up.
func (k *podRun) probe(ctx context.Context, a *attempt, started func()) {
	go func() {
		if p := a.spec.StartupProbe; p != nil {
			if err := k.untilSuccess(ctx, a, p); err != nil {
				k.fail(ctx, a, "startup", p, err)
				return
			}
		}
		if ctx.Err() != nil {
			return
		}
		started()
		if p := a.spec.LivenessProbe; p != nil {
			go k.watch(ctx, a, p, true, func(alive bool, why error) {
				if !alive {
					k.fail(ctx, a, "liveness", p, why)
				}
			})
		}
		k.watchReadiness(ctx, a)
	}()
}

func (k *podRun) watchReadiness(ctx context.Context, a *attempt) {
	isReady := false
	change := func(ready bool, why error) {
		isReady = ready
		if !ready {
			k.say("%s is not ready: %v", a.spec.Name, why)
		}
		if k.ready.change(ready) {
			k.say("pod %s/%s is ready", k.pod.Namespace, k.pod.Name)
			if k.Ready != nil {
				k.Ready()
			}
		}
	}
	if !k.countsForReadiness(a.spec) {
		return
	}
	if p := a.spec.ReadinessProbe; p != nil {
		k.watch(ctx, a, p, false, change)
	} else {
		change(true, nil)
		<-ctx.Done()
	}
	if isReady {
		k.ready.change(false)
	}
}

// countsForReadiness reports whether a container makes the pod ready: all but those that end first.
func (k *podRun) countsForReadiness(c *corev1.Container) bool {
	for i := range k.pod.Spec.InitContainers {
		if &k.pod.Spec.InitContainers[i] == c {
			return podspec.IsSidecar(c)
		}
	}
	return true
}

// readinessCount is how many containers make the pod ready.
func (k *podRun) readinessCount() int {
	n := len(k.pod.Spec.Containers)
	for i := range k.pod.Spec.InitContainers {
		if podspec.IsSidecar(&k.pod.Spec.InitContainers[i]) {
			n++
		}
	}
	return n
}

// fail ends a container whose probe has failed; await sees the exit.
func (k *podRun) fail(ctx context.Context, a *attempt, what string, p *corev1.Probe, why error) {
	if ctx.Err() != nil {
		return
	}
	k.say("%s fails its %s probe: %v", a.spec.Name, what, why)
	a.failedProbe.Store(true)
	grace := k.grace()
	if p.TerminationGracePeriodSeconds != nil {
		grace = time.Duration(*p.TerminationGracePeriodSeconds) * time.Second
	}
	if err := k.terminate(ctx, a, grace, nil); err != nil && ctx.Err() == nil {
		k.say("%v", err)
	}
}

// untilSuccess probes until the first success, and returns the last failure when the
// threshold is reached.
func (k *podRun) untilSuccess(ctx context.Context, a *attempt, p *corev1.Probe) error {
	var failures int32
	var last error
	k.probeLoop(ctx, a, p, func(err error) (done bool) {
		last = err
		if err != nil {
			failures++
		}
		return err == nil || failures >= p.FailureThreshold
	})
	return last
}

// watch probes until ctx ends and calls change when the outcome changes. state is the
// outcome before the first probe.
func (k *podRun) watch(ctx context.Context, a *attempt, p *corev1.Probe, state bool, change func(ok bool, why error)) {
	var successes, failures int32
	k.probeLoop(ctx, a, p, func(err error) (done bool) {
		if err == nil {
			successes, failures = successes+1, 0
		} else {
			successes, failures = 0, failures+1
		}
		switch {
		case state && failures >= p.FailureThreshold:
			state = false
			change(false, err)
		case !state && successes >= p.SuccessThreshold:
			state = true
			change(true, nil)
		}
		return false
	})
}

// probeLoop probes periodically and calls outcome each time, until outcome returns true or
// ctx ends. A probe that did not run has no outcome.
func (k *podRun) probeLoop(ctx context.Context, a *attempt, p *corev1.Probe, outcome func(err error) (done bool)) {
	// The delay is the container's, also of probes that wait for its start-up.
	if sleep(ctx, time.Until(a.began.Add(time.Duration(p.InitialDelaySeconds)*time.Second))) != nil {
		return
	}
	for {
		err := k.handler(a).Probe(ctx, p)
		if ctx.Err() != nil {
			return
		}
		if !errors.Is(err, handler.ErrNotProbed) && outcome(err) {
			return
		}
		if sleep(ctx, time.Duration(p.PeriodSeconds)*time.Second) != nil {
			return
		}
	}
}

// handler is what runs the probes and hooks of an attempt. A pod on the host's network
// is reached over loopback.
func (k *podRun) handler(a *attempt) *handler.Target {
	target := &handler.Target{Runtime: k.Conn.Runtime, ContainerID: a.id, Container: a.spec}
	switch {
	case k.pod.Spec.HostNetwork:
		target.PodIP = "127.0.0.1"
	case len(k.facts.PodIPs) > 0:
		target.PodIP = k.facts.PodIPs[0]
	}
	return target
}
