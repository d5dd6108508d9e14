//go:build integration

package server_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/require"
	"github.com/berthrun/berth/internal/supervisor"
	"github.com/opencontainers/runtime-spec/specs-go"
)

func TestLifecycleOfAContainer(t *testing.T) {
	h := newHost(t).keep()
	c := h.create("one", "echo out; echo err >&2; printf last; exit 42")
	if c.State != supervisor.Created || c.Pid == 0 {
		t.Errorf("created: %+v", c)
	}
	if _, err := h.client.Create(h.ctx(), h.bundle("one", []string{"true"})); !errors.Is(err, errs.Exists) {
		t.Errorf("second create: %v", err)
	}
	pid, err := h.client.Start(h.ctx(), "one")
	if err != nil || pid != c.Pid {
		t.Fatalf("start: %d %v", pid, err)
	}
	exit := h.wantExit("one", 42)
	if exit.StartFailed || exit.OOMKilled || time.Since(exit.At) > patience {
		t.Errorf("exit %+v", exit)
	}
	if got := h.lines("one", "stdout"); !slices.Equal(got, []string{"out", "last"}) {
		t.Errorf("stdout %q", got)
	}
	if got := h.lines("one", "stderr"); !slices.Equal(got, []string{"err"}) {
		t.Errorf("stderr %q", got)
	}
	if again := h.exit("one"); again != exit {
		t.Errorf("exit told again: %+v, first %+v", again, exit)
	}
	list, err := h.list()
	if err != nil || len(list) != 1 || list[0].State != supervisor.Exited || *list[0].Exit != exit {
		t.Errorf("list %+v %v", list, err)
	}
	wantKind(t, h.client.Signal(h.ctx(), "one", syscall.SIGTERM, false), errs.NotFound)
	for range 2 {
		if err := h.client.Remove(h.ctx(), "one"); err != nil {
			t.Errorf("remove: %v", err)
		}
	}
	wantKind(t, h.client.Signal(h.ctx(), "one", syscall.SIGTERM, false), errs.NotFound)
}

func TestSignals(t *testing.T) {
	h := newHost(t).serve()
	h.run("term", `trap 'exit 3' TERM; echo ready; while :; do sleep 0.01; done`)
	h.waitLine("term", "ready")
	if err := h.client.Signal(h.ctx(), "term", syscall.SIGTERM, false); err != nil {
		t.Fatal(err)
	}
	h.wantExit("term", 3)
	h.run("kill", `sleep 1000`)
	if err := h.client.Signal(h.ctx(), "kill", syscall.SIGKILL, true); err != nil {
		t.Fatal(err)
	}
	h.wantExit("kill", 137)
}

func TestErrorsOfCreateLeaveNothing(t *testing.T) {
	h := newHost(t).serve()
	for name, tc := range map[string]struct {
		args []string
		opt  option
		kind error
		text string
	}{
		"noprogram": {[]string{"/nope"}, nil, errs.Invalid, "/nope"},
		"nopath":    {[]string{"nope"}, nil, errs.Invalid, "executable file not found in $PATH"},
		"directory": {[]string{"/proc"}, nil, errs.Invalid, "is a directory"},
		"norootfs": {[]string{"true"}, func(s *specs.Spec, _ *supervisor.CreateRequest) {
			s.Root.Path = "/nonexistent"
		}, errs.Invalid, "invalid rootfs"},
		"nosource": {[]string{"true"}, func(s *specs.Spec, _ *supervisor.CreateRequest) {
			s.Mounts = append(s.Mounts, specs.Mount{Destination: "/x", Type: "bind", Source: "/no/such", Options: []string{"bind"}})
		}, errs.Invalid, "/no/such"},
		"relative": {[]string{"true"}, func(s *specs.Spec, _ *supervisor.CreateRequest) {
			s.Mounts = append(s.Mounts, specs.Mount{Destination: "/x", Type: "bind", Source: "rel", Options: []string{"bind"}})
		}, errs.Invalid, "relative"},
		"nonamespace": {[]string{"true"}, func(s *specs.Spec, _ *supervisor.CreateRequest) {
			s.Linux.Namespaces = append(s.Linux.Namespaces, specs.LinuxNamespace{Type: "network", Path: "/run/netns/gone"})
		}, errs.Invalid, "/run/netns/gone"},
		"nocgroup": {[]string{"true"}, func(s *specs.Spec, _ *supervisor.CreateRequest) {
			s.Linux.CgroupsPath = "/somebody"
		}, errs.Invalid, "cgroupsPath"},
		"memory": {[]string{"true"}, func(s *specs.Spec, _ *supervisor.CreateRequest) {
			s.Linux.Resources.Memory = &specs.LinuxMemory{Limit: new(int64(262144))}
		}, errs.Invalid, "memory"},
		"cpuset": {[]string{"true"}, func(s *specs.Spec, _ *supervisor.CreateRequest) {
			s.Linux.Resources.CPU = &specs.LinuxCPU{Cpus: "4000"}
		}, errs.Invalid, ""},
		"logpath": {[]string{"true"}, func(_ *specs.Spec, r *supervisor.CreateRequest) {
			r.LogPath = "../out.log"
		}, errs.Invalid, ""},
		"logdir": {[]string{"true"}, func(_ *specs.Spec, r *supervisor.CreateRequest) {
			r.LogDir = "/no/such/dir"
		}, errs.Unavailable, ""},
	} {
		t.Run(name, func(t *testing.T) {
			var options []option
			if tc.opt != nil {
				options = append(options, tc.opt)
			}
			_, err := h.client.Create(h.ctx(), h.bundle(name, tc.args, options...))
			if !errors.Is(err, tc.kind) || !strings.Contains(fmt.Sprint(err), tc.text) {
				t.Errorf("error %v, want kind %v with %q", err, tc.kind, tc.text)
			}
			list, err := h.client.List(h.ctx())
			if err != nil || len(list) != 0 {
				t.Errorf("left: %+v %v", list, err)
			}
		})
	}
	h.assertNothingLeft()
}

func TestExec(t *testing.T) {
	h := newHost(t).keep()
	h.run("box", `sleep 1000`)
	out, stderr, code, err := h.exec("box", "echo hi; echo no >&2; exit 9")
	if err != nil || out != "hi\n" || stderr != "no\n" || code != 9 {
		t.Errorf("%q %q %d %v", out, stderr, code, err)
	}
	// A child that keeps the output open does not delay the end.
	before := time.Now()
	out, _, code, err = h.exec("box", "sleep 100 & echo started")
	if err != nil || code != 0 || out != "started\n" || time.Since(before) > patience/2 {
		t.Errorf("%q %d %v after %v", out, code, err, time.Since(before))
	}
	if _, _, code, err := h.exec("box", "kill -9 $$"); code != 137 || err != nil {
		t.Errorf("killed: %d %v", code, err)
	}
	var stdout bytes.Buffer
	input := strings.NewReader(strings.Repeat("0123456789abcdef", 100_000))
	code, err = h.client.Exec(h.ctx(), execRequest("box", "cat"), supervisor.Streams{Stdin: input, Stdout: &stdout})
	if err != nil || code != 0 || stdout.Len() != 1_600_000 {
		t.Errorf("cat: %d bytes, %d %v", stdout.Len(), code, err)
	}
	bad := execRequest("box", "")
	bad.Process = &specs.Process{Args: []string{"/nope"}, Cwd: "/"}
	_, err = h.client.Exec(h.ctx(), bad, supervisor.Streams{})
	wantKind(t, err, errs.Invalid)
	_, _, _, err = h.exec("nobody", "true")
	wantKind(t, err, errs.NotFound)
	h.create("waiting", "true")
	_, _, _, err = h.exec("waiting", "true")
	wantKind(t, err, errs.State)
	// The race detector needs a program that is not linked statically.
	if os.Getenv("BERTH_TEST_RACE") == "" && strings.Contains(h.log(), "libcontainer starts an exec") {
		t.Errorf("berth's own child has not started the execs: %s", h.log())
	}
}

func TestCancelledExecKillsAllProcesses(t *testing.T) {
	h := newHost(t).serve()
	h.skipInGVisor(loneCommands)
	h.run("box", `sleep 1000`)
	ctx, stop := context.WithCancel(t.Context())
	r, w := io.Pipe()
	ended := make(chan error, 1)
	go func() {
		// A session of its own, in the background. No signal to a process group reaches it.
		_, err := h.client.Exec(ctx, execRequest("box", "sleep 4711 & setsid sleep 4712 & echo ready; wait"), supervisor.Streams{Stdout: w})
		ended <- err
	}()
	buf := make([]byte, 6)
	if _, err := io.ReadFull(r, buf); err != nil || string(buf) != "ready\n" {
		t.Fatalf("%q %v", buf, err)
	}
	stop()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled exec: %v", err)
	}
	out, _, _, err := h.exec("box", "cat /proc/[0-9]*/cmdline | tr '\\000' ' '")
	if err != nil || strings.Contains(out, "471") {
		t.Errorf("still running: %q %v", out, err)
	}
}

func TestTerminal(t *testing.T) {
	h := newHost(t).keep()
	h.run("tty", `stty size; echo on-tty; read x; echo "got $x"; stty size; exit 5`, withTTY)
	h.waitLine("tty", "on-tty")
	r, w := io.Pipe()
	var out bytes.Buffer
	size := make(chan supervisor.TerminalSize, 1)
	size <- supervisor.TerminalSize{Width: 101, Height: 33}
	attached := make(chan error, 1)
	go func() {
		attached <- h.client.Attach(h.ctx(), "tty", supervisor.Streams{Stdin: r, Stdout: &out, Resize: size})
	}()
	h.eventually("resize", func() bool { return len(size) == 0 })
	fmt.Fprintln(w, "word")
	h.wantExit("tty", 5)
	if err := <-attached; err != nil {
		t.Errorf("attach: %v", err)
	}
	if !strings.Contains(out.String(), "got word") {
		t.Errorf("attached saw %q", out.String())
	}
	got := h.lines("tty", "stdout")
	if !slices.Contains(got, "got word\r") || !slices.Contains(got, "33 101\r") {
		t.Errorf("log %q", got)
	}
}

func TestExecTerminal(t *testing.T) {
	h := newHost(t).serve()
	h.run("box", `sleep 1000`)
	req := execRequest("box", "")
	req.Process.Args = []string{"/bin/sh", "-c", "stty size; read x; echo got $x; exit 4"}
	req.Process.Terminal, req.Process.ConsoleSize = true, &specs.Box{Height: 20, Width: 50}
	var out bytes.Buffer
	code, err := h.client.Exec(h.ctx(), req, supervisor.Streams{Stdin: strings.NewReader("word\n"), Stdout: &out})
	if err != nil || code != 4 {
		t.Fatalf("%d %v %q", code, err, out.String())
	}
	// gVisor and crun may begin a command before its terminal has a size.
	late := h.inGVisor() || h.handler != nil && filepath.Base(h.handler.Path) == "crun"
	if !strings.Contains(out.String(), "20 50\r\n") && !late || !strings.Contains(out.String(), "got word\r\n") {
		t.Errorf("output %q", out.String())
	}
}

func TestAttachAndStdinOnce(t *testing.T) {
	h := newHost(t).serve()
	h.run("cat", `echo ready; cat; exit 6`, withStdinOnce)
	h.waitLine("cat", "ready")
	var out bytes.Buffer
	err := h.client.Attach(h.ctx(), "cat", supervisor.Streams{Stdin: strings.NewReader("a\nb\n"), Stdout: &out})
	if err != nil || out.String() != "a\nb\n" {
		t.Errorf("attach: %q %v", out.String(), err)
	}
	h.wantExit("cat", 6)
	if got := h.lines("cat", "stdout"); !slices.Equal(got, []string{"ready", "a", "b"}) {
		t.Errorf("log %q", got)
	}
	h.run("devnull", `cat; exit 8`)
	h.wantExit("devnull", 8)
}

func TestStdinStaysOpen(t *testing.T) {
	h := newHost(t).serve()
	h.run("cat", `echo ready; while read x; do echo "got $x"; [ "$x" = end ] && exit 6; done; exit 7`, withStdin)
	for _, word := range []string{"one", "end"} {
		ctx, stop := context.WithCancel(h.ctx())
		r, w := io.Pipe()
		done := make(chan error, 1)
		go func() { done <- h.client.Attach(ctx, "cat", supervisor.Streams{Stdin: r}) }()
		fmt.Fprintln(w, word)
		h.waitLine("cat", "got "+word)
		w.Close()
		stop()
		<-done
	}
	h.wantExit("cat", 6)
}

func TestReopenLog(t *testing.T) {
	h := newHost(t).serve()
	h.run("log", `echo one; read x; echo two; sleep 1000`, withStdin)
	h.waitLine("log", "one")
	path := filepath.Join(h.dir, "logs/log.log")
	if err := os.Rename(path, path+".1"); err != nil {
		t.Fatal(err)
	}
	if err := h.client.ReopenLog(h.ctx(), "log"); err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(h.ctx())
	defer stop()
	go h.client.Attach(ctx, "log", supervisor.Streams{Stdin: strings.NewReader("x\n")})
	h.waitLine("log", "two")
	if got := h.lines("log", "stdout"); !slices.Equal(got, []string{"two"}) {
		t.Errorf("new log %q", got)
	}
}

func TestRemainingProcessesWithoutPIDNamespaceAreKilled(t *testing.T) {
	h := newHost(t).serve()
	c := h.create("shared", `setsid sleep 4713 & echo started; exit 2`, withoutPIDNamespace)
	if _, err := h.client.Start(h.ctx(), "shared"); err != nil {
		t.Fatal(err)
	}
	h.wantExit("shared", 2)
	for _, dir := range c.CgroupPaths {
		procs, err := os.ReadFile(filepath.Join(dir, "cgroup.procs"))
		if err != nil || len(procs) > 0 {
			t.Errorf("%s: %q %v", dir, procs, err)
		}
	}
}

func TestOOMKill(t *testing.T) {
	h := newHost(t).serve()
	h.skipInGVisor(ownLimits)
	h.run("oom", `x=a; while :; do x=$x$x; done`, func(s *specs.Spec, _ *supervisor.CreateRequest) {
		s.Linux.Resources.Memory = &specs.LinuxMemory{Limit: new(int64(20 << 20)), Swap: new(int64(20 << 20))}
	})
	if exit := h.wantExit("oom", 137); !exit.OOMKilled {
		t.Errorf("exit %+v", exit)
	}
}

func TestUpdate(t *testing.T) {
	h := newHost(t).serve()
	h.skipInGVisor(ownLimits)
	c := h.create("box", `sleep 1000`, func(s *specs.Spec, _ *supervisor.CreateRequest) {
		s.Linux.Resources.Memory = &specs.LinuxMemory{Limit: new(int64(64 << 20))}
		s.Linux.Resources.CPU = &specs.LinuxCPU{Shares: new(uint64(512))}
	})
	if _, err := h.client.Start(h.ctx(), "box"); err != nil {
		t.Fatal(err)
	}
	if err := h.client.Update(h.ctx(), "box", &specs.LinuxResources{Memory: &specs.LinuxMemory{Limit: new(int64(96 << 20))}}); err != nil {
		t.Fatal(err)
	}
	read := func(controller, file string) string {
		data, err := os.ReadFile(filepath.Join(c.CgroupPaths[controller], file))
		if err != nil {
			t.Error(err)
		}
		return strings.TrimSpace(string(data))
	}
	if _, v1 := c.CgroupPaths["memory"]; v1 {
		if got := read("memory", "memory.limit_in_bytes"); got != fmt.Sprint(96<<20) {
			t.Errorf("memory limit %s", got)
		}
		if got := read("cpu", "cpu.shares"); got != "512" {
			t.Errorf("cpu shares changed to %s", got)
		}
	} else if got := read("", "memory.max"); got != fmt.Sprint(96<<20) {
		t.Errorf("memory.max %s", got)
	}
}

func TestRuncSeesOurContainers(t *testing.T) {
	h := newHost(t).serve()
	runc := require.Binary(t, "runc")
	h.run("seen", `sleep 1000`)
	out, err := exec.Command(runc, "--root", filepath.Join(h.state, "runc"), "list").CombinedOutput()
	if err != nil || !strings.Contains(string(out), "seen") || !strings.Contains(string(out), "running") || !strings.Contains(string(out), h.dir+"/bundles/seen") {
		t.Errorf("runc list: %v\n%s", err, out)
	}
	out, err = exec.Command(runc, "--root", filepath.Join(h.state, "runc"), "state", "seen").CombinedOutput()
	if err != nil || !strings.Contains(string(out), `"status": "running"`) {
		t.Errorf("runc state: %v\n%s", err, out)
	}
}
