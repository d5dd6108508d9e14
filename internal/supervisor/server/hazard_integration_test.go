//go:build integration

package server_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/require"
	"github.com/berthrun/berth/internal/supervisor"
	"github.com/berthrun/berth/internal/supervisor/wire"
)

// TestNoDescriptorLeaks lists the descriptors of an init while a hundred other containers run.
func TestNoDescriptorLeaks(t *testing.T) {
	h := newHost(t).keep()
	h.skipInGVisor(hostProcesses)
	var g errgroup.Group
	g.SetLimit(4)
	for i := range 100 {
		id := fmt.Sprint("other", i)
		var options []option
		switch i % 3 {
		case 0:
			options = append(options, withTTY)
		case 1:
			options = append(options, withStdin)
		}
		req := h.bundle(id, []string{"/bin/sleep", "1000"}, options...)
		g.Go(func() error {
			if _, err := h.client.Create(h.ctx(), req); err != nil {
				return err
			}
			_, err := h.client.Start(h.ctx(), id)
			return err
		})
	}
	if err := g.Wait(); err != nil {
		t.Fatal(err)
	}
	h.run("probe", `ls /proc/self/fd | grep -v '^[012]$' | wc -l; ls -l /proc/1/fd; sleep 1000`, withStdin)
	for id, pid := range map[string]int{"probe": h.run("plain", "sleep 1000"), "terminal": h.run("terminal", "sleep 1000", withTTY)} {
		h.eventually("execve of "+id, func() bool {
			name, err := os.ReadFile(fmt.Sprintf("/proc/%d/comm", pid))
			return err == nil && !strings.HasPrefix(string(name), "berth")
		})
		entries, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", pid))
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range entries {
			if n, _ := strconv.Atoi(e.Name()); n > 2 && n != 10 { // busybox sh keeps its tty as 10
				target, _ := os.Readlink(fmt.Sprintf("/proc/%d/fd/%s", pid, e.Name()))
				t.Errorf("%s has descriptor %s: %s", id, e.Name(), target)
			}
		}
	}
	out, _, _, err := h.exec("other1", "ls -l /proc/self/fd")
	if err != nil || strings.Count(out, "\n") != 5 { // the total, and the directory that ls reads
		t.Errorf("an exec has %q %v", out, err)
	}
	info, err := h.client.Info(h.ctx())
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("supervisor: %d descriptors with 103 containers, %s", info.Descriptors, memory(t, info.Pid))
	t.Logf("keeper: %s", memory(t, info.KeeperPid))
	h.crash()
	pid := h.pid()
	t.Logf("after adoption: %s", memory(t, pid))
}

// memory returns the memory of a process.
func memory(t *testing.T, pid int) string {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/smaps_rollup", pid))
	if err != nil {
		t.Fatal(err)
	}
	var all []string
	for line := range strings.Lines(string(data)) {
		if strings.HasPrefix(line, "Pss:") || strings.HasPrefix(line, "Pss_Anon:") {
			all = append(all, strings.Join(strings.Fields(line), " "))
		}
	}
	return strings.Join(all, ", ")
}

func TestCreateTwiceAtOnce(t *testing.T) {
	h := newHost(t).serve()
	req := h.bundle("same", []string{"/bin/sleep", "1000"})
	var won, exists int
	results := make(chan error)
	for range 8 {
		go func() {
			_, err := h.client.Create(h.ctx(), req)
			results <- err
		}()
	}
	for range 8 {
		switch err := <-results; {
		case err == nil:
			won++
		case errors.Is(err, errs.Exists):
			exists++
		default:
			t.Error(err)
		}
	}
	if won != 1 || exists != 7 {
		t.Errorf("%d won, %d exist", won, exists)
	}
}

// TestPausedContainerBlocksNoOtherCall: an exec into a paused container is refused and does not
// hang. A kill reaches the container.
func TestPausedContainerBlocksNoOtherCall(t *testing.T) {
	h := newHost(t).serve()
	c := h.create("paused", "sleep 1000")
	if _, err := h.client.Start(h.ctx(), "paused"); err != nil {
		t.Fatal(err)
	}
	file, frozen, thawed := filepath.Join(c.CgroupPaths["freezer"], "freezer.state"), "FROZEN", "THAWED"
	if c.CgroupPaths["freezer"] == "" {
		file, frozen, thawed = filepath.Join(c.CgroupPaths[""], "cgroup.freeze"), "1", "0"
	}
	freeze := func(value string) {
		if err := os.WriteFile(file, []byte(value), 0); err != nil {
			t.Fatal(err)
		}
	}
	freeze(frozen)
	before := time.Now()
	_, _, _, err := h.exec("paused", "true")
	wantKind(t, err, errs.State)
	if took := time.Since(before); took > patience/2 {
		t.Errorf("refusing took %v", took)
	}
	if _, err := h.client.List(h.ctx()); err != nil {
		t.Error(err)
	}
	freeze(thawed)
	if _, _, code, err := h.exec("paused", "exit 3"); code != 3 || err != nil {
		t.Errorf("exec after the thaw: %d %v", code, err)
	}
	freeze(frozen)
	if err := h.client.Signal(h.ctx(), "paused", syscall.SIGKILL, false); err != nil {
		t.Fatal(err)
	}
	h.wantExit("paused", 137)
	h.run("again", "sleep 1000")
	if err := os.WriteFile(strings.Replace(file, "/paused/", "/again/", 1), []byte(frozen), 0); err != nil {
		t.Fatal(err)
	}
	if err := h.client.Remove(h.ctx(), "again"); err != nil {
		t.Errorf("remove of a paused container: %v", err)
	}
}

// TestHangingCreateEnds: a create whose hook hangs ends, and other containers continue meanwhile.
func TestHangingCreateEnds(t *testing.T) {
	h := newHost(t).serve()
	req := h.bundle("hangs", []string{"/bin/true"}, func(s *specs.Spec, r *supervisor.CreateRequest) {
		r.StartTimeout = 500 * time.Millisecond
		s.Hooks = &specs.Hooks{CreateRuntime: []specs.Hook{{Path: "/bin/sleep", Args: []string{"sleep", "4714"}}}}
	})
	ended := make(chan error, 1)
	before := time.Now()
	go func() {
		_, err := h.client.Create(h.ctx(), req)
		ended <- err
	}()
	h.run("other", "exit 5")
	h.wantExit("other", 5)
	err := <-ended
	wantKind(t, err, errs.Deadline)
	if took := time.Since(before); took > 10*time.Second {
		t.Errorf("it took %v", took)
	}
	list, err := h.client.List(h.ctx())
	if err != nil || len(list) != 1 {
		t.Errorf("left: %+v %v", list, err)
	}
}

func TestCancelledCreateLeavesNothing(t *testing.T) {
	h := newHost(t).serve()
	for i := range 20 {
		ctx, stop := context.WithTimeout(t.Context(), time.Duration(i)*time.Millisecond)
		id := fmt.Sprint("c", i)
		_, err := h.client.Create(ctx, h.bundle(id, []string{"/bin/sleep", "1000"}))
		stop()
		if err != nil && !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("after %d ms: %v", i, err)
		}
		if err := h.client.Remove(h.ctx(), id); err != nil {
			t.Error(err)
		}
	}
	if !h.inGVisor() { // which has the root container until the end
		h.assertNothingLeft()
	}
}

// TestNothingIsInherited starts a supervisor with ignored signals, low limits and an unusual umask.
// Containers inherit none of it.
func TestNothingIsInherited(t *testing.T) {
	h := newHost(t)
	// SIGINT and SIGTERM ignored, SIGUSR1 blocked by env(1), files limited.
	cmd := exec.Command("/bin/sh", "-c", `trap '' INT HUP TERM USR2; ulimit -n 5000; umask 077; exec "$@"`,
		"sh", binary, "serve", "--state", h.state, "--log-level", "debug")
	h.launchCmd(cmd)
	h.connect()
	h.run("clean", `grep -E '^Sig(Ign|Blk)' /proc/self/status; cat /proc/self/oom_score_adj; ulimit -n; ulimit -Hn; umask; sleep 1000`)
	h.waitLine("clean", "0022")
	lines := h.lines("clean", "stdout")
	want := []string{"SigBlk:\t0000000000000000", "SigIgn:\t0000000000000000", "0", "1024", "5000", "0022"}
	if canRaise() {
		want[4] = "524288"
	}
	if !slices.Equal(lines, want) {
		t.Errorf("container has %q, want %q", lines, want)
	}
}

func canRaise() bool {
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_CORE, &limit); err != nil {
		return false
	}
	data, _ := os.ReadFile("/proc/self/status")
	for line := range strings.Lines(string(data)) {
		if hex, ok := strings.CutPrefix(line, "CapEff:\t"); ok {
			mask, err := strconv.ParseUint(strings.TrimSpace(hex), 16, 64)
			return err == nil && mask&(1<<unix.CAP_SYS_RESOURCE) != 0
		}
	}
	return false
}

// TestForbiddenIsClamped requests limits and scores that this host may not grant.
func TestForbiddenIsClamped(t *testing.T) {
	h := newHost(t).serve()
	h.run("greedy", `ulimit -Hn; cat /proc/self/oom_score_adj; echo done; sleep 1000`, func(s *specs.Spec, _ *supervisor.CreateRequest) {
		s.Process.Rlimits = []specs.POSIXRlimit{{Type: "RLIMIT_NOFILE", Hard: 1 << 19, Soft: 1 << 19}, {Type: "RLIMIT_NPROC", Hard: 1 << 22, Soft: 1 << 22}}
		s.Process.OOMScoreAdj = new(-998)
		s.Process.Capabilities.Bounding = append(s.Process.Capabilities.Bounding, "CAP_SYS_RESOURCE")
		s.Process.Capabilities.Permitted = append(s.Process.Capabilities.Permitted, "CAP_SYS_RESOURCE")
	})
	h.waitLine("greedy", "done")
	info, err := h.client.Info(h.ctx())
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("warnings: %q", info.Warnings)
	if canRaise() {
		if len(info.Warnings) > 0 {
			t.Errorf("warnings on a host that allows all: %q", info.Warnings)
		}
		return
	}
	if len(info.Warnings) == 0 {
		t.Error("nothing was said of what was clamped")
	}
	h.run("again", `exit 1`, func(s *specs.Spec, _ *supervisor.CreateRequest) { s.Process.OOMScoreAdj = new(-998) })
	h.wantExit("again", 1)
	if more, err := h.client.Info(h.ctx()); err != nil || len(more.Warnings) != len(info.Warnings) {
		t.Errorf("warned again: %q %v", more.Warnings, err)
	}
}

func TestFullDescriptorTableRefusesNewContainers(t *testing.T) {
	h := newHost(t).serve()
	h.run("first", "sleep 1000")
	pid := h.pid()
	limit := unix.Rlimit{Cur: 100, Max: 5000}
	if err := unix.Prlimit(pid, unix.RLIMIT_NOFILE, &limit, nil); err != nil {
		t.Fatal(err)
	}
	var err error
	for i := 0; err == nil && i < 40; i++ {
		_, err = h.client.Create(h.ctx(), h.bundle(fmt.Sprint("more", i), []string{"/bin/sleep", "1000"}))
	}
	wantKind(t, err, errs.Exhausted)
	if _, _, code, err := h.exec("first", "exit 2"); code != 2 || err != nil {
		t.Errorf("exec in one that runs: %d %v", code, err)
	}
	limit.Cur = 5000
	if err := unix.Prlimit(pid, unix.RLIMIT_NOFILE, &limit, nil); err != nil {
		t.Fatal(err)
	}
	h.run("later", "sleep 1000")
}

func TestDamagedRecordDoesNotStopAdoption(t *testing.T) {
	h := newHost(t).keep()
	h.run("good", "sleep 1000")
	bad := h.run("bad", "sleep 1000")
	path := filepath.Join(h.state, "supervisor/bad/record.json")
	if err := os.WriteFile(path, []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	h.crash()
	if _, _, code, err := h.exec("good", "exit 4"); code != 4 || err != nil {
		t.Errorf("exec in the good one: %d %v", code, err)
	}
	info, err := h.client.Info(h.ctx())
	if err != nil || len(info.Warnings) == 0 || !strings.Contains(strings.Join(info.Warnings, "\n"), "quarantine") {
		t.Errorf("warnings %+v %v", info, err)
	}
	list, err := h.client.List(h.ctx())
	if err != nil || len(list) != 2 || list[0].ID != "bad" || list[0].State != supervisor.Broken {
		t.Errorf("list %+v %v", list, err)
	}
	if err := h.client.Remove(h.ctx(), "bad"); err != nil {
		t.Error(err)
	}
	h.eventually("end of the bad one", func() bool { return syscall.Kill(bad, 0) != nil })
}

func TestNewerClientIsRefused(t *testing.T) {
	h := newHost(t).serve()
	for protocol, kind := range map[int]error{
		supervisor.ProtocolVersion:     nil,
		supervisor.ProtocolVersion + 1: nil,
		supervisor.ProtocolVersion + 2: errs.Unsupported,
	} {
		sock, err := net.Dial("unix", filepath.Join(h.state, "supervisor.sock"))
		if err != nil {
			t.Fatal(err)
		}
		conn := wire.New(sock.(*net.UnixConn), nobody{})
		go conn.Serve(t.Context())
		_, err = conn.Call(h.ctx(), supervisor.MethodInfo, struct{}{}, nil)
		wantKind(t, err, errs.Invalid) // before hello
		_, err = conn.Call(h.ctx(), supervisor.MethodHello, supervisor.Hello{Protocol: protocol}, nil)
		if !errors.Is(err, kind) {
			t.Errorf("protocol %d: %v", protocol, err)
		}
		conn.Close()
	}
}

type nobody struct{}

func (nobody) HandleCall(context.Context, *wire.Request) (*wire.Reply, error) { return nil, nil }
func (nobody) HandleNote(*wire.Request)                                       {}

func TestOneSupervisorAtATime(t *testing.T) {
	h := newHost(t).serve()
	out, err := exec.Command(binary, "serve", "--state", h.state).CombinedOutput()
	if err == nil || !strings.Contains(string(out), "another supervisor") {
		t.Errorf("second supervisor: %v %s", err, out)
	}
	h.run("still", "exit 3")
	h.wantExit("still", 3)
}

func TestRuncMayChangeContainers(t *testing.T) {
	h := newHost(t).serve()
	runc := require.Binary(t, "runc")
	h.run("taken", "sleep 1000")
	out, err := exec.Command(runc, "--root", filepath.Join(h.state, "runc"), "delete", "-f", "taken").CombinedOutput()
	if err != nil {
		t.Fatalf("%v %s", err, out)
	}
	h.wantExit("taken", 137)
	if err := h.client.Remove(h.ctx(), "taken"); err != nil {
		t.Error(err)
	}
}

// TestOutputFromAnotherUser: the program's user can open /dev/stdout.
func TestOutputFromAnotherUser(t *testing.T) {
	h := newHost(t).serve()
	h.run("user", `echo reopened > /proc/self/fd/1; echo too > /proc/self/fd/2`, withUser(1000))
	h.wantExit("user", 0)
	if got := h.lines("user", "stdout"); !slices.Equal(got, []string{"reopened"}) {
		t.Errorf("stdout %q", got)
	}
	if got := h.lines("user", "stderr"); !slices.Equal(got, []string{"too"}) {
		t.Errorf("stderr %q", got)
	}
}

// TestRemoveOfDeepCgroups: a container that may write its cgroup nests others until their path is too long for a system call.
func TestRemoveOfDeepCgroups(t *testing.T) {
	h := newHost(t).serve()
	h.run("box", `sleep 1000`)
	group := fmt.Sprintf("/sys/fs/cgroup/pids/%s/box", h.name)
	if _, err := os.Stat(group); err != nil {
		group = fmt.Sprintf("/sys/fs/cgroup/%s/box", h.name)
	}
	dir, err := os.OpenRoot(group)
	if err != nil {
		t.Fatal(err)
	}
	for range 20 {
		name := strings.Repeat("x", 250)
		if err := dir.Mkdir(name, 0o755); err != nil {
			t.Fatal(err)
		}
		deeper, err := dir.OpenRoot(name)
		dir.Close()
		if err != nil {
			t.Fatal(err)
		}
		dir = deeper
	}
	dir.Close()
	if err := h.client.Signal(h.ctx(), "box", syscall.SIGKILL, true); err != nil {
		t.Error(err)
	}
	h.wantExit("box", 137)
	if err := h.client.Remove(h.ctx(), "box"); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(group); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the cgroup is there: %v", err)
	}
}

// TestDaemonOffersDescriptorsThatAllOthersLost: keeper and supervisor die, and a container exits.
// Only the client has its last output and its exit.
func TestDaemonOffersDescriptorsThatAllOthersLost(t *testing.T) {
	h := newHost(t).keep()
	h.run("ends", `echo ready; read x; echo last words; exit 33`, withStdin)
	h.run("lives", `echo ready; read x; echo "got $x"; exit 34`, withTTY)
	h.waitLine("ends", "ready")
	h.waitLine("lives", "ready")
	s := h.status()
	// Stop the supervisor first, so that it does not take the keeper's place.
	for _, kill := range []struct {
		pid int
		sig syscall.Signal
	}{{s.Supervisor, syscall.SIGSTOP}, {s.Pid, syscall.SIGKILL}, {s.Supervisor, syscall.SIGKILL}} {
		if err := syscall.Kill(kill.pid, kill.sig); err != nil {
			t.Fatal(err)
		}
	}
	h.cmd.Wait()
	h.writeStdin("ends", "x\n")
	h.eventually("the end", func() bool { return len(h.procs("ends")) == 0 })
	h.launch("keep", "--state", h.state, "--", "--log-level", "debug")
	exit := h.exit("ends")
	if exit.Code != 33 && !exit.Unknown {
		t.Errorf("exit %+v", exit)
	}
	t.Logf("exit %+v", exit)
	if got := h.lines("ends", "stdout"); !slices.Equal(got, []string{"ready", "last words"}) {
		t.Errorf("log %q", got)
	}
	r, w := io.Pipe()
	go h.client.Attach(h.ctx(), "lives", supervisor.Streams{Stdin: r})
	fmt.Fprintln(w, "word")
	h.wantExit("lives", 34)
}

// TestUpgrade replaces the supervisor by SIGHUP to its keeper.
func TestUpgrade(t *testing.T) {
	h := newHost(t).keep()
	h.run("over", `i=0; while [ $i -lt 3000 ]; do echo "line $i"; i=$((i+1)); done; exit 35`)
	before := h.pid()
	if err := syscall.Kill(h.status().Pid, syscall.SIGHUP); err != nil {
		t.Fatal(err)
	}
	h.eventually("another supervisor", func() bool { return h.pid() != before })
	h.wantExit("over", 35)
	if got := h.lines("over", "stdout"); len(got) != 3000 || got[2999] != "line 2999" {
		t.Errorf("%d lines", len(got))
	}
}

// TestIdleSupervisorEnds: a supervisor without containers ends when its last client has left, and not before.
func TestIdleSupervisorEnds(t *testing.T) {
	h := newHost(t)
	h.launch("keep", "--state", h.state, "--exit-when-idle")
	h.connect()
	h.run("one", "exit 0")
	h.wantExit("one", 0)
	if err := h.client.Remove(h.ctx(), "one"); err != nil {
		t.Fatal(err)
	}
	first := h.client
	h.client = nil
	h.connect()
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := h.client.Info(h.ctx()); err != nil {
		t.Errorf("a client is left: %v", err)
	}
	if err := h.client.Close(); err != nil {
		t.Fatal(err)
	}
	h.client = nil
	if err := h.cmd.Wait(); err != nil {
		t.Errorf("keeper: %v\n%s", err, h.log())
	}
	t.Log(h.log())
	h.assertNothingLeft()
}
