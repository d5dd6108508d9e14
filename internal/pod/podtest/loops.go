package podtest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/berthrun/berth/internal/pod"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// podLife is one pod from its first request to its last, as a kubelet makes them.
type podLife struct {
	w       *World
	s       *pod.Service
	step    string
	sandbox string
}

// run makes the requests until one fails.
func (l *podLife) run(ctx context.Context) (err error) {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	var container string
	steps := []struct {
		name string
		do   func() error
	}{
		{"RunSandbox", func() error {
			l.sandbox, err = l.s.RunSandbox(ctx, l.w.SandboxConfig("loop"), "")
			return err
		}},
		{"CreateContainer", func() error {
			container, err = l.s.CreateContainer(ctx, l.sandbox, l.w.ContainerConfig("main", l.w.Programs.Sleep))
			return err
		}},
		{"StartContainer", func() error {
			if err := l.s.StartContainer(ctx, container); err != nil {
				return err
			}
			return l.w.awaitReady(ctx, "main")
		}},
		{"StopContainer", func() error { return l.s.StopContainer(ctx, container, 20) }},
		{"RemoveContainer", func() error { return l.s.RemoveContainer(ctx, container) }},
		{"StopSandbox", func() error { return l.s.StopSandbox(ctx, l.sandbox) }},
		{"RemoveSandbox", func() error { return l.s.RemoveSandbox(ctx, l.sandbox) }},
	}
	for _, step := range steps {
		l.step = step.name
		if err := step.do(); err != nil {
			return fmt.Errorf("%s: %w", step.name, err)
		}
	}
	l.step = "the end"
	return nil
}

// awaitReady waits until the container of a name, which runs Sleep, handles SIGTERM.
func (w *World) awaitReady(ctx context.Context, container string) error {
	for {
		log, err := os.ReadFile(filepath.Join(w.LogDir, container+".log"))
		if bytes.Contains(log, []byte(w.Programs.Ready)) {
			return nil
		}
		select {
		case <-time.After(5 * time.Millisecond):
		case <-ctx.Done():
			return fmt.Errorf("container %s does not write that it is ready: %w", container, errors.Join(context.Cause(ctx), err))
		}
	}
}

// RunFaults runs a pod from its start to its end again and again, and lets its call 1, 2, 3,
// ... fail, before or after it took effect. Each time nothing is left, or what is
// left is listed and Remove clears it.
func RunFaults(t *testing.T, parts *Parts) {
	for n := 1; ; n++ {
		script := FailAt(n)
		w := NewWorld(t, parts)
		l := &podLife{w: w, step: "start"}
		s, err := w.TryDaemon(script)
		if err == nil {
			l.s = s
			err = l.run(t.Context())
		} else {
			s = w.Daemon(nil) // a daemon that cannot start is started again
		}
		if t.Failed() || !script.Reached(n) && err == nil {
			t.Logf("%d points", n-1)
			return
		}
		where := fmt.Sprintf("point %d (%s, in %s: %v)", n, script.Name(n), l.step, err)
		w.assertCleared(t, s, where)
		w.CloseDaemon(s) // the engine has one listener
	}
}

// RunCrashes runs a pod from its start to its end again and again, and kills the daemon at its
// call 1, 2, 3, ... Each time the next daemon starts, shows nothing that is not so, and can
// clear everything.
func RunCrashes(t *testing.T, parts *Parts) {
	for n := 1; ; n++ {
		if over := crashAt(t, parts, n, true); over {
			t.Logf("%d points", n-1)
			return
		}
		crashAt(t, parts, n, false)
	}
}

// crashAt is one run that ends at point n, and what comes after it, with or
// without a retry of the request that the crash interrupted.
func crashAt(t *testing.T, parts *Parts, n int, retry bool) (over bool) {
	t.Helper()
	script := CrashAt(n)
	w := NewWorld(t, parts)
	l := &podLife{w: w}
	err := w.runUntilCrash(t, script, l)
	if t.Failed() || !script.Reached(n) && err == nil {
		return true
	}
	where := fmt.Sprintf("point %d (%s, in %s: %v)", n, script.Name(n), l.step, err)
	s := w.Daemon(nil)
	w.assertTruth(t, s, where)
	if retry && l.step == "RunSandbox" {
		w.assertRetry(t, s, where)
	}
	w.assertCleared(t, s, where)
	w.CloseDaemon(s) // the engine has one listener
	return false
}

func (w *World) runUntilCrash(t *testing.T, script *Script, l *podLife) error {
	t.Helper()
	s, err := w.TryDaemon(script)
	if err != nil {
		l.step = "start"
		if !errors.Is(err, ErrDead) {
			t.Fatalf("cannot start the daemon: %v", err)
		}
		return err
	}
	l.s = s
	ctx, cancel := script.alive(t.Context())
	defer cancel()
	err = l.run(ctx)
	w.CloseDaemon(s)
	return err
}

// assertTruth checks that everything that is listed READY or RUNNING is so, and that no
// exit code is invented.
func (w *World) assertTruth(t *testing.T, s *pod.Service, where string) {
	t.Helper()
	actual, err := w.Engine.List(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	exists := map[string]bool{}
	for _, a := range actual {
		exists[a.ID] = true
	}
	sandboxes, err := Sandboxes(t.Context(), s, nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, sb := range sandboxes {
		if sb.GetState() == runtimeapi.PodSandboxState_SANDBOX_READY && !exists[sb.GetId()] {
			t.Errorf("%s: sandbox %s is READY and does not exist", where, sb.GetId())
		}
	}
	containers, err := Containers(t.Context(), s, nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range containers {
		status, _, err := s.ContainerStatus(t.Context(), c.GetId(), false)
		if err != nil {
			continue // its removal was under way and is done
		}
		switch status.GetState() {
		case runtimeapi.ContainerState_CONTAINER_RUNNING:
			if !exists[c.GetId()] {
				t.Errorf("%s: container %s is RUNNING and does not exist", where, c.GetId())
			}
		case runtimeapi.ContainerState_CONTAINER_EXITED:
			if code := status.GetExitCode(); code != 143 && code != 137 && code != 128 {
				t.Errorf("%s: container %s exited with %d (%s, %s)", where, c.GetId(), code, status.GetReason(), status.GetMessage())
			}
		default:
		}
	}
}

// assertRetry: the kubelet's retry of a RunSandbox that a crash interrupted gets
// its sandbox, with the same attempt, and only one.
func (w *World) assertRetry(t *testing.T, s *pod.Service, where string) {
	t.Helper()
	id, err := s.RunSandbox(t.Context(), w.SandboxConfig("loop"), "")
	if err != nil {
		t.Errorf("%s: retry after the crash: %v", where, err)
		return
	}
	Eventually(t, where+": one sandbox is left after the retry", func() bool {
		list, err := Sandboxes(t.Context(), s, nil)
		return err == nil && len(list) == 1 && list[0].GetId() == id && list[0].GetState() == runtimeapi.PodSandboxState_SANDBOX_READY
	})
}

// assertCleared removes what is listed and then wants nothing left.
func (w *World) assertCleared(t *testing.T, s *pod.Service, where string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	list, err := Sandboxes(ctx, s, nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, sb := range list {
		if err := s.StopSandbox(ctx, sb.GetId()); err != nil {
			t.Errorf("%s: StopSandbox: %v", where, err)
		}
		if err := s.RemoveSandbox(ctx, sb.GetId()); err != nil {
			t.Errorf("%s: RemoveSandbox: %v", where, err)
		}
	}
	Eventually(t, where+": all jobs end", func() bool { return len(s.Jobs()) == 0 })
	var left []string
	for deadline := time.Now().Add(20 * time.Second); time.Now().Before(deadline); time.Sleep(time.Millisecond) {
		if left = w.Leftovers(); len(left) == 0 {
			return
		}
	}
	t.Errorf("%s: left: %q", where, left)
}
