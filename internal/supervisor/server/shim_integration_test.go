//go:build integration

package server_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sync/errgroup"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/require"
	"github.com/berthrun/berth/internal/supervisor"
)

// shimProgram is the shim that tests run: BERTH_SHIM, or the one of Debian's package containerd.
func shimProgram(t *testing.T) string {
	t.Helper()
	require.Binary(t, "runc")
	if program := os.Getenv("BERTH_SHIM"); program != "" {
		return program
	}
	return require.Binary(t, "containerd-shim-runc-v2")
}

// inPod puts a container into a pod.
func inPod(pod string) option {
	return func(s *specs.Spec, _ *supervisor.CreateRequest) {
		s.Annotations = map[string]string{"io.kubernetes.cri.sandbox-id": pod, "io.kubernetes.cri.container-type": "container"}
	}
}

// shims returns the processes of the host's shims.
func (h *host) shims() (pids []int) {
	dirs, _ := filepath.Glob("/proc/[0-9]*/cwd")
	for _, dir := range dirs {
		cwd, err := os.Readlink(dir)
		if err == nil && strings.HasPrefix(cwd, filepath.Join(h.state, "shims")+"/") {
			var pid int
			fmt.Sscanf(dir, "/proc/%d/", &pid)
			pids = append(pids, pid)
		}
	}
	return pids
}

// TestShim: containers that a shim makes have the same output, exits, commands and limits as those of the
// supervisor, and the containers of a pod share a shim.
func TestShim(t *testing.T) {
	h := newHost(t).overShim(shimProgram(t)).keep()
	c := h.create("one", "echo out; echo err >&2; printf last; exit 42", inPod("pod"))
	if c.State != supervisor.Created || c.Pid == 0 || c.Starter != "handler test" {
		t.Errorf("created: %+v", c)
	}
	if _, err := h.client.Start(h.ctx(), "one"); err != nil {
		t.Fatal(err)
	}
	h.wantExit("one", 42)
	if got := h.lines("one", "stdout"); !slices.Equal(got, []string{"out", "last"}) {
		t.Errorf("stdout %q", got)
	}
	if got := h.lines("one", "stderr"); !slices.Equal(got, []string{"err"}) {
		t.Errorf("stderr %q", got)
	}
	_, err := h.client.Create(h.ctx(), h.bundle("noprogram", []string{"/nope"}, inPod("pod")))
	var fault *supervisor.ProgramError
	if !errors.As(err, &fault) || !strings.Contains(fmt.Sprint(err), `handler "test"`) || !strings.Contains(err.Error(), "/nope") {
		t.Errorf("a program that is not there: %v", err)
	}

	h.run("box", "sleep 1000", withUser(1000), inPod("pod"))
	h.run("other", "sleep 1000", inPod("other"))
	if pids := h.shims(); len(pids) != 2 {
		t.Errorf("two pods have the shims %v", pids)
	}
	out, stderr, code, err := h.exec("box", "echo hi; echo no >&2; cat /proc/self/cgroup; exit 9")
	if err != nil || code != 9 || !strings.HasPrefix(out, "hi\n") || stderr != "no\n" {
		t.Errorf("exec: %q %q %d %v", out, stderr, code, err)
	}
	for range 3 { // it ends before the supervisor has opened it
		if _, _, code, err := h.exec("box", "exit 3"); code != 3 || err != nil {
			t.Errorf("a short command: %d %v", code, err)
		}
	}
	if _, _, _, err := h.exec("box", "true"); err != nil {
		t.Error(err)
	}
	missing := execRequest("box", "")
	missing.Process.Args = []string{"/nope"}
	if _, err := h.client.Exec(h.ctx(), missing, supervisor.Streams{}); !errors.Is(err, errs.Invalid) || !strings.Contains(err.Error(), "/nope") {
		t.Errorf("a command that is not there: %v", err)
	}
	var echoed strings.Builder
	code, err = h.client.Exec(h.ctx(), execRequest("box", "cat"), supervisor.Streams{Stdin: strings.NewReader("to the end\n"), Stdout: &echoed})
	if code != 0 || err != nil || echoed.String() != "to the end\n" {
		t.Errorf("input of a command: %q %d %v", echoed.String(), code, err)
	}
	short, stop := context.WithTimeout(h.ctx(), 500*time.Millisecond)
	_, err = h.client.Exec(short, execRequest("box", "sleep 1001 & sleep 1001"), supervisor.Streams{})
	stop()
	if !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a command that takes too long: %v", err)
	}
	h.eventually("end of the command's children", func() bool { return len(h.procs("box")) == 1 })
	limit := int64(64 << 20)
	if err := h.client.Update(h.ctx(), "box", &specs.LinuxResources{Memory: &specs.LinuxMemory{Limit: &limit}}); err != nil {
		t.Errorf("update: %v", err)
	}
	if err := h.client.Signal(h.ctx(), "box", syscall.SIGKILL, false); err != nil {
		t.Error(err)
	}
	h.wantExit("box", 137)
}

// TestShimAcrossCrashes: the supervisor is killed, and then the keeper too. The shim lives on.
func TestShimAcrossCrashes(t *testing.T) {
	h := newHost(t).overShim(shimProgram(t)).keep()
	pod := inPod("pod")
	h.run("runs", `echo before; read x; echo "got $x"; exit 11`, withStdin, pod)
	h.run("tty", `echo before; read x; echo "got $x"; exit 12`, withTTY, pod)
	h.create("waits", `echo late; exit 13`, pod)
	h.waitLine("runs", "before")
	h.waitLine("tty", "before")
	before := h.shims()
	h.crash()
	if _, err := h.client.Start(h.ctx(), "waits"); err != nil {
		t.Errorf("start of an adopted container: %v", err)
	}
	h.wantExit("waits", 13)
	status := h.status()
	killWhole(t, status.Pid, status.Supervisor)
	h.ensure()
	h.wantWords()
	if after := h.shims(); len(before) != 1 || !slices.Equal(before, after) {
		t.Errorf("shims %v before, %v after", before, after)
	}
}

// TestShimDies: the containers of a pod end with its shim, with a true code and the reason. The shims of other
// pods are not affected, and the pod gets another one.
func TestShimDies(t *testing.T) {
	h := newHost(t).overShim(shimProgram(t)).keep()
	h.run("one", "sleep 1000", inPod("pod"))
	before := h.shims()
	h.run("two", "sleep 1000", inPod("pod"))
	h.create("waits", "exit 0", inPod("pod"))
	h.run("other", "sleep 1000", inPod("other"))
	if len(before) != 1 {
		t.Fatalf("shims %v", before)
	}
	ended := make(chan error, 1)
	output, runs := io.Pipe()
	go func() {
		code, err := h.client.Exec(h.ctx(), execRequest("two", "echo runs; sleep 1000"), supervisor.Streams{Stdout: runs})
		if err == nil && code != 137 {
			err = fmt.Errorf("code %d", code)
		}
		ended <- err
	}()
	if _, err := output.Read(make([]byte, 10)); err != nil {
		t.Fatal(err)
	}
	if _, _, _, err := h.exec("two", "true"); err != nil { // the shim has reported the start of the command
		t.Fatal(err)
	}
	if err := syscall.Kill(before[0], syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	for _, id := range []string{"one", "two", "waits"} {
		exit := h.wantExit(id, 137)
		if !strings.Contains(exit.Message, `the shim of handler "test" has ended`) || exit.StartFailed != (id == "waits") {
			t.Errorf("exit of %s: %+v", id, exit)
		}
	}
	if err := <-ended; err != nil {
		t.Errorf("the command: %v", err)
	}
	if _, _, _, err := h.exec("other", "true"); err != nil {
		t.Errorf("another pod: %v", err)
	}
	h.run("again", "sleep 1000", inPod("pod"))
	if _, _, _, err := h.exec("again", "true"); err != nil {
		t.Errorf("the pod's next container: %v", err)
	}
	h.crash() // what is left of the dead shim is no concern of the next supervisor
	if _, _, _, err := h.exec("again", "true"); err != nil {
		t.Errorf("after the death of the supervisor: %v", err)
	}
}

// TestShimVanishes: the programs of the shim and of its OCI runtime are gone. Containers that run have exits, logs
// and an end; new ones, and commands, fail with handler and program.
func TestShimVanishes(t *testing.T) {
	shim, runc := shimProgram(t), require.Binary(t, "runc")
	h := newHost(t)
	own := copyProgram(t, h, runc)
	program := filepath.Join(h.dir, "containerd-shim-runc-v2")
	data, err := os.ReadFile(shim)
	if err == nil {
		err = os.WriteFile(program, data, 0o755)
	}
	if err != nil {
		t.Fatal(err)
	}
	h.overShim(program, "BinaryName="+own).keep()
	h.run("runs", "trap 'exit 5' TERM; echo ready; while :; do sleep 0.05; done", inPod("pod"))
	h.waitLine("runs", "ready")
	for _, path := range []string{program, own} {
		if err := os.Remove(path); err != nil {
			t.Fatal(err)
		}
	}
	_, err = h.client.Create(h.ctx(), h.bundle("new", []string{"true"}, inPod("other")))
	wantVanished(t, err, program)
	if _, _, _, err := h.exec("runs", "true"); err == nil || !strings.Contains(err.Error(), `handler "test"`) {
		t.Errorf("a command without the OCI runtime: %v", err)
	}
	if err := h.client.Signal(h.ctx(), "runs", syscall.SIGTERM, false); err != nil {
		t.Error(err)
	}
	h.wantExit("runs", 5)
	// Its removal, and what is left, are checked at the end of each test.
}

// TestShimLeavesAMount: what a shim has mounted in the bundle of its container keeps its content.
func TestShimLeavesAMount(t *testing.T) {
	h := newHost(t).overShim(shimProgram(t)).keep()
	h.run("one", "exit 0", inPod("pod"))
	h.wantExit("one", 0)
	source, target := t.TempDir(), filepath.Join(h.state, "shims", "containers", "one", "left")
	precious := filepath.Join(source, "precious")
	if err := errors.Join(os.WriteFile(precious, nil, 0o600), os.Mkdir(target, 0o700), syscall.Mount(source, target, "", syscall.MS_BIND, "")); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = syscall.Unmount(target, syscall.MNT_DETACH) })
	if err := h.client.Remove(h.ctx(), "one"); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(precious); err != nil {
		t.Error(err)
	}
	if _, err := os.Lstat(filepath.Dir(target)); err == nil {
		t.Error("the bundle is left")
	}
}

// TestShimTerminal: a terminal of a shim has input, sizes and an end, as others do.
func TestShimTerminal(t *testing.T) {
	h := newHost(t).overShim(shimProgram(t)).keep()
	h.run("box", "sleep 1000")
	request := execRequest("box", "stty -echo; read x; echo got $x; while [ \"$(stty size 2>/dev/null)\" != '33 99' ]; do sleep 0.05; done; stty size; exit 7")
	request.Process.Terminal = true
	sizes := make(chan supervisor.TerminalSize, 1)
	sizes <- supervisor.TerminalSize{Width: 99, Height: 33}
	var out strings.Builder
	code, err := h.client.Exec(h.ctx(), request, supervisor.Streams{Stdin: strings.NewReader("word\n"), Stdout: &out, Resize: sizes})
	if code != 7 || err != nil || out.String() != "got word\r\n33 99\r\n" && !strings.HasSuffix(out.String(), "\r\ngot word\r\n33 99\r\n") {
		t.Errorf("%q, code %d, %v", out.String(), code, err)
	}
}

// TestShimEndsWithItsPod: the shim ends with the last containers of its pod, also when all are removed at once.
func TestShimEndsWithItsPod(t *testing.T) {
	h := newHost(t).overShim(shimProgram(t)).keep()
	var g errgroup.Group
	for i := range 6 {
		h.create(fmt.Sprint("c", i), "exit 0", inPod("pod"))
	}
	for i := range 6 {
		g.Go(func() error { return h.client.Remove(h.ctx(), fmt.Sprint("c", i)) })
	}
	if err := g.Wait(); err != nil {
		t.Error(err)
	}
	if pids := h.shims(); len(pids) > 0 {
		t.Errorf("shims %v are left", pids)
	}
}

// loseAll kills the supervisor and the keeper, and closes the client, which holds descriptors.
func (h *host) loseAll() {
	h.t.Helper()
	if err := h.client.Close(); err != nil {
		h.t.Fatal(err)
	}
	status := h.status()
	killWhole(h.t, status.Pid, status.Supervisor)
}

// beginAgain starts a keeper after loseAll, and another client.
func (h *host) beginAgain() {
	h.t.Helper()
	h.launch("keep", "--state", h.state, "--", "--log-level", "debug")
	client, err := supervisor.Connect(h.ctx(), supervisor.Options{Socket: filepath.Join(h.state, "supervisor.sock"), Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		h.t.Fatal(err)
	}
	h.client = client
}

// TestShimOutputIsFound: when supervisor and keeper die, and no client holds descriptors, the shim has the pipes of
// its containers.
func TestShimOutputIsFound(t *testing.T) {
	h := newHost(t).overShim(shimProgram(t)).keep()
	h.run("runs", `echo before; while [ ! -e /tmp/go ]; do sleep 0.02; done; echo after; exit 9`)
	pid := h.run("ends", `echo before; while [ ! -e /go ]; do sleep 0.02; done; exit 64`)
	h.run("tty", `echo before; while [ ! -e /go ]; do sleep 0.02; done; exit 65`, withTTY)
	for _, id := range []string{"runs", "ends", "tty"} {
		h.waitLine(id, "before")
	}
	h.loseAll()
	if err := os.WriteFile(filepath.Join(h.rootfs, "go"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	h.eventually("end of a container without berth", func() bool { return syscall.Kill(pid, 0) != nil })
	h.beginAgain()
	if _, _, code, err := h.exec("runs", "echo x > /tmp/go"); code != 0 || err != nil {
		t.Errorf("code %d, %v", code, err)
	}
	h.wantExit("runs", 9)
	h.wantExit("ends", 64)
	h.wantExit("tty", 65)
	if got := h.lines("runs", "stdout"); !slices.Equal(got, []string{"before", "after"}) {
		t.Errorf("log %q", got)
	}
}

// programThat is a program that runs a script at its first run with an argument, and another program otherwise.
func (h *host) programThat(argument, script, other string) (program, ran string) {
	h.t.Helper()
	program, ran = filepath.Join(h.dir, "containerd-shim-runc-v2."+argument, "containerd-shim-runc-v2"), filepath.Join(h.dir, "ran-"+argument)
	text := fmt.Sprintf("#!/bin/sh\nfor a in \"$@\"; do [ \"$a\" = %s ] && [ ! -e %s ] && { touch %[2]s; %s; }; done\nexec %s \"$@\"\n", argument, ran, script, other)
	err := os.Mkdir(filepath.Dir(program), 0o755)
	if err == nil {
		err = os.WriteFile(program, []byte(text), 0o755)
	}
	if err != nil {
		h.t.Fatal(err)
	}
	return program, ran
}

func isThere(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// TestShimStartIsCutOff: all but the shim die while it starts a container. The init ends with its terminal, before it
// has executed the program, and the exit does not have the code of the init.
func TestShimStartIsCutOff(t *testing.T) {
	h := newHost(t)
	program, begun := h.programThat("start", "exec "+sleeperOf(), require.Binary(t, "runc"))
	h.overShim(shimProgram(t), "BinaryName="+program).keep()
	init := h.create("tty", "exit 36", withTTY, inPod("pod")).Pid
	ctx := h.ctx()
	go func() { _, _ = h.client.Start(ctx, "tty") }()
	h.eventually("a start that is under way", func() bool { return isThere(begun) })
	h.loseAll()
	h.eventually("end of the init with its terminal", func() bool { return syscall.Kill(init, 0) != nil })
	h.beginAgain()
	if e := h.exit("tty"); !e.StartFailed {
		t.Errorf("exit %+v", e)
	}
	h.assertNoSleeper()
}

// TestShimDeletionIsCutOff: the supervisor dies while the program of a shim deletes a container that was not started. The
// exit is recorded before, and the container is gone after its removal.
func TestShimDeletionIsCutOff(t *testing.T) {
	h := newHost(t)
	program, begun := h.programThat("delete", "cp berth-exit.json "+filepath.Join(h.dir, "exit.json")+"; exec "+sleeperOf(), shimProgram(t))
	h.overShim(program)
	h.handler.IsSandbox = true
	h.keep()
	h.run("pod", "sleep 1000", inPod("pod"))
	h.create("waits", "exit 0", inPod("pod"))
	ctx, stop := context.WithCancel(h.ctx())
	signalled := make(chan struct{})
	go func() {
		defer close(signalled)
		_ = h.client.Signal(ctx, "waits", syscall.SIGKILL, false)
	}()
	h.eventually("a deletion that is under way", func() bool { return isThere(begun) })
	h.eventually("a copy of the record", func() bool { return isThere(filepath.Join(h.dir, "exit.json")) })
	h.crash()
	if e := h.wantExit("waits", 137); !e.StartFailed {
		t.Errorf("exit %+v", e)
	}
	stop()
	<-signalled
	if err := h.client.Remove(h.ctx(), "waits"); err != nil {
		t.Error(err)
	}
	if left := filepath.Join(h.state, "root", "berth", "waits"); isThere(left) {
		t.Errorf("%s is left", left)
	}
	if _, _, code, err := h.exec("pod", "exit 3"); code != 3 || err != nil {
		t.Errorf("the other container: %d %v", code, err)
	}
	h.assertNoSleeper()
}

// TestShimExecRunsOnce: the supervisor dies at many moments of an exec. The shim has the start by then, or opens the streams
// after it has started the process. The command does not run a second time, and one that is reported as lost does not run on.
func TestShimExecRunsOnce(t *testing.T) {
	h := newHost(t).overShim(shimProgram(t)).keep()
	h.run("box", `sleep 1000`)
	began := time.Now()
	if _, _, _, err := h.exec("box", "true"); err != nil {
		t.Fatal(err)
	}
	const points = 6
	span := time.Since(began)
	kept, lost := 0, 0
	for i := range points {
		pid, delay := h.pid(), span*time.Duration(i)/(points-2)
		time.AfterFunc(delay, func() { syscall.Kill(pid, syscall.SIGKILL) })
		var out strings.Builder
		code, err := h.client.Exec(h.ctx(), execRequest("box", "echo begin >> /tmp/runs; sleep 0.15; echo end; exit 66"), supervisor.Streams{Stdout: &out})
		h.eventually("death", func() bool { return syscall.Kill(pid, 0) != nil })
		if left := len(h.procs("box")); left > 1 {
			t.Errorf("killed after %v: %d processes are left", delay, left-1)
		}
		all, _, _, execErr := h.exec("box", "cat /tmp/runs 2>/dev/null; rm -f /tmp/runs")
		if execErr != nil {
			t.Fatal(execErr)
		}
		switch runs := strings.Count(all, "begin"); {
		case err == nil && code == 66 && out.String() == "end\n" && runs == 1:
			kept++
		case errors.Is(err, errs.Unavailable) && runs <= 1:
			lost++
		default:
			t.Errorf("killed after %v: it ran %d times: %d %v %q", delay, runs, code, err, out.String())
		}
	}
	t.Logf("%d execs ran to their end, %d were lost", kept, lost)
	if kept == 0 {
		t.Error("no exec outlived a supervisor")
	}
}

// TestShimInterruptedExec: nothing is left of an exec that is cancelled while the shim starts it.
func TestShimInterruptedExec(t *testing.T) {
	h := newHost(t).overShim(shimProgram(t)).keep()
	h.run("box", `sleep 1000`)
	for after := 5 * time.Millisecond; after < 100*time.Millisecond; after += 8 * time.Millisecond {
		ctx, stop := context.WithTimeout(h.ctx(), after)
		if _, err := h.client.Exec(ctx, execRequest("box", "sleep 1000 & sleep 1000"), supervisor.Streams{Stdout: io.Discard}); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("cancelled after %v: %v", after, err)
		}
		stop()
	}
	for deadline := time.Now().Add(2 * time.Second); len(h.procs("box")) > 1; time.Sleep(20 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("processes of execs are left: %v", h.procs("box"))
		}
	}
	if _, _, code, err := h.exec("box", "exit 3"); code != 3 || err != nil {
		t.Errorf("an exec after them: %d %v", code, err)
	}
}

// TestShimLauncherDies: the launcher of a shim is killed after the shim has begun. The create fails, nothing of the start is
// left, and the pod's next container has a shim.
func TestShimLauncherDies(t *testing.T) {
	h := newHost(t)
	shim, begun, program := shimProgram(t), filepath.Join(h.dir, "begun"), filepath.Join(h.dir, "containerd-shim-runc-v2")
	// It has started the shim, and does not end. A start with parameters that the shim does not read fails before.
	text := fmt.Sprintf("#!/bin/sh\nfor a in \"$@\"; do [ \"$a\" = start ] && [ ! -e %[1]s ] && { %[2]s \"$@\" > /dev/null && touch %[1]s && exec %[3]s; exit 1; }; done\nexec %[2]s \"$@\"\n",
		begun, shim, sleeperOf())
	if err := os.WriteFile(program, []byte(text), 0o755); err != nil {
		t.Fatal(err)
	}
	h.overShim(program).keep()
	created := make(chan error, 1)
	request := h.bundle("one", []string{"/bin/sleep", "1000"}, inPod("pod"))
	go func() {
		_, err := h.client.Create(h.ctx(), request)
		created <- err
	}()
	h.eventually("a shim that has begun", func() bool { return isThere(begun) })
	killed := 0
	for _, pid := range children(t, h.pid()) {
		line, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
		if strings.Contains(string(line), "\x00launch\x00") && syscall.Kill(pid, syscall.SIGKILL) == nil {
			killed++
		}
	}
	if killed != 1 {
		t.Fatalf("%d launchers", killed)
	}
	if err := <-created; !errors.Is(err, errs.Unavailable) || !strings.Contains(err.Error(), "the launcher ended without a result") {
		t.Errorf("a create whose launcher was killed: %v", err)
	}
	if pids := h.shims(); len(pids) > 0 {
		t.Errorf("left: %v", pids)
	}
	h.assertNoSleeper()
	h.run("two", "sleep 1000", inPod("pod"))
	if _, _, code, err := h.exec("two", "exit 3"); code != 3 || err != nil {
		t.Errorf("the pod's next container: %d %v", code, err)
	}
}

// TestShimRelayDies: a relay is killed. Its container or its command ends, with the reason, and others do not.
func TestShimRelayDies(t *testing.T) {
	h := newHost(t).overShim(shimProgram(t)).keep()
	for id, option := range map[string]option{"in": withStdin, "tty": withTTY, "other": withStdin} {
		h.run(id, "echo ready; sleep 1000", option, inPod("pod"))
		h.waitLine(id, "ready")
	}
	killRelay := func(id, exec string) {
		t.Helper()
		records, _ := filepath.Glob(filepath.Join(h.state, "shims", "containers", id, "berth-relay-"+exec+".json"))
		var found struct{ Pid int }
		if len(records) == 1 {
			data, err := os.ReadFile(records[0])
			if err = errors.Join(err, json.Unmarshal(data, &found)); err != nil {
				t.Fatal(err)
			}
		}
		if found.Pid <= 1 || syscall.Kill(found.Pid, syscall.SIGKILL) != nil {
			t.Fatalf("relays of %s: %q", id, records)
		}
	}
	h.crash() // the next supervisor watches it, too
	for _, id := range []string{"in", "tty"} {
		killRelay(id, "")
		if exit := h.wantExit(id, 137); !strings.Contains(exit.Message, "berth-supervisor shim-relay") || exit.StartFailed {
			t.Errorf("exit of %s: %+v", id, exit)
		}
	}
	input, keep := io.Pipe()
	defer keep.Close()
	said, say := io.Pipe()
	ended := make(chan error, 1)
	go func() {
		code, err := h.client.Exec(h.ctx(), execRequest("other", "echo ready; sleep 1000"), supervisor.Streams{Stdin: input, Stdout: say})
		if err == nil && code != 137 {
			err = fmt.Errorf("code %d", code)
		}
		ended <- err
	}()
	if _, err := said.Read(make([]byte, 10)); err != nil {
		t.Fatal(err)
	}
	killRelay("other", "?*")
	if err := <-ended; err != nil {
		t.Errorf("the command: %v", err)
	}
	var echoed strings.Builder
	code, err := h.client.Exec(h.ctx(), execRequest("other", "cat"), supervisor.Streams{Stdin: strings.NewReader("on\n"), Stdout: &echoed})
	if code != 0 || err != nil || echoed.String() != "on\n" {
		t.Errorf("another command: %q %d %v", echoed.String(), code, err)
	}
}
