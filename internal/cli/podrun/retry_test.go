package podrun

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/berthrun/berth/internal/errs"
)

// noNetwork returns the answers of a runtime without a CNI configuration. Each is about another sandbox.
func noNetwork() func() error {
	n := 0
	return func() error {
		n++
		return fmt.Errorf("cannot attach %064x: there is no CNI configuration: %w", n, errs.Unavailable)
	}
}

// detach starts the scene's pod, and leaves it.
func (s *scene) detach() {
	ctx, cancel := context.WithCancel(s.t.Context())
	s.cancel = cancel
	go func() {
		defer close(s.done)
		defer cancel()
		_, s.err = start(ctx, s.opts)
	}()
}

// failed waits until the run has failed, and returns its error.
func (s *scene) failed() error {
	s.t.Helper()
	select {
	case <-s.done:
	case <-time.After(20 * time.Second):
		s.t.Fatalf("the keeper does not end; it called %q and said %q", s.runtime.noted(), s.said.String())
	}
	if s.err == nil {
		s.t.Fatal("the keeper did not fail")
	}
	return s.err
}

// leavesNoFile checks that the pod has no volumes and logs.
func (s *scene) leavesNoFile() {
	s.t.Helper()
	for _, dir := range []string{s.volumes, s.logs} {
		if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
			s.t.Errorf("%s has %v: %v", dir, left, err)
		}
	}
}

func (s *scene) saysOnce(text string) {
	s.t.Helper()
	if n := strings.Count(s.said.String(), text); n != 1 {
		s.t.Errorf("%q was said %d times in\n%s", text, n, s.said.String())
	}
}

const sleeper = "  restartPolicy: Never\n  containers: [{name: a, image: 'x:1'}]\n"

// TestStartWithoutADaemon: a start says what it waits for, and fails when the daemon does not come
// back, with what is left.
func TestStartWithoutADaemon(t *testing.T) {
	f := &fakeRuntime{programs: map[string]program{"a": serves(0)}}
	s := newScene(t, sleeper, f)
	calls, answer := 0, noNetwork()
	f.runs = func() error {
		if calls++; calls == 2 {
			go f.shut()
			<-t.Context().Done()
		}
		return answer()
	}
	s.opts.Timings.Retry, s.opts.Timings.Patience = time.Millisecond, 50*time.Millisecond
	s.detach()
	err := s.failed()
	if !errors.Is(err, errs.Unavailable) {
		t.Errorf("got %v", err)
	}
	for _, want := range []string{"nobody answers on " + s.opts.Conn.Endpoint, "journalctl -u berth", "`berth pod rm --force default/web` removes it"} {
		if strings.Count(err.Error(), want) != 1 {
			t.Errorf("%q does not have %q once", err, want)
		}
	}
	s.saysOnce(": there is no CNI configuration\n")
	s.saysOnce("retrying: nobody answers on " + s.opts.Conn.Endpoint + "; this command gives up after 50ms\n")
	s.leavesNoFile()
}

// TestStartWhileTheDaemonRestarts: the daemon ends while it answers the first call of a start, and comes back.
func TestStartWhileTheDaemonRestarts(t *testing.T) {
	f := &fakeRuntime{programs: map[string]program{"a": serves(0)}}
	s := newScene(t, sleeper, f)
	var calls atomic.Int32
	f.lists = func() error {
		if calls.Add(1) == 1 {
			return fmt.Errorf("the daemon ends: %w", errs.Unavailable)
		}
		return nil
	}
	s.opts.Timings.Retry = time.Millisecond
	s.detach()
	<-s.done
	if s.err != nil {
		t.Fatal(s.err)
	}
	s.saysOnce("retrying: the daemon ends")
}

// TestStartThatTheRuntimeRefuses: a cause that stays is said once, and then the error.
func TestStartThatTheRuntimeRefuses(t *testing.T) {
	s := newScene(t, sleeper, &fakeRuntime{runs: noNetwork()})
	s.opts.Timings.Retry = time.Millisecond
	s.detach()
	if err := s.failed(); !strings.HasPrefix(err.Error(), "gave up after 3 retries: ") || !strings.Contains(err.Error(), "no CNI configuration") ||
		strings.Contains(err.Error(), "may be left") {
		t.Errorf("got %v", err)
	}
	s.saysOnce("retrying: ")
	s.leavesNoFile()
}

// TestInterruptedStart: Ctrl-C ends a start that waits for the runtime, whether that answers or not.
func TestInterruptedStart(t *testing.T) {
	for _, answers := range []bool{true, false} {
		t.Run(fmt.Sprintf("answers %t", answers), func(t *testing.T) {
			f := &fakeRuntime{}
			s := newScene(t, sleeper, f)
			f.runs = func() error {
				if !answers {
					go f.shut()
					<-t.Context().Done()
				}
				return noNetwork()()
			}
			s.opts.Timings.Retry, s.opts.Timings.Patience = time.Hour, time.Hour
			if !answers {
				// Long enough that the interruption meets the pause between two calls, as it does in practice.
				s.opts.Timings.Retry = 200 * time.Millisecond
			}
			s.detach()
			s.until("a message", func() bool { return strings.Contains(s.said.String(), "retrying: ") })
			s.cancel()
			if err := s.failed(); !errors.Is(err, errs.Unavailable) {
				t.Errorf("got %v", err)
			}
			s.leavesNoFile()
		})
	}
}

// TestPodOutlivesItsDaemon: in the foreground a pod that runs waits for its daemon without a limit.
func TestPodOutlivesItsDaemon(t *testing.T) {
	f := &fakeRuntime{programs: map[string]program{"a": func(c *fakeContainer) int32 {
		c.log("up")
		<-c.stop
		return 7
	}}}
	s := newScene(t, sleeper, f)
	s.opts.Timings.Retry, s.opts.Timings.Patience = time.Millisecond, time.Nanosecond
	s.run()
	// The keeper shows output once its calls to start the container have returned.
	s.until("output", func() bool { return strings.Contains(s.out.String(), "up") })
	again := f.shut()
	s.until("a message", func() bool { return strings.Contains(s.said.String(), "retrying: nobody answers on ") })
	close(f.containers["a-0"].stop)
	again()
	s.wait()
	if s.code != 7 {
		t.Errorf("exit code %d", s.code)
	}
}
