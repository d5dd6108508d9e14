package ocicommand

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/supervisor/server/ocicommand/launch"
	"github.com/berthrun/berth/internal/supervisor/server/ociruntime"
	"github.com/berthrun/berth/internal/sys/sysproc"
)

// TestMain lets the test binary run as the launcher.
func TestMain(m *testing.M) {
	if len(os.Args) != 3 || os.Args[1] != launch.Role {
		os.Exit(m.Run())
	}
	if err := launch.Run(os.Args[2]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// programOf returns a Runtime of a shell script, which has its command in $command and a directory of its own
// in $dir.
func programOf(t *testing.T, script string) *Runtime {
	t.Helper()
	dir := t.TempDir()
	all, err := New(filepath.Join(dir, "containers"), nil, nil, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "program")
	// --root ROOT --log LOG --log-format json COMMAND
	text := "#!/bin/sh\ndir=" + dir + "\n[ \"$1\" = --root ] && shift 6\ncommand=$1\n" + script + "\n"
	if err := os.WriteFile(path, []byte(text), 0o755); err != nil {
		t.Fatal(err)
	}
	return all.Of(Program{Name: "x", Path: path, Root: filepath.Join(dir, "root")})
}

// A container that runs is not a failed start, also when the time for the start is over.
func TestResumeFindsARunningContainer(t *testing.T) {
	r := programOf(t, `case $command in
state) [ -e $dir/started ] && echo '{"status":"running"}' || echo '{"status":"created"}';;
start) touch $dir/started; while [ ! -e $dir/cancelled ]; do sleep 0.01; done; echo has started >&2; exit 1;;
esac`)
	dir := filepath.Dir(r.program.Path)
	if err := r.all.files("one").make(&state{Program: r.program}, &specs.Spec{}); err != nil {
		t.Fatal(err)
	}
	pidfd, err := sysproc.OpenPidfd(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	defer pidfd.Close()
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	go func() {
		for ctx.Err() == nil {
			if _, err := os.Stat(filepath.Join(dir, "started")); err == nil {
				stop()
			}
			time.Sleep(time.Millisecond)
		}
		if err := os.WriteFile(filepath.Join(dir, "cancelled"), nil, 0o600); err != nil {
			t.Error(err)
		}
	}()
	if err := r.Resume(ctx, &ociruntime.Starting{ID: "one", Pidfd: pidfd}); err != nil {
		t.Errorf("the start of a container that runs: %v", err)
	}
}

// TestResumeOfAContainerThatEnds: the start of the former supervisor completed, and the container ended,
// while this one began its own. The exit code says how it ended.
func TestResumeOfAContainerThatEnds(t *testing.T) {
	r := programOf(t, `case $command in
state) [ -e $dir/started ] && echo '{"status":"stopped"}' || echo '{"status":"created"}';;
start) touch $dir/started; echo "cannot start a stopped container" >&2; exit 1;;
esac`)
	if err := r.all.files("one").make(&state{Program: r.program}, &specs.Spec{}); err != nil {
		t.Fatal(err)
	}
	pidfd, err := sysproc.OpenPidfd(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	defer pidfd.Close()
	if err := r.Resume(t.Context(), &ociruntime.Starting{ID: "one", Pidfd: pidfd}); err != nil {
		t.Errorf("the start of a container that has ended: %v", err)
	}
}

// TestStartThatStartsNothing: a program that ends without an error has not always done what it should. The state
// that it reports counts, where that is one.
func TestStartThatStartsNothing(t *testing.T) {
	pidfd, err := sysproc.OpenPidfd(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	defer pidfd.Close()
	for answer, text := range map[string]string{
		`{"status":"created"}`: "start: it ended without an error and has not started the container",
		`{"status":"running"}`: "", // the host is slow
		`soup`:                 "",
	} {
		r := programOf(t, "[ $command = state ] && echo '"+answer+"'; exit 0")
		if err := r.all.files("one").make(&state{Program: r.program}, &specs.Spec{}); err != nil {
			t.Fatal(err)
		}
		err := r.Start(t.Context(), &ociruntime.Starting{ID: "one", Pidfd: pidfd})
		if text == "" && err != nil || text != "" && !strings.Contains(fmt.Sprint(err), text) {
			t.Errorf("state %s: %v", answer, err)
		}
	}
}

// TestResumeOfGarbage: a start that nothing is known of is an error, which names program and stage.
func TestResumeOfGarbage(t *testing.T) {
	pidfd, err := sysproc.OpenPidfd(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	defer pidfd.Close()
	r := programOf(t, "echo soup")
	if err := r.all.files("one").make(&state{Program: r.program}, &specs.Spec{}); err != nil {
		t.Fatal(err)
	}
	err = r.Resume(t.Context(), &ociruntime.Starting{ID: "one", Pidfd: pidfd})
	if want := `state: its answer is not the state of a container: "soup"`; !strings.Contains(fmt.Sprint(err), want) || !strings.Contains(fmt.Sprint(err), r.program.Path) {
		t.Errorf("%v, want %q", err, want)
	}
}

// TestStartOfADyingInit: the program finds the container stopped before the whole init has ended. That is no fault of
// the program's: kind State.
func TestStartOfADyingInit(t *testing.T) {
	init := exec.Command("sleep", "1000")
	if err := init.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = init.Wait() }() // it was killed
	pidfd, err := sysproc.OpenPidfd(init.Process.Pid)
	if err != nil {
		t.Fatal(err)
	}
	defer pidfd.Close()
	r := programOf(t, "touch $dir/failed; echo cannot start a container that has stopped >&2; exit 1")
	if err := r.all.files("one").make(&state{Program: r.program}, &specs.Spec{}); err != nil {
		t.Fatal(err)
	}
	go func() {
		for failed := filepath.Join(filepath.Dir(r.program.Path), "failed"); t.Context().Err() == nil; time.Sleep(time.Millisecond) {
			if _, err := os.Stat(failed); err == nil {
				break
			}
		}
		time.AfterFunc(50*time.Millisecond, func() { _ = init.Process.Kill() }) // late, as the init's other threads
	}()
	if err := r.Start(t.Context(), &ociruntime.Starting{ID: "one", Pidfd: pidfd}); !errors.Is(err, errs.State) {
		t.Errorf("%v, want kind State", err)
	}
}
