//go:build integration

package server_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/require"
	"github.com/berthrun/berth/internal/supervisor"
)

// TestHandler: containers that an OCI runtime makes have the same output, exits, commands and adoption as
// those of the supervisor. With BERTH_HANDLER=PROGRAM all tests of this package run over a program.
func TestHandler(t *testing.T) {
	h := newHost(t).over(require.Binary(t, "runc")).keep()
	c := h.create("one", "echo out; echo err >&2; printf last; exit 42")
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
	_, err := h.client.Create(h.ctx(), h.bundle("noprogram", []string{"/nope"}))
	var fault *supervisor.ProgramError
	if !errors.As(err, &fault) || !strings.Contains(fmt.Sprint(err), `handler "test"`) || !strings.Contains(err.Error(), "/nope") {
		t.Errorf("a program that is not there: %v", err)
	}
	if _, err := os.Stat(filepath.Join(h.dir, "logs", "noprogram.log")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the failed create has a log: %v", err)
	}

	h.run("box", "sleep 1000", withUser(1000))
	out, stderr, code, err := h.exec("box", "echo hi; echo no >&2; cat /proc/self/cgroup; exit 9")
	if err != nil || code != 9 || !strings.HasPrefix(out, "hi\n") || stderr != "no\n" {
		t.Errorf("exec: %q %q %d %v", out, stderr, code, err)
	}
	for range 3 { // it ends before the launcher has reported it
		if _, _, code, err := h.exec("box", "exit 3"); code != 3 || err != nil {
			t.Errorf("a short command: %d %v", code, err)
		}
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

// TestHandlerExecutesNothing: the kernel does not take the program. The exit says that it never ran, or has the
// code of the runtime's init. The log has the error.
func TestHandlerExecutesNothing(t *testing.T) {
	h := newHost(t).over(require.Binary(t, "runc")).keep()
	noise := filepath.Join(h.rootfs, "noise")
	if err := os.WriteFile(noise, []byte{1, 2, 3, 4}, 0o755); err != nil {
		t.Fatal(err)
	}
	if _, err := h.client.Create(h.ctx(), h.bundle("noise", []string{"/noise"})); err != nil {
		t.Fatal(err)
	}
	if _, err := h.client.Start(h.ctx(), "noise"); err != nil {
		t.Fatal(err)
	}
	// An init that was reaped before the supervisor looked at it does not say that it executed nothing.
	if e := h.exit("noise"); e.StartFailed != strings.Contains(e.Message, "log") || !e.StartFailed && e.Code == 0 {
		t.Errorf("exit %+v", e)
	}
	if got := h.lines("noise", "stderr"); len(got) == 0 || !strings.Contains(strings.Join(got, " "), "exec format error") {
		t.Errorf("the log: %q", got)
	}
}

// TestHandlerAcrossCrashes: the supervisor is killed, and then the keeper too.
func TestHandlerAcrossCrashes(t *testing.T) {
	h := newHost(t).over(require.Binary(t, "runc")).keep()
	h.run("runs", `echo before; read x; echo "got $x"; exit 11`, withStdin)
	h.run("tty", `echo before; read x; echo "got $x"; exit 12`, withTTY)
	h.create("waits", `echo late; exit 13`)
	h.waitLine("runs", "before")
	h.waitLine("tty", "before")
	h.crash()
	if _, err := h.client.Start(h.ctx(), "waits"); err != nil {
		t.Errorf("start of an adopted container: %v", err)
	}
	h.wantExit("waits", 13)
	status := h.status()
	killWhole(t, status.Pid, status.Supervisor)
	h.ensure()
	h.wantWords()
}

// TestHandlerVanishes: containers stop and go when their program is not there any more.
func TestHandlerVanishes(t *testing.T) {
	h := newHost(t)
	program := copyProgram(t, h, require.Binary(t, "runc"))
	h.over(program).keep()
	h.run("runs", "trap 'exit 5' TERM; echo ready; while :; do sleep 0.05; done")
	h.create("waits", "exit 0")
	h.waitLine("runs", "ready")
	if err := os.Remove(program); err != nil {
		t.Fatal(err)
	}
	_, _, _, err := h.exec("runs", "true")
	wantVanished(t, err, program)
	_, err = h.client.Create(h.ctx(), h.bundle("new", []string{"true"}))
	wantVanished(t, err, program)
	if err := h.client.Signal(h.ctx(), "runs", syscall.SIGTERM, false); err != nil {
		t.Error(err)
	}
	h.wantExit("runs", 5)
	_, err = h.client.Start(h.ctx(), "waits")
	wantVanished(t, err, program)
	// Their removal, and what is left, are checked at the end of each test.
}

// TestHandlerDeletionOutlivesSupervisor is TestDeletionOutlivesSupervisor for an OCI runtime: the deletion does not meet a
// new container with the id.
func TestHandlerDeletionOutlivesSupervisor(t *testing.T) {
	h := newHost(t)
	program := filepath.Join(h.dir, "program")
	text := fmt.Sprintf(`#!/bin/sh
for a in "$@"; do [ "$a" = delete ] && { echo begin >> $0.log; sleep 0.5; %[1]s "$@"; c=$?; echo end >> $0.log; exit $c; }; done
exec %[1]s "$@"
`, require.Binary(t, "runc"))
	if err := os.WriteFile(program, []byte(text), 0o755); err != nil {
		t.Fatal(err)
	}
	log := func() string { data, _ := os.ReadFile(program + ".log"); return string(data) }
	h.over(program).keep()
	h.run("box", "sleep 1000")
	go func() { _ = h.client.Remove(h.ctx(), "box") }() // it is lost, or repeated
	h.eventually("begin of the deletion", func() bool { return log() == "begin\n" })
	h.crash()
	h.eventually("removal", func() bool { return h.client.Remove(h.ctx(), "box") == nil })
	if got := log(); strings.Count(got, "begin") != strings.Count(got, "end") {
		t.Errorf("the deletions: %q", got)
	}
	h.run("box", "exit 3")
	h.wantExit("box", 3)
}

func wantVanished(t *testing.T, err error, program string) {
	t.Helper()
	wantKind(t, err, errs.Unavailable)
	for _, text := range []string{"unable to get OCI runtime", `handler "test"`, program} {
		if !strings.Contains(fmt.Sprint(err), text) {
			t.Errorf("error %v does not have %q", err, text)
		}
	}
}

func copyProgram(t *testing.T, h *host, from string) string {
	t.Helper()
	data, err := os.ReadFile(from)
	to := filepath.Join(h.dir, "program")
	if err == nil {
		err = os.WriteFile(to, data, 0o755)
	}
	if err != nil {
		t.Fatal(err)
	}
	return to
}

// TestBadHandlers: programs that do not what they should. Each error names the handler and the stage, and
// nothing is left: see host.end.
func TestBadHandlers(t *testing.T) {
	runc := require.Binary(t, "runc")
	sleeper := sleeperOf()
	hang := fmt.Sprintf("(setsid %s &) ; %[1]s", sleeper)
	// create runs a script in the place of a stage; runc does the other stages.
	in := func(stage, script string) string {
		return fmt.Sprintf("for a in \"$@\"; do [ \"$a\" = %s ] && { %s; }; done; exec %s \"$@\"", stage, script, runc)
	}
	const pidFile = `f=; for a in "$@"; do [ "$f" = next ] && f=$a; [ "$a" = --pid-file ] && f=next; done; `
	const logFile = `f=; for a in "$@"; do [ "$f" = next ] && f=$a; [ "$a" = --log ] && f=next; done; `
	const rootDir = `f=; for a in "$@"; do [ "$f" = next ] && f=$a; [ "$a" = --root ] && f=next; done; `
	for name, tc := range map[string]struct {
		script string
		// creates, starts: that stage succeeds.
		creates, starts bool
		kind            error
		text            string
	}{
		"fails":        {script: in("create", "exit 3"), text: "create: exit status 3"},
		"says":         {script: in("create", logFile+`echo '{"level":"error","msg":"no luck today"}' > "$f"; exit 1`), text: "create: no luck today"},
		"garbagelog":   {script: in("create", logFile+`head -c 100000 /dev/zero > "$f"; exit 4`), text: "create: exit status 4"},
		"nocontainer":  {script: in("create", "exit 0"), text: "create: it ended without an error and has written no pid"},
		"garbagepid":   {script: in("create", pidFile+`echo soup > "$f"; exit 0`), text: `create: it has written "soup" in the place of a pid`},
		"foreignpid":   {script: in("create", pidFile+`echo 1 > "$f"; exit 0`), text: "create: it has written the pid 1, which is not a process that it has started"},
		"outside":      {script: in("create", pidFile+sleeper+` & echo $! > "$f"; exit 0`), text: "is not in the container's cgroup"},
		"hangscreate":  {script: in("create", hang), kind: errs.Deadline, text: "create: it took too long"},
		"failsstart":   {script: in("start", "echo one; echo cannot >&2; exit 5"), creates: true, text: "start: cannot"},
		"hangsstart":   {script: in("start", hang), creates: true, kind: errs.Deadline, text: "start: it took too long"},
		"startsnone":   {script: in("start", "exit 0"), creates: true, text: "start: it ended without an error and has not started the container"},
		"prints":       {script: in("create", "echo soup; echo noise >&2; "+runc+` "$@" || exit; exit 0`), creates: true, starts: true},
		"hangskill":    {script: in("kill", hang), creates: true, starts: true}, // berth signals processes itself
		"leavesmount":  {script: in("create", rootDir+`mkdir -p "$f/bad/x"; mount -t tmpfs none "$f/bad/x"; exit 7`), text: "create: exit status 7"},
		"failsdelete":  {script: in("delete", "exit 6"), creates: true, starts: true},
		"noprogram":    {script: "", text: "is not an executable file", kind: errs.Unavailable},
		"nointerprete": {script: "#!/no/such", text: "create: "},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHost(t)
			program := filepath.Join(h.dir, "program")
			mode, text := os.FileMode(0o755), "#!/bin/sh\n"+tc.script+"\n"
			switch {
			case tc.script == "":
				mode = 0o644
			case strings.HasPrefix(tc.script, "#!"):
				text = tc.script
			}
			if err := os.WriteFile(program, []byte(text), mode); err != nil {
				t.Fatal(err)
			}
			h.over(program).keep()
			request := h.bundle("bad", []string{"/bin/sleep", "1000"})
			request.StartTimeout = patience
			if tc.kind != nil && tc.kind != errs.Unavailable { //nolint:errorlint // a kind of the table
				request.StartTimeout = 2 * time.Second
			}
			_, err := h.client.Create(h.ctx(), request)
			if tc.creates && err == nil {
				_, err = h.client.Start(h.ctx(), "bad")
			}
			if tc.starts {
				if err != nil {
					t.Error(err)
				}
				return
			}
			if err == nil || !strings.Contains(err.Error(), `handler "test"`) || !strings.Contains(err.Error(), tc.text) || !strings.Contains(err.Error(), program) {
				t.Errorf("error %v, want one with handler, program and %q", err, tc.text)
			}
			if tc.kind != nil {
				wantKind(t, err, tc.kind)
			}
			h.assertNoSleeper()
		})
	}
}

// sleeperOf is a command that only scripts of this process's tests run.
func sleeperOf() string { return fmt.Sprint("sleep ", 1_000_000+os.Getpid()) }

// assertNoSleeper checks that no process is left that a script of TestBadHandlers starts. Those of a container
// end with the container.
func (h *host) assertNoSleeper() {
	h.t.Helper()
	find := func() (found string) {
		dirs, _ := filepath.Glob("/proc/[0-9]*/cmdline")
		for _, dir := range dirs {
			data, _ := os.ReadFile(dir)
			if strings.ReplaceAll(strings.TrimRight(string(data), "\x00"), "\x00", " ") == sleeperOf() {
				found += dir + " "
			}
		}
		return found
	}
	for deadline := time.Now().Add(patience); find() != ""; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			h.t.Fatalf("processes of the program are left: %s", find())
		}
	}
}
