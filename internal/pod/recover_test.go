package pod_test

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/berthrun/berth/internal/engine"
	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/pod"
	"github.com/berthrun/berth/internal/pod/podtest"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

const (
	running = runtimeapi.ContainerState_CONTAINER_RUNNING
	created = runtimeapi.ContainerState_CONTAINER_CREATED
	unknown = runtimeapi.ContainerState_CONTAINER_UNKNOWN
	exited  = runtimeapi.ContainerState_CONTAINER_EXITED
)

func TestRestartLosesNothing(t *testing.T) {
	b := newBed(t, nil)
	sandbox := b.mustRun(b.SandboxConfig("web"))
	up := b.mustStart(sandbox, "up", b.Programs.Sleep)
	waiting := b.mustCreate(sandbox, "waiting", b.Programs.Sleep)
	done := b.mustStart(sandbox, "done", b.Programs.Exit(7))
	podtest.Eventually(t, "it exits", func() bool { return b.status(done).GetState() == exited })
	beforehand, err := b.s.SandboxStatus(t.Context(), sandbox, false)
	if err != nil {
		t.Fatal(err)
	}
	dies := b.mustStart(sandbox, "dies", b.Programs.Sleep)
	b.script.Kill()
	if err := b.Engine.Signal(t.Context(), dies, 9, true); err != nil {
		t.Fatal(err)
	}
	b.restart()

	afterwards, err := b.s.SandboxStatus(t.Context(), sandbox, false)
	before, after := beforehand.GetStatus(), afterwards.GetStatus()
	if err != nil || after.GetState() != ready || after.GetNetwork().GetIp() != before.GetNetwork().GetIp() || after.GetCreatedAt() != before.GetCreatedAt() {
		t.Errorf("sandbox before %v, after %v, %v", before, after, err)
	}
	if len(after.GetNetwork().GetAdditionalIps()) != 1 {
		t.Errorf("addresses: %v", after.GetNetwork())
	}
	if got := b.status(up).GetState(); got != running {
		t.Errorf("up is %v", got)
	}
	if got := b.status(waiting).GetState(); got != created {
		t.Errorf("waiting is %v", got)
	}
	b.assertExit(done, 7, "Error")
	podtest.Eventually(t, "the missed exit comes", func() bool { return b.status(dies).GetState() == exited })
	b.assertExit(dies, 137, "Error")
	if again := b.mustCreate(sandbox, "waiting", b.Programs.Sleep); again != waiting {
		t.Errorf("the retry got %s, not %s", again, waiting)
	}
	if err := b.s.StartContainer(t.Context(), waiting); err != nil {
		t.Errorf("start after the restart: %v", err)
	}
	b.clear()
}

// Lists do not need the records of attachments, which are read after the first answer. When these cannot be read, no
// attachment is taken for garbage.
func TestPodsAreListedWithoutTheRecordsOfAttachments(t *testing.T) {
	b := newBed(t, nil)
	sandbox := b.mustRun(b.SandboxConfig("web"))
	b.script.Kill()
	attachments := filepath.Join(b.RootDir, "attachments")
	if err := errors.Join(os.Rename(attachments, attachments+".aside"), os.WriteFile(attachments, nil, 0o600)); err != nil {
		t.Fatal(err)
	}
	b.restart()
	list, err := b.s.ListSandboxes(t.Context(), nil)
	if err != nil || list.Len() != 1 {
		t.Errorf("%d sandboxes are listed: %v", list.Len(), err)
	}
	if _, err := b.s.RunSandbox(t.Context(), b.SandboxConfig("next"), ""); err == nil {
		t.Error("a sandbox was attached to a network without a record of that")
	}
	if err := b.s.StopSandbox(t.Context(), sandbox); err == nil {
		t.Error("a sandbox was stopped without its detachment")
	}
	b.script.Kill()
	if err := errors.Join(os.Remove(attachments), os.Rename(attachments+".aside", attachments)); err != nil {
		t.Fatal(err)
	}
	b.restart()
	b.clear()
}

// A daemon died around Start. The next one finds out whether the container started.
func TestRestartAroundStart(t *testing.T) {
	for point, want := range map[string]runtimeapi.ContainerState{"before engine.Start": created, "after engine.Start": running} {
		t.Run(point, func(t *testing.T) {
			b := newBed(t, nil)
			id := b.mustCreate(b.mustRun(b.SandboxConfig("web")), "main", b.Programs.Sleep)
			hang := b.script.HangAt(point, false)
			came := make(chan error, 1)
			go func() { came <- b.s.StartContainer(t.Context(), id) }()
			<-hang.Reached
			b.restart()
			<-came
			if got := b.status(id).GetState(); got != want {
				t.Errorf("state %v, want %v", got, want)
			}
			b.clear()
		})
	}
}

// A daemon died before a start, and the sandbox was lost meanwhile: the container is not left as
// created in a stopped sandbox.
func TestRestartAroundStartInALostSandbox(t *testing.T) {
	for range 20 {
		b := newBed(t, nil)
		config := b.SandboxConfig("web")
		config.Linux.SecurityContext.NamespaceOptions.Pid = runtimeapi.NamespaceMode_POD
		sandbox := b.mustRun(config)
		id := b.mustCreate(sandbox, "main", b.Programs.Sleep)
		hang := b.script.HangAt("before engine.Start", false)
		came := make(chan error, 1)
		go func() { came <- b.s.StartContainer(t.Context(), id) }()
		<-hang.Reached
		b.script.Kill()
		b.fake().Lose(sandbox)
		b.restart()
		<-came
		podtest.Eventually(t, "the sandbox is stopped", func() bool { return b.listed()[sandbox] == notReady && len(b.s.Jobs()) == 0 })
		if got := b.status(id).GetState(); got != exited {
			t.Fatalf("state %v", got)
		}
		b.clear()
	}
}

// A container that has exited by its record, and runs in the engine, is ended, also when the engine
// cannot do that at first.
func TestContainerThatRunsAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBed(t, nil)
		id := b.mustStart(b.mustRun(b.SandboxConfig("web")), "done", b.Programs.Exit(7))
		podtest.Eventually(t, "it exits", func() bool { return b.status(id).GetState() == exited })
		b.script.Kill()
		b.CloseDaemon(b.s)
		b.fake().Revive(id)
		failures := 0
		b.script = podtest.NewScript(func(_ int, name string) error {
			if name == "before engine.Signal" && failures < 3 {
				failures++
				return podtest.ErrInjected
			}
			return nil
		})
		b.s = b.Daemon(b.script)
		podtest.Eventually(t, "it is killed", func() bool { return len(b.fake().Signals(id)) == 1 })
		if got := b.status(id); got.GetState() != exited || got.GetExitCode() != 7 || failures != 3 {
			t.Errorf("%v after %d failures", got, failures)
		}
		b.clear()
	})
}

// A container that was lost while no daemon ran has the exit code and the reason of an unknown
// exit.
func TestLostThings(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBed(t, nil)
		sandbox := b.mustRun(b.SandboxConfig("web"))
		up := b.mustStart(sandbox, "up", b.Programs.Sleep)
		waiting := b.mustCreate(sandbox, "waiting", b.Programs.Sleep)
		b.script.Kill()
		b.fake().Forget()
		b.restart()
		if b.listed()[sandbox] != notReady {
			t.Errorf("listed %v", b.listed())
		}
		b.assertEnding(sandbox, "lost it, while berth did not run")
		// At the first answer: the engine reports no exit of what it does not have.
		b.assertExit(up, 255, "Unknown")
		b.assertExit(waiting, 255, "Unknown")
		time.Sleep(time.Minute)
		if left := b.Left(); len(left) > 0 {
			t.Errorf("the network keeps %v", left)
		}
		b.clear()
	})
}

// assertEnding checks why a sandbox is no longer ready.
func (b *bed) assertEnding(sandbox, want string) {
	b.Helper()
	resp, err := b.s.SandboxStatus(b.Context(), sandbox, true)
	if err != nil || !strings.Contains(resp.GetInfo()["info"], want) {
		b.Errorf("the sandbox: %s, %v; want %q", resp.GetInfo()["info"], err, want)
	}
}

func TestSandboxProcessEnds(t *testing.T) {
	b := newBed(t, nil)
	config := b.SandboxConfig("web")
	config.Linux.SecurityContext.NamespaceOptions.Pid = runtimeapi.NamespaceMode_POD
	sandbox := b.mustRun(config)
	b.fake().Lose(sandbox)
	podtest.Eventually(t, "the sandbox is NOTREADY", func() bool { return b.listed()[sandbox] == notReady })
	b.assertEnding(sandbox, "its own process ended with code 137")
	_, err := b.s.CreateContainer(t.Context(), sandbox, b.ContainerConfig("main", nil))
	assertKind(t, err, errs.State)
	b.clear()
}

// A sandbox whose own process ends before it is ready does not become ready.
func TestSandboxProcessEndsBeforeReady(t *testing.T) {
	b := newBed(t, nil)
	hang := b.script.HangAt("after engine.StartSandbox", false)
	failed := make(chan error, 1)
	go func() {
		_, err := b.s.RunSandbox(t.Context(), b.SandboxConfig("web"), "")
		failed <- err
	}()
	<-hang.Reached
	id := strings.TrimPrefix(b.fake().Left()[0], "sandbox ")
	b.fake().Lose(id)
	podtest.Eventually(t, "the record has the end", func() bool {
		data, err := os.ReadFile(filepath.Join(b.StateDir, "sandboxes", id+".json"))
		return err == nil && strings.Contains(string(data), "its own process ended with code 137")
	})
	hang.Release()
	err := <-failed
	assertKind(t, err, errs.Unavailable)
	if !strings.Contains(err.Error(), "its own process ended with code 137") {
		t.Error(err)
	}
	b.assertListed(nil)
	b.clear()
}

func TestOrphansAreRemoved(t *testing.T) {
	b := newBed(t, nil)
	config := b.SandboxConfig("stray")
	spec := &engine.SandboxSpec{ID: strings.Repeat("a", 64), Config: config}
	sb, err := b.Engine.CreateSandbox(t.Context(), spec)
	if err != nil {
		t.Fatal(err)
	}
	c := &engine.ContainerSpec{ID: strings.Repeat("b", 64), SandboxSpec: spec, Sandbox: sb, Config: b.ContainerConfig("stray", b.Programs.Sleep)}
	if _, err := b.Engine.Create(t.Context(), c); err != nil {
		t.Fatal(err)
	}
	sandbox := b.mustRun(b.SandboxConfig("web"))
	b.restart()
	podtest.Eventually(t, "the orphans are gone", func() bool { return len(b.fake().Left()) == 1 })
	b.assertListed(map[string]runtimeapi.PodSandboxState{sandbox: ready})
	b.clear()
}

// A bad record is quarantined, and the daemon starts.
func TestBadRecordIsQuarantined(t *testing.T) {
	b := newBed(t, nil)
	bad := b.mustRun(b.SandboxConfig("bad"))
	good := b.mustRun(b.SandboxConfig("good"))
	file := filepath.Join(b.StateDir, "sandboxes", bad+".json")
	if err := os.WriteFile(file, []byte(`{"version":1,"id":"`+bad+`","record":{"id":"x"`), 0o600); err != nil {
		t.Fatal(err)
	}
	b.restart()
	b.assertListed(map[string]runtimeapi.PodSandboxState{good: ready})
	podtest.Eventually(t, "its things are gone", func() bool { return len(b.fake().Left()) == 1 && len(b.Left()) == 1 })
	kept, err := os.ReadDir(filepath.Join(b.RootDir, "quarantine"))
	if err != nil || len(kept) != 1 {
		t.Errorf("quarantine: %v, %v", kept, err)
	}
	if err := os.RemoveAll(filepath.Join(b.RootDir, "quarantine")); err != nil {
		t.Fatal(err)
	}
	if again := b.mustRun(b.SandboxConfig("bad")); again == bad {
		t.Error("the name leads to the lost sandbox")
	}
	b.clear()
}

// reboot kills everything and removes the files on tmpfs.
func (b *bed) reboot(wipe bool) {
	b.Helper()
	b.script.Kill()
	b.CloseDaemon(b.s)
	b.fake().Forget()
	if wipe {
		if err := os.RemoveAll(b.StateDir); err != nil {
			b.Fatal(err)
		}
	} else {
		b.BootID += "+1"
	}
	b.restart()
}

func TestReboot(t *testing.T) {
	for name, wipe := range map[string]bool{"state directory emptied": true, "state directory on disk": false} {
		t.Run(name, func(t *testing.T) {
			b := newBed(t, nil)
			sandbox := b.mustRun(b.SandboxConfig("web"))
			done := b.mustStart(sandbox, "done", b.Programs.Exit(7))
			up := b.mustStart(sandbox, "up", b.Programs.Sleep)
			gone := b.mustStart(sandbox, "gone", b.Programs.Exit(0))
			podtest.Eventually(t, "its tombstone is written", func() bool { return b.tombstones(gone, `"exited"`) })
			if err := b.s.RemoveContainer(t.Context(), gone); err != nil {
				t.Fatal(err)
			}
			podtest.Eventually(t, "tombstones are written", func() bool {
				return b.tombstones(done, `"exited"`) && b.tombstones(up, `"running"`) && b.tombstones(sandbox, "") && !b.tombstones(gone, "")
			})
			before := b.status(done)
			b.assertNoSecrets()

			b.reboot(wipe)
			after := b.status(done)
			if after.GetExitCode() != 7 || after.GetFinishedAt() != before.GetFinishedAt() || after.GetLogPath() != before.GetLogPath() ||
				after.GetImageId() != before.GetImageId() || after.GetLabels()["container"] != "done" || after.GetAnnotations()["note"] != "of done" {
				t.Errorf("before %v, after %v", before, after)
			}
			b.assertExit(up, 255, "Unknown")
			if b.status(up).GetMessage() == "" {
				t.Error("no message tells of the reboot")
			}
			b.assertListed(map[string]runtimeapi.PodSandboxState{sandbox: notReady})
			if _, _, err := b.s.ContainerStatus(t.Context(), gone, false); !errors.Is(err, errs.NotFound) {
				t.Errorf("a removed container: %v", err)
			}
			podtest.Eventually(t, "its address is free", func() bool { return len(b.Left()) == 0 })
			b.restart() // the second start after this boot changes nothing
			b.assertExit(done, 7, "Error")
			if err := b.s.RemoveContainer(t.Context(), done); err != nil {
				t.Error(err)
			}
			b.restart()
			if _, _, err := b.s.ContainerStatus(t.Context(), done, false); !errors.Is(err, errs.NotFound) {
				t.Errorf("removed after the reboot: %v", err)
			}
			b.clear()
		})
	}
}

// After a reboot the engine has no record of a sandbox's files on disk. They are removed with the sandbox; those of what
// has no record, and so is removed by nobody, at the start.
func TestFilesFromBeforeAReboot(t *testing.T) {
	b := newBed(t, nil)
	sandbox := b.mustRun(b.SandboxConfig("web"))
	podtest.Eventually(t, "its tombstone is written", func() bool { return b.tombstones(sandbox, "") })
	lost := strings.Repeat("c", 64)
	own, foreign := filepath.Join(b.RootDir, "sandboxes", sandbox, "hosts"), filepath.Join(b.RootDir, "sandboxes", "notes", "text")
	of := []string{filepath.Join(b.RootDir, "sandboxes", lost, "hosts"), filepath.Join(b.RootDir, "containers", lost, "restored", "pages-1.img")}
	for _, file := range append(of, own, foreign) {
		if err := errors.Join(os.MkdirAll(filepath.Dir(file), 0o700), os.WriteFile(file, []byte("x"), 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	seen := &tally{}
	b.Observer = seen
	b.reboot(true)
	podtest.Eventually(t, "files without a record are gone", func() bool { return seen.of("repaired", "files") == 1 })
	seen.wantCounts(t, map[string]int{"found: files": 1})
	for _, file := range of {
		if _, err := os.Stat(file); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("%s is left: %v", file, err)
		}
	}
	for _, file := range []string{own, foreign} {
		if _, err := os.Stat(file); err != nil {
			t.Error(err)
		}
	}
	if err := os.Remove(foreign); err != nil {
		t.Fatal(err)
	}
	b.clear()
}

// tombstones reports whether the tombstone of an id is on disk and contains a word.
func (b *bed) tombstones(id, word string) bool {
	b.Helper()
	found := false
	b.walkRoot(func(path string, data []byte) {
		found = found || filepath.Base(path) == id+".json" && bytes.Contains(data, []byte(word))
	})
	return found
}

func (b *bed) assertNoSecrets() {
	b.Helper()
	b.walkRoot(func(path string, data []byte) {
		if bytes.Contains(data, []byte("SECRET")) {
			b.Errorf("%s holds an environment", path)
		}
	})
}

func (b *bed) walkRoot(visit func(path string, data []byte)) {
	b.Helper()
	err := filepath.WalkDir(filepath.Join(b.RootDir, "tombstones"), func(path string, d fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) {
			return nil // just replaced
		}
		if err != nil || d.IsDir() {
			return err
		}
		data, err := os.ReadFile(path)
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		visit(path, data)
		return err
	})
	if err != nil {
		b.Fatal(err)
	}
}

// The connection to the engine is lost and comes back. No exit is missed.
func TestExitsSurviveLostListener(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBed(t, nil)
		sandbox := b.mustRun(b.SandboxConfig("web"))
		id := b.mustStart(sandbox, "main", b.Programs.Sleep)
		stolen, err := b.Engine.Exits(t.Context()) // the test acts as the daemon
		if err != nil {
			t.Fatal(err)
		}
		if err := b.Engine.Signal(t.Context(), id, 9, true); err != nil {
			t.Fatal(err)
		}
		<-stolen
		time.Sleep(5 * time.Second)
		b.assertExit(id, 137, "Error")
		b.clear()
	})
}

// The engine comes back without its earlier containers.
func TestEngineWithoutItsState(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBed(t, nil)
		sandbox := b.mustRun(b.SandboxConfig("web"))
		up, waiting := b.mustStart(sandbox, "up", b.Programs.Sleep), b.mustCreate(sandbox, "waiting", nil)
		done := b.mustStart(sandbox, "done", b.Programs.Exit(3))
		synctest.Wait()
		b.fake().Forget()
		if _, err := b.Engine.Exits(t.Context()); err != nil { // the test acts as the daemon
			t.Fatal(err)
		}
		time.Sleep(time.Minute)
		b.assertExit(up, 255, "Unknown")
		b.assertExit(waiting, 255, "Unknown")
		b.assertExit(done, 3, "Error")
		b.assertListed(map[string]runtimeapi.PodSandboxState{sandbox: notReady})
		b.assertEnding(sandbox, "lost it, while the engine was away")
		b.clear()
	})
}

// An exit that cannot be recorded at first is recorded later.
func TestExitRecordIsRetried(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var full atomic.Bool
		b := newBed(t, func(_ int, name string) error {
			if full.Load() && name == "before disk.Write" {
				return podtest.ErrInjected
			}
			return nil
		})
		sandbox := b.mustRun(b.SandboxConfig("web"))
		id := b.mustStart(sandbox, "main", b.Programs.Sleep)
		full.Store(true)
		b.fake().Lose(id)
		time.Sleep(time.Minute)
		if got := b.status(id).GetState(); got != running {
			t.Errorf("state %v before the exit is written", got)
		}
		full.Store(false)
		time.Sleep(time.Minute)
		b.assertExit(id, 137, "Error")
		b.clear()
	})
}

// BenchmarkRecovery500 measures a start with 500 pods of two containers each.
func BenchmarkRecovery500(b *testing.B) {
	w := podtest.NewWorld(b, podtest.Fake())
	w.Limits = pod.Limits{Batch: time.Millisecond}
	s := w.Daemon(nil)
	for i := range 500 {
		sandbox, err := s.RunSandbox(b.Context(), w.SandboxConfig(fmt.Sprint("pod", i)), "")
		if err != nil {
			b.Fatal(err)
		}
		for _, name := range []string{"one", "two"} {
			id, err := s.CreateContainer(b.Context(), sandbox, w.ContainerConfig(name, w.Programs.Sleep))
			if err == nil {
				err = s.StartContainer(b.Context(), id)
			}
			if err != nil {
				b.Fatal(err)
			}
		}
	}
	w.CloseDaemon(s)
	for b.Loop() {
		s := w.Daemon(nil)
		b.StopTimer()
		w.CloseDaemon(s)
		b.StartTimer()
	}
}

// The log names a pod whose init an earlier berth created, until the pod is removed. Only a new pod
// makes its containers safe.
func TestPodsWithAnUnsafeInitAreNamed(t *testing.T) {
	b := newBed(t, nil)
	old, safe, plain := b.mustRun(b.SandboxConfig("old")), b.mustRun(b.SandboxConfig("safe")), b.mustRun(b.SandboxConfig("plain"))
	b.script.Kill()
	b.CloseDaemon(b.s)
	for id, engine := range map[string]string{old: `"pid":77`, safe: `"pid":78,"podInit":1`} {
		path := filepath.Join(b.StateDir, "sandboxes", id+".json")
		data, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		changed := strings.Replace(string(data), `"engine":{`, `"engine":{`+engine+`,`, 1)
		if changed == string(data) {
			t.Fatalf("the record has no engine: %s", data)
		}
		if err := os.WriteFile(path, []byte(changed), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	b.restart()
	warned := func() string {
		info, err := b.s.EngineInfo(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return strings.Join(info.Warnings, "\n")
	}
	if got := warned(); !strings.Contains(got, old) || !strings.Contains(got, "old") || strings.Contains(got, safe) || strings.Contains(got, plain) {
		t.Errorf("the warnings are %q, want one about %s", got, old)
	}
	if err := b.s.RemoveSandbox(t.Context(), old); err != nil {
		t.Fatal(err)
	}
	if got := warned(); strings.Contains(got, old) {
		t.Errorf("a pod that is gone is warned of: %q", got)
	}
}
