//go:build integration

package server_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/require"
	"github.com/berthrun/berth/internal/supervisor"
	"github.com/berthrun/berth/internal/supervisor/spawn"
	"golang.org/x/sync/errgroup"
)

func TestAdoption(t *testing.T) {
	h := newHost(t).keep()
	h.run("runs", `echo before; read x; echo "got $x"; exit 11`, withStdin)
	h.run("tty", `echo before; read x; echo "got $x"; exit 12`, withTTY)
	h.create("waits", `echo late; exit 13`)
	h.run("over", `echo over; exit 14`)
	h.wantExit("over", 14)
	h.waitLine("runs", "before")
	h.waitLine("tty", "before")
	h.crash()
	if _, err := h.client.Start(h.ctx(), "waits"); err != nil {
		t.Errorf("start of an adopted container: %v", err)
	}
	h.wantExit("waits", 13)
	h.wantExit("over", 14)
	h.wantWords()
	if out, _, code, err := h.exec("runs", "true"); !errors.Is(err, errs.State) {
		t.Errorf("exec in an ended container: %q %d %v", out, code, err)
	}
}

// wantWords sends a line to the containers "runs" and "tty", which end with 11 and 12 then, and expects all
// of their output in their logs.
func (h *host) wantWords() {
	h.t.Helper()
	for id, code := range map[string]int32{"runs": 11, "tty": 12} {
		ctx, stop := context.WithCancel(h.ctx())
		r, w := io.Pipe()
		go h.client.Attach(ctx, id, supervisor.Streams{Stdin: r})
		fmt.Fprintln(w, "word")
		h.wantExit(id, code)
		stop()
	}
	if got := h.lines("runs", "stdout"); !slices.Equal(got, []string{"before", "got word"}) {
		h.t.Errorf("log %q", got)
	}
	if got := h.lines("tty", "stdout"); !slices.Contains(got, "got word\r") {
		h.t.Errorf("terminal's log %q", got)
	}
}

// TestExitsWithoutASupervisor: containers exit after one supervisor died and before the next one
// starts.
func TestExitsWithoutASupervisor(t *testing.T) {
	h := newHost(t).keep()
	h.skipInGVisor(hostProcesses)
	const n = 8
	for i := range n {
		h.run(fmt.Sprint("c", i), fmt.Sprintf(`echo ready; read x; echo last words; exit %d`, 20+i), withStdin)
		h.waitLine(fmt.Sprint("c", i), "ready")
	}
	// The keeper is stopped, so nothing restarts the supervisor until it continues.
	keeper := h.status().Pid
	supervisor := h.status().Supervisor
	if err := syscall.Kill(keeper, syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Kill(supervisor, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	for i := range n {
		h.writeStdin(fmt.Sprint("c", i), "x\n")
	}
	for i := range n {
		id := fmt.Sprint("c", i)
		h.eventually("end of "+id, func() bool { return len(h.procs(id)) == 0 })
	}
	if err := syscall.Kill(keeper, syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	for i := range n {
		id := fmt.Sprint("c", i)
		h.wantExit(id, int32(20+i))
		if got := h.lines(id, "stdout"); !slices.Equal(got, []string{"ready", "last words"}) {
			t.Errorf("log of %s: %q", id, got)
		}
	}
}

// procs returns the processes in a container's cgroup.
func (h *host) procs(id string) []string {
	var all []string
	for _, pattern := range []string{"/sys/fs/cgroup/pids/%s/%s/cgroup.procs", "/sys/fs/cgroup/%s/%s/cgroup.procs"} {
		data, err := os.ReadFile(fmt.Sprintf(pattern, h.name, id))
		if err == nil {
			all = append(all, strings.Fields(string(data))...)
		}
	}
	return all
}

// writeStdin writes to the container's own descriptor. The test uses it when there is no supervisor
// to attach through.
func (h *host) writeStdin(id, text string) {
	h.t.Helper()
	for _, pid := range h.procs(id) {
		f, err := os.OpenFile("/proc/"+pid+"/fd/0", os.O_WRONLY|syscall.O_NONBLOCK, 0)
		if err != nil {
			continue
		}
		defer f.Close()
		if _, err := f.WriteString(text); err != nil {
			h.t.Fatal(err)
		}
		return
	}
	h.t.Fatalf("nobody reads the input of %s", id)
}

// TestSupervisorKilledDuringCreate kills the supervisor at many moments of a create.
func TestSupervisorKilledDuringCreate(t *testing.T) {
	h := newHost(t).keep()
	h.skipInGVisor(hostProcesses)
	first := h.held()
	found := make(map[supervisor.ContainerState]int)
	began := time.Now()
	h.create("probe", "true")
	span := time.Since(began)
	const points = 54
	// The measured create may have been faster than the others. Continue until a create is
	// complete.
	for i := 0; i < points || found[supervisor.Created] == 0 && i < 3*points; i++ {
		id := fmt.Sprint("half", i)
		req := h.bundle(id, []string{"/bin/sleep", "1000"}, func() option {
			if i%3 == 0 {
				return withTTY
			}
			return withStdin
		}())
		pid := h.pid()
		time.AfterFunc(span*time.Duration(i)/points, func() { syscall.Kill(pid, syscall.SIGKILL) })
		_, err := h.client.Create(h.ctx(), req)
		if err != nil && !errors.Is(err, errs.Unavailable) {
			t.Errorf("point %d: %v", i, err)
		}
		h.eventually("death", func() bool { return syscall.Kill(pid, 0) != nil })
		list, err := h.client.List(h.ctx())
		if err != nil {
			t.Fatal(err)
		}
		for _, c := range list {
			if c.ID == id {
				found[c.State]++
			}
		}
		if err := h.client.Remove(h.ctx(), id); err != nil {
			t.Errorf("point %d: remove: %v", i, err)
		}
		if procs := h.procs(id); len(procs) > 0 {
			t.Errorf("point %d: still running: %v", i, procs)
		}
	}
	t.Logf("found after the death: %v", found)
	if found[supervisor.Broken] == 0 || found[supervisor.Created] == 0 {
		t.Errorf("the sweep missed the middle or the end: %v", found)
	}
	if err := h.client.Remove(h.ctx(), "probe"); err != nil {
		t.Error(err)
	}
	h.assertNothingLeft()
	h.assertHeld(first)
}

// TestSupervisorKilledDuringStart kills the supervisor at many moments of a start. The program runs
// exactly once.
func TestSupervisorKilledDuringStart(t *testing.T) {
	h := newHost(t).keep()
	first := h.held()
	const points = 60
	for i := range points {
		id := fmt.Sprint("start", i)
		h.create(id, "echo started; exit 7")
		pid := h.pid()
		time.AfterFunc(time.Duration(i)*50*time.Microsecond, func() { syscall.Kill(pid, syscall.SIGKILL) })
		_, err := h.client.Start(h.ctx(), id)
		if errors.Is(err, errs.Unavailable) {
			_, err = h.client.Start(h.ctx(), id)
		}
		if err != nil {
			t.Errorf("point %d: %v", i, err)
		}
		if exit := h.wantExit(id, 7); exit.StartFailed {
			t.Errorf("point %d: %+v", i, exit)
		}
		if got := h.lines(id, "stdout"); !slices.Equal(got, []string{"started"}) {
			t.Errorf("point %d: log %q", i, got)
		}
		h.eventually("death", func() bool { return syscall.Kill(pid, 0) != nil })
		if err := h.client.Remove(h.ctx(), id); err != nil {
			t.Errorf("point %d: remove: %v", i, err)
		}
	}
	h.assertHeld(first)
}

// held returns the keeper's descriptors that may belong to a container.
func (h *host) held() []string {
	var held []string
	dir := fmt.Sprintf("/proc/%d/fd/", h.status().Pid)
	entries, err := os.ReadDir(dir)
	if err != nil {
		h.t.Fatal(err)
	}
	for _, e := range entries {
		target, _ := os.Readlink(dir + e.Name())
		for _, kind := range []string{"pipe:", "pidfd", "ptmx", "exec.fifo"} {
			if strings.Contains(target, kind) {
				held = append(held, target)
			}
		}
	}
	slices.Sort(held) // a keeper that gets them again has them in another order
	return held
}

// assertHeld waits until the keeper holds the same descriptors as at first.
func (h *host) assertHeld(first []string) {
	h.t.Helper()
	for deadline := time.Now().Add(patience); ; time.Sleep(5 * time.Millisecond) {
		now := h.held()
		if slices.Equal(now, first) {
			return
		}
		if time.Now().After(deadline) {
			h.t.Errorf("the keeper holds %q, at first %q", now, first)
			return
		}
	}
}

func TestExecAcrossASupervisorDeath(t *testing.T) {
	h := newHost(t).keep()
	h.run("box", `sleep 1000`)
	var lost, kept int
	for i := range 24 {
		var out bytes.Buffer
		pid := h.pid()
		delay := time.Duration(i) * 1500 * time.Microsecond
		time.AfterFunc(delay, func() { syscall.Kill(pid, syscall.SIGKILL) })
		code, err := h.client.Exec(h.ctx(), execRequest("box", "echo begin; sleep 0.06; echo end; exit 66"), supervisor.Streams{Stdout: &out})
		switch {
		case err == nil && code == 66 && out.String() == "begin\nend\n":
			kept++
		case errors.Is(err, errs.Unavailable):
			lost++
		default:
			t.Errorf("killed after %v: %d %v %q", delay, code, err, out.String())
		}
		h.eventually("death", func() bool { return syscall.Kill(pid, 0) != nil })
	}
	t.Logf("%d execs told their code, %d did not begin", kept, lost)
	if kept == 0 {
		t.Error("no exec outlived a supervisor")
	}
	out, _, _, err := h.exec("box", "cat /proc/[0-9]*/cmdline | tr '\\000' ' '")
	if err != nil || strings.Contains(out, "0.06") {
		t.Errorf("left in the container: %q %v", out, err)
	}
}

// TestKeeperKilledDuringStart kills the keeper at many moments of starts. The supervisor takes its
// place in the same process, and every program runs once.
func TestKeeperKilledDuringStart(t *testing.T) {
	h := newHost(t).keep()
	defer h.keepEnsuring()()
	const points, batch = 24, 8
	for i := range points {
		var ids []string
		for j := range batch {
			id := fmt.Sprintf("start%d-%d", i, j)
			h.create(id, "echo started; exit 7")
			ids = append(ids, id)
		}
		keeper := h.status().Pid
		time.AfterFunc(time.Duration(i)*150*time.Microsecond, func() { syscall.Kill(keeper, syscall.SIGKILL) })
		var g errgroup.Group
		for _, id := range ids {
			g.Go(func() error { return h.insistOnStart(id) })
		}
		if err := g.Wait(); err != nil {
			t.Errorf("point %d: %v", i, err)
		}
		h.eventually("another keeper and its supervisor", func() bool {
			s := h.status()
			return s.Pid != keeper && s.Ready
		})
		for _, id := range ids {
			if exit := h.wantExit(id, 7); exit.StartFailed {
				t.Errorf("point %d: %+v", i, exit)
			}
			if got := h.lines(id, "stdout"); !slices.Equal(got, []string{"started"}) {
				t.Errorf("point %d: log of %s: %q", i, id, got)
			}
			if err := h.client.Remove(h.ctx(), id); err != nil {
				t.Errorf("point %d: remove: %v", i, err)
			}
		}
	}
}

// TestKeeperKilledDuringExecReplies kills the keeper at many moments of execs. Each exec runs once,
// and its exit code is reported.
func TestKeeperKilledDuringExecReplies(t *testing.T) {
	h := newHost(t).keep()
	defer h.keepEnsuring()()
	h.run("c", "exec sleep 100000")
	const points, batch = 24, 6
	for i := range points {
		keeper := h.status().Pid
		time.AfterFunc(time.Duration(i)*2*time.Millisecond, func() { syscall.Kill(keeper, syscall.SIGKILL) })
		var g errgroup.Group
		for range batch {
			g.Go(func() error {
				stdout, stderr, code, err := h.exec("c", "echo once; exit 3")
				if err != nil || stdout != "once\n" || stderr != "" || code != 3 {
					return fmt.Errorf("stdout %q, stderr %q, code %d, %w", stdout, stderr, code, err)
				}
				return nil
			})
		}
		if err := g.Wait(); err != nil {
			t.Errorf("point %d: %v", i, err)
		}
		h.eventually("another keeper and its supervisor", func() bool {
			s := h.status()
			return s.Pid != keeper && s.Ready
		})
	}
}

// TestKillsUnderLoad kills supervisor and keeper at random while containers start, log and exit.
// Every line is in the logs once, and every exit code is right.
func TestKillsUnderLoad(t *testing.T) {
	for _, victim := range []string{"supervisor", "keeper", "both"} {
		t.Run(victim, func(t *testing.T) { killUnderLoad(t, victim) })
	}
}

const numbered = `i=0; while [ $i -lt %d ]; do echo "line $i of a log that is written while others die"; i=$((i+1)); done; exit %d`

func killUnderLoad(t *testing.T, victim string) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	rnd := rand.New(rand.NewPCG(seed, 1))
	h := newHost(t).keep()
	rounds, lines := 60, 4000
	stop := make(chan struct{})
	var killing sync.WaitGroup
	killing.Go(func() {
		defer close(stop)
		for range rounds {
			time.Sleep(require.Patience(time.Duration(50+rnd.IntN(200)) * time.Millisecond))
			h.killOne(victim)
		}
	})
	defer h.keepEnsuring()()
	var mu sync.Mutex
	codes := make(map[string]int32)
	var g errgroup.Group
	for worker := range 4 {
		g.Go(func() error {
			for i := 0; !isStopped(stop); i++ {
				id := fmt.Sprintf("w%d-%04d", worker, i) // of one length: runsc takes the begin of an id for the id
				code := int32(1 + (worker*31+i)%200)
				id, err := h.insist(id, []string{"/bin/sh", "-c", fmt.Sprintf(numbered, lines, code)})
				if err != nil {
					return err
				}
				mu.Lock()
				codes[id] = code
				mu.Unlock()
				h.exit(id)
			}
			return nil
		})
	}
	if err := g.Wait(); err != nil {
		t.Error(err)
	}
	killing.Wait()
	for id, code := range codes {
		h.wantExit(id, code)
		got := h.lines(id, "stdout")
		if len(got) != lines {
			t.Errorf("%s has %d lines", id, len(got))
		}
		for i, line := range got {
			if line != fmt.Sprintf("line %d of a log that is written while others die", i) {
				t.Errorf("%s: line %d is %q", id, i, line)
				break
			}
		}
	}
	t.Logf("%d containers over %d kills", len(codes), rounds)
}

// insist creates and starts a container. It retries a request without an answer. Over gVisor each try has another id, as
// those of the daemon have: gVisor and its shim may keep the id of a create that was killed.
func (h *host) insist(name string, command []string) (id string, err error) {
	id = name
	for try, deadline := 1, time.Now().Add(2*patience); ; try++ {
		_, err := h.client.Create(h.ctx(), h.bundle(id, command))
		if err == nil {
			break
		}
		if time.Now().After(deadline) {
			return "", fmt.Errorf("create, again and again: %w", err)
		}
		if !errors.Is(err, errs.Unavailable) && !errors.Is(err, errs.Exists) {
			return "", fmt.Errorf("create: %w", err)
		}
		if err := h.client.Remove(h.ctx(), id); err != nil && !errors.Is(err, errs.Unavailable) {
			return "", fmt.Errorf("remove after a lost create: %w", err)
		}
		if h.inGVisor() {
			id = fmt.Sprintf("try-%d-of-%s", try, name)
		}
	}
	return id, h.insistOnStart(id)
}

// insistOnStart starts a container as a daemon does.
func (h *host) insistOnStart(id string) error {
	for {
		_, err := h.client.Start(h.ctx(), id)
		if err == nil || !errors.Is(err, errs.Unavailable) {
			return err
		}
	}
}

func (h *host) killOne(victim string) {
	s := h.status()
	if victim != "supervisor" && s.Pid > 0 {
		syscall.Kill(s.Pid, syscall.SIGKILL)
	}
	if victim != "keeper" && s.Supervisor > 0 {
		syscall.Kill(s.Supervisor, syscall.SIGKILL)
	}
}

// keepEnsuring does what the daemon does whenever it loses its connection, until stop is called.
// One Ensure is not enough, because it may find the socket of a dying process.
func (h *host) keepEnsuring() (stop func()) {
	done := make(chan struct{})
	var ensuring sync.WaitGroup
	ensuring.Go(func() {
		for !isStopped(done) {
			// It fails if the keeper that it starts is killed next.
			_ = h.tryEnsure()
			time.Sleep(50 * time.Millisecond)
		}
	})
	return func() {
		close(done)
		ensuring.Wait()
	}
}

// ensure does what the daemon does when the supervisor does not answer.
func (h *host) ensure() {
	h.t.Helper()
	if err := h.tryEnsure(); err != nil {
		h.t.Errorf("no supervisor comes back: %v", err)
	}
}

func (h *host) tryEnsure() error {
	return spawn.Ensure(h.ctx(), spawn.Options{Binary: binary, StateDir: h.state, LogFile: filepath.Join(h.dir, "log")})
}

func isStopped(ch <-chan struct{}) bool {
	select {
	case <-ch:
		return true
	default:
		return false
	}
}
