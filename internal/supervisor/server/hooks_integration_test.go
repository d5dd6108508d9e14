//go:build integration

package server_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/require"
	"github.com/berthrun/berth/internal/supervisor"
)

// hookDir makes the directory into which recorder writes.
func (h *host) hookDir() string {
	h.t.Helper()
	dir := filepath.Join(h.dir, "hooks")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		h.t.Fatal(err)
	}
	return dir
}

// recorder is a hook of the host that writes its stage to the file order, and its input to a file of its own, once
// the bundle's config.json is there.
func (h *host) recorder(stage string) specs.Hook {
	dir := h.hookDir()
	return hookOf(fmt.Sprintf(`cat > %[1]s/%[2]s && bundle=$(sed 's/.*"bundle":"\([^"]*\)".*/\1/' %[1]s/%[2]s) && test -s "$bundle/config.json" && echo %[2]s >> %[1]s/order`, dir, stage))
}

func hookOf(script string) specs.Hook {
	return specs.Hook{Path: "/bin/sh", Args: []string{"sh", "-c", script}}
}

// order returns the stages whose hooks have run.
func (h *host) order() []string {
	h.t.Helper()
	data, err := os.ReadFile(filepath.Join(h.hookDir(), "order"))
	if err != nil && !os.IsNotExist(err) {
		h.t.Fatal(err)
	}
	return strings.Fields(string(data))
}

// inputOf returns the input of the hook of a stage.
func (h *host) inputOf(stage string) specs.State {
	h.t.Helper()
	data, err := os.ReadFile(filepath.Join(h.hookDir(), stage))
	if err != nil {
		h.t.Fatal(err)
	}
	var state specs.State
	if err := json.Unmarshal(data, &state); err != nil {
		h.t.Fatalf("input of %s: %v: %s", stage, err, data)
	}
	return state
}

// TestHooks: hooks of all stages run in their order, with the state of the container, over the supervisor's own
// runtime and over a program.
func TestHooks(t *testing.T) {
	for _, over := range []string{"supervisor", "runc"} {
		t.Run(over, func(t *testing.T) {
			h := newHost(t)
			if over == "runc" {
				h.over(require.Binary(t, "runc"))
			}
			h.keep() // what a program leaves becomes a child of the keeper
			c := h.create("hooked", "cat /tmp/made; exit 7", func(s *specs.Spec, _ *supervisor.CreateRequest) {
				s.Annotations = map[string]string{"example.com/a": "b"}
				s.Hooks = &specs.Hooks{
					Prestart:        []specs.Hook{h.recorder("prestart")}, //nolint:staticcheck // older tools still use it
					CreateRuntime:   []specs.Hook{h.recorder("createRuntime"), h.recorder("createRuntime2")},
					CreateContainer: []specs.Hook{h.recorder("createContainer")},
					StartContainer:  []specs.Hook{{Path: "/bin/sh", Args: []string{"sh", "-c", "echo from the hook > /tmp/made"}}},
					Poststart:       []specs.Hook{h.recorder("poststart")},
					Poststop:        []specs.Hook{h.recorder("poststop")},
				}
			})
			if got := h.order(); !slices.Equal(slices.DeleteFunc(got, func(s string) bool { return s == "poststart" }), []string{"prestart", "createRuntime", "createRuntime2", "createContainer"}) {
				t.Errorf("hooks of the create: %q", got)
			}
			if over == "supervisor" && slices.Contains(h.order(), "poststart") {
				t.Error("the poststart hook has run before the start") // runc runs it there
			}
			if _, err := h.client.Start(h.ctx(), "hooked"); err != nil {
				t.Fatal(err)
			}
			if !slices.Contains(h.order(), "poststart") {
				t.Error("the poststart hook has not run when the start has ended")
			}
			h.wantExit("hooked", 7)
			if got := h.lines("hooked", "stdout"); !slices.Equal(got, []string{"from the hook"}) {
				t.Errorf("the container saw %q", got)
			}
			if err := h.client.Remove(h.ctx(), "hooked"); err != nil {
				t.Fatal(err)
			}
			if got := h.order(); got[len(got)-1] != "poststop" || len(got) != 6 {
				t.Errorf("all hooks: %q", got)
			}
			for stage, status := range map[string]specs.ContainerState{
				"prestart": specs.StateCreating, "createRuntime": specs.StateCreating, "createContainer": specs.StateCreating, "poststop": specs.StateStopped,
			} {
				state := h.inputOf(stage)
				if state.ID != "hooked" || state.Status != status || state.Annotations["example.com/a"] != "b" || !filepath.IsAbs(state.Bundle) {
					t.Errorf("input of %s: %+v", stage, state)
				}
			}
			if pid := h.inputOf("createRuntime").Pid; pid != c.Pid {
				t.Errorf("createRuntime has pid %d, the container %d", pid, c.Pid)
			}
			if over == "supervisor" {
				if state := h.inputOf("poststart"); state.Status != specs.StateRunning || state.Pid != c.Pid {
					t.Errorf("input of poststart: %+v", state)
				}
			}
		})
	}
}

// TestOwnInitWithHooks: berth's own init creates a container that has hooks after its start only.
func TestOwnInitWithHooks(t *testing.T) {
	h := newHost(t).keep()
	h.needOwnRuntime("BERTH_HANDLER has no own init")
	c := h.create("own", "exec sleep 1000", func(s *specs.Spec, _ *supervisor.CreateRequest) {
		s.Hooks = &specs.Hooks{Poststart: []specs.Hook{h.recorder("poststart")}, Poststop: []specs.Hook{hookOf("echo why; exit 1"), h.recorder("poststop")}}
	})
	if c.Starter != "own" {
		t.Errorf("created by %s: %s", c.Starter, c.StarterReason)
	}
	if _, err := h.client.Start(h.ctx(), "own"); err != nil {
		t.Fatal(err)
	}
	h.crash()
	if err := h.client.Remove(h.ctx(), "own"); err != nil {
		t.Errorf("a poststop hook that fails keeps the container: %v", err)
	}
	if got := h.order(); !slices.Equal(got, []string{"poststart", "poststop"}) {
		t.Errorf("hooks %q", got)
	}
	if log := h.log(); !strings.Contains(log, "error running poststop hook #0: /bin/sh: exit status 1") {
		t.Errorf("the log does not name the hook that has failed:\n%s", log)
	}
}

// TestFailedHooks: a hook that fails fails the create or the start with stage and hook, and nothing is left.
func TestFailedHooks(t *testing.T) {
	h := newHost(t).serve()
	h.needOwnRuntime("the errors are those of the supervisor's own runtime")
	bad := []specs.Hook{hookOf("exit 0"), hookOf(`echo "not a directory, this is why" >&2; exit 3`)}
	for stage, hooks := range map[string]*specs.Hooks{
		"prestart":        {Prestart: bad},
		"createRuntime":   {CreateRuntime: bad},
		"createContainer": {CreateContainer: bad},
		"poststart":       {Poststart: bad},
		"startContainer":  {StartContainer: bad},
	} {
		t.Run(stage, func(t *testing.T) {
			hooks.Poststop = []specs.Hook{hookOf("echo poststop >> " + filepath.Join(h.hookDir(), "stop-"+stage))}
			req := h.bundle(stage, []string{"/bin/sleep", "1000"}, func(s *specs.Spec, _ *supervisor.CreateRequest) { s.Hooks = hooks })
			_, err := h.client.Create(h.ctx(), req)
			inStart := stage == "poststart" || stage == "startContainer"
			if inStart {
				if err != nil {
					t.Fatal(err)
				}
				_, err = h.client.Start(h.ctx(), stage)
			}
			words := []string{"error running " + stage + " hook #1", "/bin/sh: ", "exit status 3", "this is why"}
			kind := errs.Unavailable
			if stage == "startContainer" { // the init prints it
				words, kind = []string{"a startContainer hook has failed", "the container's log"}, errs.State
			}
			wantKind(t, err, kind)
			for _, word := range words {
				if !strings.Contains(fmt.Sprint(err), word) {
					t.Errorf("the error does not say %q: %v", word, err)
				}
			}
			if inStart {
				if exit := h.exit(stage); !exit.StartFailed {
					t.Errorf("the exit is %+v", exit)
				}
				if stage == "startContainer" && !strings.Contains(strings.Join(h.lines(stage, "stderr"), "\n"), "error running startContainer hook #1") {
					t.Errorf("the container's log: %q", h.lines(stage, "stderr"))
				}
				if err := h.client.Remove(h.ctx(), stage); err != nil {
					t.Error(err)
				}
			}
			if data, err := os.ReadFile(filepath.Join(h.hookDir(), "stop-"+stage)); string(data) != "poststop\n" {
				t.Errorf("poststop hooks of the failed container: %q %v", data, err)
			}
		})
	}
	h.assertNothingLeft()
}

// TestHangingHooks: a hook that hangs ends with its timeout, and the container with it.
func TestHangingHooks(t *testing.T) {
	h := newHost(t).serve()
	h.needOwnRuntime("the errors are those of the supervisor's own runtime")
	one := 1
	hangs := hookOf("sleep 4717 & sleep 4717")
	hangs.Timeout = &one
	for stage, hooks := range map[string]*specs.Hooks{
		"createRuntime": {CreateRuntime: []specs.Hook{hangs}},
		"poststart":     {Poststart: []specs.Hook{hangs}},
	} {
		_, err := h.client.Create(h.ctx(), h.bundle(stage, []string{"/bin/sleep", "1000"}, func(s *specs.Spec, _ *supervisor.CreateRequest) { s.Hooks = hooks }))
		if stage == "poststart" {
			if err != nil {
				t.Fatal(err)
			}
			_, err = h.client.Start(h.ctx(), stage)
		}
		wantKind(t, err, errs.Deadline)
		if !strings.Contains(fmt.Sprint(err), stage+" hook #0: /bin/sh: it ran longer than its timeout of 1 s") {
			t.Errorf("%s: %v", stage, err)
		}
		if err := h.client.Remove(h.ctx(), stage); err != nil {
			t.Error(err)
		}
	}
	h.assertNothingLeft()
	h.eventually("end of the hooks' processes", func() bool { return !commandRuns("4717") })
}

// commandRuns reports whether a process has an argument.
func commandRuns(argument string) bool {
	files, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		return true
	}
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err == nil && slices.Contains(strings.Split(string(data), "\x00"), argument) {
			return true
		}
	}
	return false
}

// TestPoststartAcrossCrash: a supervisor that dies during poststart hooks takes them with it, and the next one runs
// them again, before the container counts as started.
func TestPoststartAcrossCrash(t *testing.T) {
	h := newHost(t).keep()
	h.needOwnRuntime("a program runs the hooks of its own containers")
	first := filepath.Join(h.hookDir(), "first")
	fifo := filepath.Join(h.hookDir(), "fifo")
	if err := syscall.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	h.create("c", "exec sleep 1000", func(s *specs.Spec, _ *supervisor.CreateRequest) {
		s.Hooks = &specs.Hooks{Poststart: []specs.Hook{
			hookOf(fmt.Sprintf("if test ! -e %[1]s; then touch %[1]s; exec cat %[2]s; fi", first, fifo)), h.recorder("poststart"),
		}}
	})
	started := make(chan error, 1)
	go func() {
		_, err := h.client.Start(h.ctx(), "c")
		started <- err
	}()
	h.eventually("begin of the hook", func() bool { _, err := os.Stat(first); return err == nil })
	h.crash()
	if err := <-started; err != nil { // the client repeats it with the next supervisor
		if _, err = h.client.Start(h.ctx(), "c"); err != nil {
			t.Fatal(err)
		}
	}
	if got := h.order(); !slices.Equal(got, []string{"poststart"}) {
		t.Errorf("hooks %q", got)
	}
	h.eventually("end of the first hook", func() bool { return !commandRuns(fifo) })
}

// needOwnRuntime skips a test of the supervisor's own runtime when a handler is under test.
func (h *host) needOwnRuntime(why string) {
	h.t.Helper()
	var err error
	if h.handler != nil {
		err = errors.New(why)
	}
	require.Engine(h.t, "own-runtime", err)
}
