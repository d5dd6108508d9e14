package enginetest

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/berthrun/berth/internal/engine"
	"github.com/berthrun/berth/internal/errs"
)

// testAbsentThings: Stop and Remove of what never was succeed, the rest says
// NotFound.
func testAbsentThings(t *testing.T, b *bench) {
	id := b.id("absent")
	for what, err := range map[string]error{
		"StopSandbox":    b.Engine.StopSandbox(b.t.Context(), id),
		"ReleaseSandbox": b.Engine.ReleaseSandbox(b.t.Context(), id),
		"RemoveSandbox":  b.Engine.RemoveSandbox(b.t.Context(), id),
		"Remove":         b.Engine.Remove(b.t.Context(), id),
	} {
		if err != nil {
			t.Errorf("%s of an absent thing: %v", what, err)
		}
	}
	assertNotFound(t, "Signal", b.Engine.Signal(b.t.Context(), id, syscall.SIGTERM, false))
	_, err := b.Engine.Start(b.t.Context(), id)
	assertNotFound(t, "Start", err)
	_, err = b.Engine.Exec(b.t.Context(), &engine.ExecSpec{ContainerID: id, Command: b.Programs.Exit(0)})
	assertNotFound(t, "Exec", err)
	stats, err := b.Engine.Stats(b.t.Context(), []string{id})
	if err != nil || len(stats) != 0 {
		t.Errorf("Stats of an absent container: %v, %v", stats, err)
	}
}

func testLifecycle(t *testing.T, b *bench) {
	spec, sb := b.sandbox()
	if b.actual(spec.ID) == nil {
		t.Error("List does not report the sandbox")
	}
	c := b.container(spec, sb, b.Programs.Sleep)
	b.assertState(c.ID, engine.StateCreated)
	pid := b.start(c.ID)
	b.assertState(c.ID, engine.StateRunning)
	// A caller that missed the answer calls again.
	if again, err := b.Engine.Start(b.t.Context(), c.ID); err == nil && again != pid {
		t.Errorf("a running container was started again: pid %d, then %d", pid, again)
	}
	exit := b.terminate(c.ID)
	if exit.Code != 143 || exit.OOMKilled || exit.Reason != "" || exit.At.IsZero() {
		t.Errorf("exit %+v, want code 143", exit)
	}
	b.assertState(c.ID, engine.StateStopped)
	for range 2 { // the second finds nothing to remove
		b.remove(c.ID)
		if a := b.actual(c.ID); a != nil {
			t.Errorf("left of the container: %+v", a)
		}
	}
	if _, err := os.Stat(c.LogPath); err != nil {
		t.Errorf("Remove took the log: %v", err)
	}
	for range 2 {
		b.removeSandbox(spec.ID)
		if a := b.actual(spec.ID); a != nil {
			t.Errorf("left of the sandbox: %+v", a)
		}
	}
}

func testExitCodes(t *testing.T, b *bench) {
	spec, sb := b.sandbox()
	for _, code := range []int32{0, 1, 7, 255} {
		c := b.container(spec, sb, b.Programs.Exit(int(code)))
		before := time.Now()
		b.start(c.ID)
		exit := b.exits.of(c.ID)
		if exit.Code != code || exit.Reason != "" {
			t.Errorf("exit %+v, want code %d and no reason", exit, code)
		}
		if exit.At.Before(before.Add(-time.Second)) || exit.At.After(time.Now().Add(time.Second)) {
			t.Errorf("exit at %v, started at %v", exit.At, before)
		}
	}
}

func testSignals(t *testing.T, b *bench) {
	spec, sb := b.sandbox()
	c := b.container(spec, sb, b.Programs.Stubborn)
	b.start(c.ID)
	b.signal(c.ID, syscall.SIGTERM, false)
	time.Sleep(100 * time.Millisecond) // the time in which a wrong exit would come
	b.assertState(c.ID, engine.StateRunning)
	b.signal(c.ID, syscall.SIGKILL, true)
	if exit := b.exits.of(c.ID); exit.Code != 137 {
		t.Errorf("exit %+v, want code 137", exit)
	}
	assertNotFound(t, "Signal after the exit", b.Engine.Signal(b.t.Context(), c.ID, syscall.SIGKILL, true))
}

// testKillCreated: a container that was not started ends when it is killed.
func testKillCreated(t *testing.T, b *bench) {
	spec, sb := b.sandbox()
	c := b.container(spec, sb, b.Programs.Sleep)
	b.signal(c.ID, syscall.SIGKILL, true)
	if exit := b.exits.of(c.ID); exit.Code == 0 || exit.At.IsZero() {
		t.Errorf("exit %+v of a program that never ran", exit)
	}
	if _, err := b.Engine.Start(b.t.Context(), c.ID); err == nil {
		t.Error("a killed container was started")
	}
}

// testStartError: the error has kind Invalid, an exit comes as well, and Remove
// leaves nothing.
func testStartError(t *testing.T, b *bench) {
	spec, sb := b.sandbox()
	c := b.containerSpec(spec, sb, b.Programs.Missing)
	t.Cleanup(func() { b.remove(c.ID) })
	made, err := b.Engine.Create(b.t.Context(), c)
	if err != nil {
		t.Fatalf("Create of a missing program: %v", err)
	}
	if made.StartError != "" { // a backend may find out this early
		return
	}
	_, err = b.Engine.Start(b.t.Context(), c.ID)
	assertKind(t, "Start of a missing program", err, errs.Invalid)
	if exit := b.exits.of(c.ID); exit.Code == 0 {
		t.Errorf("exit %+v of a program that never ran", exit)
	}
}

// testRemoveRunning: Remove kills what runs, and what was never started.
func testRemoveRunning(t *testing.T, b *bench) {
	spec, sb := b.sandbox()
	created := b.container(spec, sb, b.Programs.Sleep)
	running := b.container(spec, sb, b.Programs.Stubborn)
	b.start(running.ID)
	b.remove(created.ID)
	b.remove(running.ID)
	if a := b.actual(created.ID); a != nil {
		t.Errorf("left of the created container: %+v", a)
	}
	if a := b.actual(running.ID); a != nil {
		t.Errorf("left of the running container: %+v", a)
	}
}

// testHalfMade: what was begun and not finished is listed and can be removed.
func testHalfMade(t *testing.T, b *bench) {
	spec := b.sandboxSpec()
	if _, err := b.Engine.CreateSandbox(b.t.Context(), spec); err != nil {
		t.Fatal(err)
	}
	if b.actual(spec.ID) == nil {
		t.Error("List does not report a sandbox that was not started")
	}
	b.removeSandbox(spec.ID)

	spec, sb := b.sandbox()
	bad := b.containerSpec(spec, sb, b.Programs.Sleep)
	file := filepath.Join(b.dir, "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	bad.LogPath = filepath.Join(file, "log")
	if _, err := b.Engine.Create(b.t.Context(), bad); err == nil {
		t.Error("a container was made whose log cannot be opened")
	}
	b.remove(bad.ID)
}

// testExitsAreRedelivered: a new listener receives the exits of all containers that
// were not removed, equal to the first time.
func testExitsAreRedelivered(t *testing.T, b *bench) {
	spec, sb := b.sandbox()
	kept := b.container(spec, sb, b.Programs.Exit(5))
	removed := b.container(spec, sb, b.Programs.Exit(6))
	b.start(kept.ID)
	b.start(removed.ID)
	first := b.exits.of(kept.ID)
	b.exits.of(removed.ID)
	b.remove(removed.ID)

	b.exits.stop()
	missed := b.container(spec, sb, b.Programs.Exit(9))
	b.start(missed.ID)
	b.listen()
	if again := b.exits.of(kept.ID); again.Code != first.Code || !again.At.Equal(first.At) {
		t.Errorf("delivered again: %+v, at first: %+v", again, first)
	}
	if exit := b.exits.of(missed.ID); exit.Code != 9 {
		t.Errorf("missed exit %+v, want code 9", exit)
	}
	if b.exits.has(removed.ID) {
		t.Error("the exit of a removed container is delivered again")
	}
}

func testExec(t *testing.T, b *bench) {
	spec, sb := b.sandbox()
	c := b.container(spec, sb, b.Programs.Sleep)
	if _, err := b.Engine.Exec(b.t.Context(), &engine.ExecSpec{ContainerID: c.ID, Command: b.Programs.Exit(0)}); err == nil {
		t.Error("exec in a container that has not started")
	}
	b.start(c.ID)
	code, err := b.Engine.Exec(b.t.Context(), &engine.ExecSpec{ContainerID: c.ID, Command: b.Programs.Exit(3)})
	if code != 3 || err != nil {
		t.Errorf("Exec = %d, %v; want 3", code, err)
	}
	var out bytes.Buffer
	if _, err := b.Engine.Exec(b.t.Context(), &engine.ExecSpec{ContainerID: c.ID, Command: b.Programs.Echo("words"), Stdout: &out}); err != nil || out.String() != "words\n" {
		t.Errorf("Exec wrote %q, %v", out.String(), err)
	}
	out.Reset()
	text := strings.Repeat("0123456789abcdef", 1<<14)
	_, err = b.Engine.Exec(b.t.Context(), &engine.ExecSpec{ContainerID: c.ID, Command: b.Programs.Cat, Stdin: strings.NewReader(text), Stdout: &out, Stderr: io.Discard})
	if err != nil || out.String() != text {
		t.Errorf("cat gave back %d of %d bytes, %v", out.Len(), len(text), err)
	}
	if code, err := b.Engine.Exec(b.t.Context(), &engine.ExecSpec{ContainerID: c.ID, Command: b.Programs.Missing}); err == nil && code == 0 {
		t.Error("Exec of a missing program succeeded")
	}
	b.signal(c.ID, syscall.SIGKILL, true)
	b.exits.of(c.ID)
	if _, err := b.Engine.Exec(b.t.Context(), &engine.ExecSpec{ContainerID: c.ID, Command: b.Programs.Exit(0)}); err == nil {
		t.Error("exec in a container that has exited")
	}
}

func testExecCancelled(t *testing.T, b *bench) {
	spec, sb := b.sandbox()
	c := b.container(spec, sb, b.Programs.Sleep)
	b.start(c.ID)
	ctx, cancel := context.WithTimeout(b.t.Context(), 300*time.Millisecond)
	defer cancel()
	_, err := b.Engine.Exec(ctx, &engine.ExecSpec{ContainerID: c.ID, Command: b.Programs.Stubborn})
	if !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("cancelled Exec: %v", err)
	}
	b.assertState(c.ID, engine.StateRunning)
}

func testLog(t *testing.T, b *bench) {
	spec, sb := b.sandbox()
	c := b.container(spec, sb, b.Programs.Echo("one line"))
	b.start(c.ID)
	b.exits.of(c.ID) // the log is complete before the exit is delivered
	assertLog(t, c.LogPath, "stdout F one line")

	reopener, can := b.Engine.(engine.LogReopener)
	if !can {
		return
	}
	long := b.container(spec, sb, b.Programs.Sleep)
	b.start(long.ID)
	if err := os.Rename(long.LogPath, long.LogPath+".1"); err != nil {
		t.Fatal(err)
	}
	if err := reopener.ReopenLog(b.t.Context(), long.ID); err != nil {
		t.Errorf("ReopenLog: %v", err)
	}
	if _, err := os.Stat(long.LogPath); err != nil {
		t.Errorf("ReopenLog made no new log: %v", err)
	}
}

func assertLog(t *testing.T, path, want string) {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Error(err)
		return
	}
	at, rest, _ := strings.Cut(string(data), " ")
	if _, err := time.Parse(time.RFC3339Nano, at); err != nil || rest != want+"\n" {
		t.Errorf("log %q, want a time and %q", data, want)
	}
}

func testStats(t *testing.T, b *bench) {
	spec, sb := b.sandbox()
	c := b.container(spec, sb, b.Programs.Sleep)
	b.start(c.ID)
	stats, err := b.Engine.Stats(b.t.Context(), []string{c.ID, b.id("absent")})
	if err != nil || len(stats) != 1 || stats[c.ID].GetCpu() == nil || stats[c.ID].GetMemory() == nil {
		t.Errorf("Stats = %v, %v; want cpu and memory of one container", stats, err)
	}
	absent, gone := *spec, "/absent"
	absent.ID = b.id("absent")
	if strings.HasSuffix(sb.CgroupParent, ".slice") {
		gone = "absent.slice"
	}
	figures, err := b.Engine.SandboxStats(b.t.Context(), []engine.SandboxRef{{Spec: spec, Sandbox: sb}, {Spec: &absent, Sandbox: &engine.Sandbox{CgroupParent: gone}}})
	if err != nil || len(figures) != 1 || figures[spec.ID].GetCpu() == nil {
		t.Errorf("SandboxStats = %v, %v; want cpu of one sandbox", figures, err)
	}
}

func testParallel(t *testing.T, b *bench) {
	spec, sb := b.sandbox()
	var specs []*engine.ContainerSpec
	for code := range 6 {
		specs = append(specs, b.containerSpec(spec, sb, b.Programs.Exit(code)))
	}
	var wg sync.WaitGroup
	for code, c := range specs {
		wg.Go(func() {
			if _, err := b.Engine.Create(b.t.Context(), c); err != nil {
				t.Errorf("Create: %v", err)
				return
			}
			if _, err := b.Engine.Start(b.t.Context(), c.ID); err != nil {
				t.Errorf("Start: %v", err)
				return
			}
			if exit := b.exits.of(c.ID); exit.Code != int32(code) { //nolint:gosec // 0 to 5
				t.Errorf("exit %+v, want code %d", exit, code)
			}
			b.remove(c.ID)
		})
	}
	wg.Wait()
}

func testInfo(t *testing.T, b *bench) {
	info, err := b.Engine.Info(b.t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if info.CgroupDriver != "cgroupfs" && info.CgroupDriver != "systemd" {
		t.Errorf("cgroup driver %q", info.CgroupDriver)
	}
	for _, h := range info.Handlers {
		if h.GetName() == "" {
			return
		}
	}
	t.Errorf("no default handler among %v", info.Handlers)
}

// exitLog collects the exits of a listener.
type exitLog struct {
	t      *testing.T
	cancel context.CancelFunc
	done   chan struct{}
	mu     sync.Mutex
	heard  map[string]engine.Exit
	news   chan struct{} // closed and replaced at each exit
}

func listenTo(ctx context.Context, t *testing.T, e engine.Engine) *exitLog {
	t.Helper()
	ctx, cancel := context.WithCancel(ctx)
	exits, err := e.Exits(ctx)
	if err != nil {
		cancel()
		t.Fatalf("Exits: %v", err)
	}
	l := &exitLog{t: t, cancel: cancel, done: make(chan struct{}), heard: map[string]engine.Exit{}, news: make(chan struct{})}
	go func() {
		defer close(l.done)
		for {
			select {
			case exit, open := <-exits:
				if !open {
					return
				}
				l.add(exit)
			case <-ctx.Done():
				return
			}
		}
	}()
	t.Cleanup(l.stop)
	return l
}

func (l *exitLog) add(exit engine.Exit) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if old, known := l.heard[exit.ContainerID]; known && (old.Code != exit.Code || !old.At.Equal(exit.At)) {
		l.t.Errorf("one exit was delivered as %+v and as %+v", old, exit)
	}
	l.heard[exit.ContainerID] = exit
	close(l.news)
	l.news = make(chan struct{})
}

func (l *exitLog) has(id string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	_, heard := l.heard[id]
	return heard
}

// of waits for the exit of a container.
func (l *exitLog) of(id string) engine.Exit {
	timeout := time.After(patience)
	for {
		l.mu.Lock()
		exit, heard := l.heard[id]
		news := l.news
		l.mu.Unlock()
		if heard {
			return exit
		}
		select {
		case <-news:
		case <-timeout:
			l.t.Errorf("no exit of %s within %s", id, patience)
			return engine.Exit{}
		}
	}
}

func (l *exitLog) stop() {
	l.cancel()
	<-l.done
}
