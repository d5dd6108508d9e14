package pod_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berthrun/berth/internal/engine"
	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/image"
	"github.com/berthrun/berth/internal/pod"
	"github.com/berthrun/berth/internal/pod/podtest"
)

// stages writes the stages of checkpoints down, in the place of processes, and restores containers that run a program.
type stages struct {
	mu    sync.Mutex
	order []string
	// fail returns the error of a container, by its name, before it reaches a stage.
	fail func(name string, stage engine.CheckpointStage) error
}

// checkpointing is an engine that writes and restores checkpoints.
type checkpointing struct {
	*podtest.EngineOf
	stages *stages
	// handler is the only handler whose sandboxes restore containers.
	handler string
}

func (e *checkpointing) Checkpoint(ctx context.Context, spec *engine.CheckpointSpec) error {
	for _, stage := range []engine.CheckpointStage{engine.CheckpointPaused, engine.CheckpointCaptured, engine.CheckpointWritten} {
		e.stages.mu.Lock()
		e.stages.order = append(e.stages.order, string(stage))
		e.stages.mu.Unlock()
		if err := e.stages.fail(spec.Name, stage); err != nil {
			return err
		}
		if err := spec.Reached(ctx, stage); err != nil {
			return fmt.Errorf("the container goes on: %w", err)
		}
	}
	return os.WriteFile(spec.Location, []byte(spec.Name), 0o600)
}

func (e *checkpointing) CheckRestore(_ *engine.Sandbox, handler string) error {
	if handler != e.handler {
		return fmt.Errorf("handler %q restores nothing: %w", handler, errs.Unsupported)
	}
	return nil
}

func (e *checkpointing) ReadCheckpoint(_ context.Context, spec *engine.RestoreSpec) ([]string, error) {
	name, err := os.ReadFile(spec.Location)
	if err == nil && string(name) != spec.Name {
		err = fmt.Errorf("the archive is that of container %q: %w", name, errs.Invalid)
	}
	return []string{podtest.ImageName}, err
}

// withStages returns a bed whose engine writes checkpoints, with a pod of two running containers, a and b.
func withStages(t *testing.T, script *podtest.Script) (b *bed, s *stages) {
	t.Helper()
	s = &stages{fail: func(string, engine.CheckpointStage) error { return nil }}
	w := podtest.NewWorld(t, podtest.Fake())
	w.Limits = pod.Limits{Batch: time.Millisecond, RetryMin: time.Millisecond}
	w.Wrap = func(e *podtest.EngineOf) engine.Engine { return &checkpointing{e, s, ""} }
	return &bed{World: w, T: t, script: script, s: w.Daemon(script)}, s
}

func TestCheckpointSandbox(t *testing.T) {
	b, s := withStages(t, podtest.NewScript(nil))
	sandbox := b.mustRun(b.SandboxConfig("web"))
	ids := []string{b.mustStart(sandbox, "a", b.Programs.Sleep), b.mustStart(sandbox, "b", b.Programs.Sleep)}
	t.Run("one moment", func(t *testing.T) {
		dir := t.TempDir()
		if err := b.s.CheckpointSandbox(t.Context(), sandbox, dir, ids); err != nil {
			t.Fatal(err)
		}
		if want := []string{"paused", "paused", "captured", "captured", "written", "written"}; !slices.Equal(s.order, want) {
			t.Errorf("got %q", s.order)
		}
		if names := namesIn(t, dir); names != "0.tar 1.tar pod.json" {
			t.Errorf("the directory has %s", names)
		}
	})
	broken := errors.New("broken")
	for _, stage := range []engine.CheckpointStage{engine.CheckpointPaused, engine.CheckpointCaptured, engine.CheckpointWritten} {
		t.Run("a failure before "+string(stage), func(t *testing.T) {
			s.fail = func(name string, at engine.CheckpointStage) error {
				if name == "b" && at == stage {
					return broken
				}
				return nil
			}
			dir := t.TempDir()
			err := b.s.CheckpointSandbox(t.Context(), sandbox, dir, ids)
			if !errors.Is(err, broken) || strings.Contains(err.Error(), "goes on") || !strings.Contains(err.Error(), ids[1]) {
				t.Errorf("the failure of another container hides it: %v", err)
			}
			if names := namesIn(t, dir); names != "" {
				t.Errorf("the directory has %s", names)
			}
		})
	}
	t.Run("the deadline", func(t *testing.T) {
		answered := make(chan struct{})
		s.fail = func(name string, _ engine.CheckpointStage) error {
			if name == "b" {
				<-answered
			}
			return nil
		}
		ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
		defer cancel()
		assertKind(t, b.s.CheckpointSandbox(ctx, sandbox, t.TempDir(), ids), errs.Deadline)
		close(answered)
		podtest.Eventually(t, "the job ends", func() bool { return len(b.s.Jobs()) == 0 })
	})
	b.clear()
}

func namesIn(t *testing.T, dir string) string {
	t.Helper()
	paths, err := filepath.Glob(filepath.Join(dir, "*"))
	if err != nil {
		t.Fatal(err)
	}
	for i := range paths {
		paths[i] = filepath.Base(paths[i])
	}
	return strings.Join(paths, " ")
}

// restoreRequest writes a checkpoint on a machine of its own, and returns the request that restores it on b.
func restoreRequest(t *testing.T, b *bed) *runtimeapi.RestorePodRequest {
	t.Helper()
	from, _ := withStages(t, podtest.NewScript(nil))
	sandbox := from.mustRun(from.SandboxConfig("web"))
	ids := []string{from.mustStart(sandbox, "a", from.Programs.Sleep), from.mustStart(sandbox, "b", from.Programs.Sleep)}
	dir := t.TempDir()
	if err := from.s.CheckpointSandbox(t.Context(), sandbox, dir, ids); err != nil {
		t.Fatal(err)
	}
	from.clear()
	return &runtimeapi.RestorePodRequest{
		CheckpointPath: dir, Config: b.SandboxConfig("web"),
		ContainerConfigs: []*runtimeapi.ContainerConfig{b.ContainerConfig("b", b.Programs.Sleep), b.ContainerConfig("a", b.Programs.Sleep)},
	}
}

// isWhole checks that a restored pod has both containers, and that the same request gets it.
func isWhole(t *testing.T, b *bed, req *runtimeapi.RestorePodRequest) {
	t.Helper()
	id, restored, err := b.s.RestoreSandbox(t.Context(), req)
	if err != nil {
		t.Fatal(err)
	}
	if len(restored) != 2 || restored[0].Name != "a" || restored[1].Name != "b" {
		t.Fatalf("restored %v", restored)
	}
	for _, c := range restored {
		if status := b.status(c.ContainerId); status.State != runtimeapi.ContainerState_CONTAINER_CREATED || status.Metadata.Name != c.Name {
			t.Errorf("container %v: %v", c, status)
		}
	}
	b.assertListed(map[string]runtimeapi.PodSandboxState{id: runtimeapi.PodSandboxState_SANDBOX_READY})
	again, same, err := b.s.RestoreSandbox(t.Context(), req)
	if err != nil || again != id || fmt.Sprint(same) != fmt.Sprint(restored) {
		t.Errorf("the same request again: %s, %v, %v", again, same, err)
	}
	if err := b.s.StartContainer(t.Context(), restored[0].ContainerId); err != nil {
		t.Error(err)
	}
	if _, _, err := b.s.RestoreSandbox(t.Context(), req); !errors.Is(err, errs.Exists) {
		t.Errorf("a restore of a pod that runs: %v", err)
	}
	if _, err := b.s.RunSandbox(t.Context(), req.Config, ""); !errors.Is(err, errs.Exists) {
		t.Errorf("a run of it: %v", err)
	}
	b.clear()
}

// TestRestoreIsRefused: where no containers are restored, nothing is made.
func TestRestoreIsRefused(t *testing.T) {
	b, _ := withStages(t, podtest.NewScript(nil))
	req := restoreRequest(t, b)
	p := &point{n: 1}
	b, _ = withStages(t, podtest.NewScript(p.decide))
	p.on.Store(true)
	req.RuntimeHandler = "other"
	if _, _, err := b.s.RestoreSandbox(t.Context(), req); !errors.Is(err, errs.Unsupported) {
		t.Errorf("error %v", err)
	}
	if calls := p.seen.Load(); calls != 0 {
		t.Errorf("%d calls were made", calls)
	}
}

// forPlatforms finds images for a platform only.
type forPlatforms struct{ *podtest.Images }

func (forPlatforms) Get(context.Context, string) (*image.Image, error) {
	return nil, fmt.Errorf("an image without its platform: %w", errs.Invalid)
}

// TestRestoreForAPlatform: the base image of a checkpoint is that for the platform of the pod.
func TestRestoreForAPlatform(t *testing.T) {
	b, _ := withStages(t, podtest.NewScript(nil))
	req := restoreRequest(t, b)
	images := podtest.NewImages()
	images.Image.OS, images.Image.Architecture = "wasi", "wasm"
	b.Images = forPlatforms{images}
	b.Platforms = func() map[string]string { return map[string]string{"": "wasi/wasm"} }
	b.restart()
	if _, _, err := b.s.RestoreSandbox(t.Context(), req); err != nil {
		t.Error(err)
	}
	b.clear()
}

// TestRestoreSandbox: each call of a restore fails, and each is the last one before the daemon dies. A failure leaves
// nothing. After a death the pod is whole, or nothing of it is left, and the same request restores it.
func TestRestoreSandbox(t *testing.T) {
	b, _ := withStages(t, podtest.NewScript(nil))
	req := restoreRequest(t, b)
	isWhole(t, b, req)
	for n := int64(1); ; n++ {
		p := &point{n: n, err: podtest.ErrInjected}
		b, _ := withStages(t, podtest.NewScript(p.decide))
		p.on.Store(true)
		_, _, err := b.s.RestoreSandbox(t.Context(), req)
		if p.seen.Load() < n {
			break
		}
		if err != nil {
			podtest.Eventually(t, "a failure "+p.name()+" leaves nothing", func() bool { return len(b.s.Jobs()) == 0 && len(b.Leftovers()) == 0 })
		}
		isWhole(t, b, req)
	}
	for n := int64(1); ; n++ {
		p := &point{n: n, err: podtest.ErrDead}
		script := podtest.NewScript(p.decide)
		b, _ := withStages(t, script)
		p.on.Store(true)
		answered, service := make(chan error, 1), b.s
		go func() {
			_, _, err := service.RestoreSandbox(context.WithoutCancel(t.Context()), req)
			answered <- err
		}()
		select {
		case <-answered:
		case <-script.Crashed():
		}
		if p.seen.Load() < n {
			break
		}
		b.restart()
		podtest.Eventually(t, "the next daemon cleans up after a death "+p.name(), func() bool {
			return len(b.s.Jobs()) == 0 && (len(b.listed()) == 1 || len(b.Leftovers()) == 0)
		})
		isWhole(t, b, req)
	}
}

// point is the n-th one of a script since it is on. It returns an error there. The collection of network attachments
// does not count: a daemon starts it in the background, so it falls before or after the moment a point is on.
type point struct {
	n    int64
	err  error
	on   atomic.Bool
	seen atomic.Int64
	at   atomic.Pointer[string]
}

func (p *point) decide(_ int, name string) error {
	if !p.on.Load() || strings.HasSuffix(name, " network.GC") || p.seen.Add(1) != p.n {
		return nil
	}
	p.at.Store(&name)
	return p.err
}

func (p *point) name() string { return *p.at.Load() }

// TestRestoredPodIsHidden: a pod that is restored is not listed, cannot be used, and is removed by its id.
func TestRestoredPodIsHidden(t *testing.T) {
	script := podtest.NewScript(nil)
	hang := script.HangAt("before engine.Create", false)
	b, _ := withStages(t, script)
	req := restoreRequest(t, b)
	done := make(chan error, 1)
	go func() {
		_, _, err := b.s.RestoreSandbox(t.Context(), req)
		done <- err
	}()
	<-hang.Reached
	b.assertListed(nil)
	var id string
	for _, j := range b.s.Jobs() {
		if j.Kind == "restore sandbox" {
			id = j.ID
		}
	}
	if _, err := b.s.CreateContainer(t.Context(), id, b.ContainerConfig("other", b.Programs.Sleep)); !errors.Is(err, errs.NotFound) {
		t.Errorf("a container in it: %v", err)
	}
	if err := b.s.RemoveSandbox(t.Context(), id); err != nil {
		t.Error(err)
	}
	if err := <-done; err == nil {
		t.Error("it was restored")
	}
	hang.Release()
	b.clear()
}
