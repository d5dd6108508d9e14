package podrun

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

// execs records the commands of hooks, beside the calls of the runtime.
func execs(f *fakeRuntime, code func(cmd string) int32) {
	f.exec = func(id string, cmd []string) (int32, error) {
		f.mu.Lock()
		defer f.mu.Unlock()
		f.note("exec %s %s", id, cmd[0])
		return code(cmd[0]), nil
	}
}

func TestHooksAndTheirOrder(t *testing.T) {
	f := &fakeRuntime{programs: map[string]program{"side": serves(0), "a": serves(0), "b": serves(0)}}
	execs(f, func(string) int32 { return 0 })
	s := newScene(t, `
  initContainers:
    - {name: side, image: "x:1", restartPolicy: Always, lifecycle: {preStop: {exec: {command: [side-stop]}}}}
  containers:
    - {name: a, image: "x:1", lifecycle: {postStart: {exec: {command: [started]}}, preStop: {exec: {command: [stop]}}}}
    - {name: b, image: "x:1"}
`, f)
	s.run()
	s.until("readiness", func() bool { return strings.Contains(s.said.String(), "is ready") })
	s.cancel()
	s.wait()
	calls := s.runtime.noted()
	for _, order := range [][2]string{
		{"start a-0", "exec a-0 started"},
		{"exec a-0 started", "create b-0"},
		{"exec a-0 stop", "stop a-0 in 30"},
		{"end a-0", "stop side-0 in 30"},
		{"end b-0", "stop side-0 in 30"},
		{"exec side-0 side-stop", "stop side-0 in 30"},
	} {
		if i, j := slices.Index(calls, order[0]), slices.Index(calls, order[1]); i < 0 || j < 0 || i > j {
			t.Errorf("%q is not before %q in %q", order[0], order[1], calls)
		}
	}
}

func TestFailedPostStartEndsTheContainer(t *testing.T) {
	f := &fakeRuntime{programs: map[string]program{"a": serves(0)}}
	execs(f, func(string) int32 { return 4 })
	s := newScene(t, `
  restartPolicy: Never
  containers: [{name: a, image: "x:1", lifecycle: {postStart: {exec: {command: [x]}}}}]
`, f)
	s.run()
	s.wait()
	if !s.called("stop a-0 in 30")() || !strings.Contains(s.said.String(), "its postStart hook failed, the container is stopped: exit code 4") {
		t.Errorf("called %q, said %q", s.runtime.noted(), s.said.String())
	}
}

// If a hook uses the whole grace period, the container still gets two seconds.
func TestPreStopIsPartOfTheGrace(t *testing.T) {
	s := newScene(t, `
  terminationGracePeriodSeconds: 3
  containers: [{name: a, image: "x:1", lifecycle: {preStop: {sleep: {seconds: 3}}}}]
`, &fakeRuntime{programs: map[string]program{"a": serves(0)}})
	s.run()
	s.until("start", s.called("start a-0"))
	s.cancel()
	s.wait()
	if !s.called("stop a-0 in 2")() {
		t.Errorf("called %q", s.runtime.noted())
	}
}

func TestLastWords(t *testing.T) {
	s := newScene(t, `
  restartPolicy: Never
  containers: [{name: a, image: "x:1"}, {name: b, image: "x:1", terminationMessagePolicy: FallbackToLogsOnError}]
`, &fakeRuntime{programs: map[string]program{
		"a": func(c *fakeContainer) int32 {
			for _, m := range c.config.Mounts {
				if m.ContainerPath == "/dev/termination-log" {
					if err := os.WriteFile(m.HostPath, []byte(strings.Repeat("x", maxMessage)+" out of luck\n"), 0o600); err != nil {
						t.Error(err)
					}
				}
			}
			return 3
		},
		"b": exits(4, "from the log"),
	}})
	s.run()
	s.wait()
	for _, want := range []string{"a ended (exit code 3: xxx", "xxx out of luck)", "b ended (exit code 4: from the log)"} {
		if !strings.Contains(s.said.String(), want) {
			t.Errorf("%q is not said: %q", want, s.said.String())
		}
	}
}

func TestRestartRules(t *testing.T) {
	var mu sync.Mutex
	runs := map[string]int32{}
	count := func(name string) int32 {
		mu.Lock()
		defer mu.Unlock()
		runs[name]++
		return runs[name]
	}
	s := newScene(t, `
  restartPolicy: Never
  initContainers: [{name: init, image: "x:1"}]
  containers:
    - name: again
      image: "x:1"
      restartPolicy: Never
      restartPolicyRules: [{action: Restart, exitCodes: {operator: In, values: [7]}}]
    - name: all
      image: "x:1"
      restartPolicy: Never
      restartPolicyRules: [{action: RestartAllContainers, exitCodes: {operator: NotIn, values: [0]}}]
`, &fakeRuntime{programs: map[string]program{
		"init": func(*fakeContainer) int32 { count("init"); return 0 },
		"again": func(*fakeContainer) int32 {
			if count("again") == 1 {
				return 7
			}
			return 0
		},
		"all": func(*fakeContainer) int32 {
			if count("all") == 1 {
				return 9
			}
			return 0
		},
	}})
	s.run()
	s.wait()
	mu.Lock()
	defer mu.Unlock()
	if s.code != 0 || runs["init"] != 2 || runs["all"] != 2 || runs["again"] < 2 {
		t.Errorf("code %d, runs %v, said %q", s.code, runs, s.said.String())
	}
}

func TestTooMuchOnDiskEndsThePod(t *testing.T) {
	f := &fakeRuntime{programs: map[string]program{"a": func(c *fakeContainer) int32 {
		if err := os.WriteFile(filepath.Join(c.config.Mounts[0].HostPath, "big"), make([]byte, 1<<20), 0o600); err != nil {
			t.Error(err)
		}
		<-c.stop
		return 0
	}}}
	s := newScene(t, `
  volumes: [{name: v, emptyDir: {sizeLimit: 1Ki}}]
  containers: [{name: a, image: "x:1", volumeMounts: [{name: v, mountPath: /v}]}]
`, f)
	s.opts.Timings.Usage = 10 * time.Millisecond
	s.run()
	s.wait()
	if s.code != 1 || !strings.Contains(s.said.String(), "the pod is evicted: emptyDir v has") || !s.called("stop a-0 in 1")() {
		t.Errorf("code %d, said %q, called %q", s.code, s.said.String(), s.runtime.noted())
	}
}
