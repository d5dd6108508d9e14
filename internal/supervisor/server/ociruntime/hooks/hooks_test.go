package hooks

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/sys/sysproc"
)

// script is a hook that runs a shell script.
func script(text string) specs.Hook {
	return specs.Hook{Path: "/bin/sh", Args: []string{"sh", "-c", text}}
}

func TestHookGetsStateArgumentsAndEnvironment(t *testing.T) {
	t.Setenv("NOTIFY_SOCKET", "/run/secret")
	dir := t.TempDir()
	state := &specs.State{Version: "1.0.2", ID: "c", Status: specs.StateCreating, Pid: 12, Bundle: "/bundle", Annotations: map[string]string{"a": "b"}}
	h := script(`cat > "$0"/state; echo "$1" > "$0"/arguments; env > "$0"/environment`)
	h.Args = append(h.Args, dir, "one argument")
	own := h
	own.Args = append([]string(nil), h.Args...)
	own.Args[2] = `env > "$0"/own`
	own.Env = []string{"A=b"}
	if err := Run(t.Context(), Poststart, []specs.Hook{h, own}, state); err != nil {
		t.Fatal(err)
	}
	read := func(name string) string {
		data, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		return string(data)
	}
	var got specs.State
	if err := json.Unmarshal([]byte(read("state")), &got); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(*state, got); diff != "" {
		t.Errorf("state (-want +got):\n%s", diff)
	}
	if read("arguments") != "one argument\n" {
		t.Errorf("arguments %q", read("arguments"))
	}
	if env := read("environment"); !strings.Contains(env, "PATH=") || strings.Contains(env, "NOTIFY_SOCKET") {
		t.Errorf("a hook without an environment has %q", env)
	}
	if env := read("own"); !strings.Contains(env, "A=b\n") || strings.Contains(env, "HOME=/\n") {
		t.Errorf("a hook with an environment has %q", env)
	}
}

// TestHookHasTheKernelsTimerSlack: threads of the supervisor have another one.
func TestHookHasTheKernelsTimerSlack(t *testing.T) {
	runtime.LockOSThread() // without an unlock: the thread ends with the test
	if err := unix.Prctl(unix.PR_SET_TIMERSLACK, 1_000_000, 0, 0, 0); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "slack")
	h := script(`cat /proc/self/timerslack_ns > "$0"`)
	h.Args = append(h.Args, file)
	if err := Run(t.Context(), Poststart, []specs.Hook{h}, &specs.State{}); err != nil {
		t.Fatal(err)
	}
	if got, err := os.ReadFile(file); err != nil || string(got) != "50000\n" {
		t.Errorf("the hook's timer slack is %q ns, %v", got, err)
	}
}

// TestFailedHookIsNamed: the error has stage, number and program, and the end of the output. No further hook runs,
// unless all are to run.
func TestFailedHookIsNamed(t *testing.T) {
	file := filepath.Join(t.TempDir(), "ran")
	list := []specs.Hook{
		script("exit 0"), script(`echo so; echo "this is why" >&2; exit 3`),
		{Path: "/bin/touch", Args: []string{"touch", file}},
		{Path: "/no/such/hook"},
	}
	err := Run(t.Context(), CreateRuntime, list, &specs.State{})
	const want = "error running createRuntime hook #1: /bin/sh: exit status 3: unavailable, output: so\nthis is why"
	if err == nil || err.Error() != want || !errors.Is(err, errs.Unavailable) {
		t.Errorf("error %q, want %q", err, want)
	}
	if _, err := os.Stat(file); err == nil {
		t.Error("the hook after the failed one has run")
	}
	err = RunAll(t.Context(), Poststop, list, &specs.State{})
	if err == nil || !strings.Contains(err.Error(), "poststop hook #1: /bin/sh") || !strings.Contains(err.Error(), "poststop hook #3: /no/such/hook") {
		t.Errorf("error %v", err)
	}
	if _, err := os.Stat(file); err != nil {
		t.Errorf("the hook after the failed one has not run: %v", err)
	}
}

func TestLongOutputIsCut(t *testing.T) {
	h := script(`i=0; while [ $i -lt 3000 ]; do echo "line $i"; i=$((i+1)); done; exit 1`)
	err := RunOne(t.Context(), &h, &specs.State{})
	if err == nil || len(err.Error()) > maxOutput+200 || !strings.HasSuffix(err.Error(), "line 2999") {
		t.Errorf("an error of %d bytes: %.100v", len(err.Error()), err)
	}
}

// TestHangingHookEnds: a hook that hangs is killed with all that it has started in its group, by its own timeout or
// by the context.
func TestHangingHookEnds(t *testing.T) {
	one := 1
	pids := filepath.Join(t.TempDir(), "pids")
	h := script(`sleep 1000 & echo $! > ` + pids + `; echo waiting; wait`)
	h.Timeout = &one
	err := RunOne(t.Context(), &h, &specs.State{})
	if !errors.Is(err, errs.Deadline) || !strings.Contains(err.Error(), "/bin/sh: it ran longer than its timeout of 1 s") || !strings.HasSuffix(err.Error(), "output: waiting") {
		t.Errorf("timeout: %v", err)
	}
	awaitEnd(t, pids)
	h.Timeout = nil
	ctx, stop := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer stop()
	if err := RunOne(ctx, &h, &specs.State{}); !errors.Is(err, errs.Deadline) || !strings.Contains(err.Error(), "/bin/sh: it took too long") {
		t.Errorf("context: %v", err)
	}
}

// awaitEnd waits for the end of the process whose pid is in a file.
func awaitEnd(t *testing.T, file string) {
	t.Helper()
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var pid int
	if err := json.Unmarshal(data, &pid); err != nil {
		t.Fatal(err)
	}
	pidfd, err := sysproc.OpenPidfd(pid)
	if errors.Is(err, errs.NotFound) {
		return
	}
	if err != nil {
		t.Fatal(err)
	}
	defer pidfd.Close()
	ctx, stop := context.WithTimeout(t.Context(), 20*time.Second)
	defer stop()
	if err := sysproc.AwaitExit(ctx, pidfd); err != nil {
		t.Errorf("a process of the hook lives: %v", err)
	}
}

// TestLeftProcessIsNotWaitedFor: a hook may leave a process that has its output open.
func TestLeftProcessIsNotWaitedFor(t *testing.T) {
	pids := filepath.Join(t.TempDir(), "pids")
	h := script(`sleep 1000 & echo $! > ` + pids)
	if err := RunOne(t.Context(), &h, &specs.State{}); err != nil {
		t.Error(err)
	}
	data, err := os.ReadFile(pids)
	if err != nil {
		t.Fatal(err)
	}
	kill := script("kill " + string(data))
	if err := RunOne(t.Context(), &kill, &specs.State{}); err != nil {
		t.Errorf("the process that the hook has left is gone: %v", err)
	}
}

// TestHookNeedNotReadItsInput: the state may be longer than a pipe.
func TestHookNeedNotReadItsInput(t *testing.T) {
	h := script("exit 0")
	if err := RunOne(t.Context(), &h, &specs.State{Annotations: map[string]string{"a": strings.Repeat("x", 1<<20)}}); err != nil {
		t.Error(err)
	}
}

func TestKept(t *testing.T) {
	h := []specs.Hook{{Path: "/x"}}
	for name, test := range map[string]struct {
		hooks *specs.Hooks
		want  *Kept
	}{
		"none":             {nil, nil},
		"those of creates": {&specs.Hooks{CreateRuntime: h, CreateContainer: h}, nil},
		"startContainer":   {&specs.Hooks{StartContainer: h}, &Kept{Annotations: map[string]string{"a": "b"}, StartContainer: true}},
		"both others":      {&specs.Hooks{Poststart: h, Poststop: h}, &Kept{Annotations: map[string]string{"a": "b"}, Poststart: h, Poststop: h}},
	} {
		got := KeptOf(&specs.Spec{Annotations: map[string]string{"a": "b"}, Hooks: test.hooks})
		if diff := cmp.Diff(test.want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}
