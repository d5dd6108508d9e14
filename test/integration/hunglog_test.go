//go:build integration

package integration

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/berthrun/berth/test/harness"
	"github.com/berthrun/berth/test/harness/hungfs"
	"golang.org/x/sync/errgroup"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// One pod's log directory hangs. The others start, log, run execs and exit as usual. The log of the
// one is complete once the directory answers again.
func TestHungLogDirectoryHoldsUpItsPodOnly(t *testing.T) {
	b := harness.Start(t, harness.Options{})
	behind, at := t.TempDir(), filepath.Join(b.Logs, "hung")
	if err := os.Mkdir(at, 0o755); err != nil {
		t.Fatal(err)
	}
	disk := hungfs.Mount(t, behind, at)
	const lines = 20000
	hung := b.RunPod("hung", fmt.Sprintf(`i=0; while [ $i -lt %d ]; do i=$((i+1)); echo line $i of a log on a disk that hangs; done; exit 9`, lines))
	b.Await("the first line", func() bool { return size(filepath.Join(behind, "c", "0.log")) > 0 })
	disk.Hang()
	// The test requests a second pod on the same disk while it hangs. It may fail or wait, in
	// bounded time.
	late := b.Sandbox("late")
	late.LogDirectory = filepath.Join(at, "late")
	asked := make(chan error, 1)
	go func() { asked <- runLate(b, late) }()

	others(t, b)
	if b.Docker == nil { // the engine has a copy of the log, so the container does not wait
		if got := b.Status(hung.Container).State; got != runtimeapi.ContainerState_CONTAINER_RUNNING {
			t.Errorf("the container whose log hangs is %v", got)
		}
		if got := b.ExecOut(hung.Container, "echo here"); got != "here" {
			t.Errorf("exec in it answered %q", got)
		}
	}
	disk.Answer()
	if err := <-asked; err != nil {
		t.Logf("the pod that was asked for meanwhile: %v", err)
	}
	status := b.AwaitExit(hung.Container)
	if status.ExitCode != 9 {
		t.Errorf("exit code %d, want 9", status.ExitCode)
	}
	got, err := harness.LogLines(hung.LogFile)
	if err != nil || len(got) != lines {
		t.Fatalf("%d lines, want %d: %v", len(got), lines, err)
	}
	for i, line := range got {
		if want := fmt.Sprintf("line %d of a log on a disk that hangs", i+1); line != want {
			t.Fatalf("line %d is %q", i+1, line)
		}
	}
	b.RemoveAllPods() // before the disk is unmounted
}

// A pod whose log directory hangs can be removed while it hangs, or the removal is reported as
// under way, in bounded time. It does not delay other pods, and no exit is lost.
func TestPodOfAHungLogDirectoryIsRemoved(t *testing.T) {
	b := harness.Start(t, harness.Options{})
	behind, at := t.TempDir(), filepath.Join(b.Logs, "hung")
	if err := os.Mkdir(at, 0o755); err != nil {
		t.Fatal(err)
	}
	disk := hungfs.Mount(t, behind, at)
	hung := b.RunPod("hung", `while :; do echo more of it; done`)
	b.Await("the first line", func() bool { return size(filepath.Join(behind, "c", "0.log")) > 0 })
	disk.Hang()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	begin := time.Now()
	_, err := b.Runtime.StopContainer(ctx, &runtimeapi.StopContainerRequest{ContainerId: hung.Container, Timeout: 1})
	t.Logf("stop answered after %s: %v", time.Since(begin).Round(time.Millisecond), err)
	if took := time.Since(begin); took > 11*time.Second {
		t.Errorf("stop took %s", took)
	}
	others(t, b)
	disk.Answer()
	if status := b.AwaitExit(hung.Container); status.ExitCode != 128+9 && status.ExitCode != 128+15 {
		t.Errorf("exit code %d (%s)", status.ExitCode, status.Reason)
	}
	b.RemovePod(hung.Sandbox)
}

func runLate(b *harness.Berth, config *runtimeapi.PodSandboxConfig) error {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	sandbox, err := b.Runtime.RunPodSandbox(ctx, &runtimeapi.RunPodSandboxRequest{Config: config})
	if err != nil {
		return err
	}
	_, err = b.Runtime.CreateContainer(ctx, &runtimeapi.CreateContainerRequest{
		PodSandboxId: sandbox.PodSandboxId, Config: b.Container("c", "exit 0"), SandboxConfig: config,
	})
	return err
}

// others runs pods from start to removal, in the usual time.
func others(t *testing.T, b *harness.Berth) {
	t.Helper()
	begin := time.Now()
	var g errgroup.Group
	for i := range 6 {
		g.Go(func() error { return other(b, fmt.Sprintf("other-%d", i), int32(i)) })
	}
	if err := g.Wait(); err != nil {
		t.Errorf("a pod whose disk is well: %v", err)
	}
	t.Logf("6 others took %s", time.Since(begin).Round(time.Millisecond))
}

func other(b *harness.Berth, name string, code int32) error {
	limit := 15 * time.Second
	if b.Docker != nil { // an engine starts one container after the other
		limit = time.Minute
	}
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	config := b.Sandbox(name)
	sandbox, err := b.Runtime.RunPodSandbox(ctx, &runtimeapi.RunPodSandboxRequest{Config: config})
	if err != nil {
		return err
	}
	container, err := b.Runtime.CreateContainer(ctx, &runtimeapi.CreateContainerRequest{
		PodSandboxId: sandbox.PodSandboxId, SandboxConfig: config,
		Config: b.Container("c", fmt.Sprintf("mkfifo /tmp/go; echo hello; read word < /tmp/go; exit %d", code)),
	})
	if err != nil {
		return err
	}
	id := container.ContainerId
	if _, err := b.Runtime.StartContainer(ctx, &runtimeapi.StartContainerRequest{ContainerId: id}); err != nil {
		return err
	}
	if _, err := b.Runtime.ExecSync(ctx, &runtimeapi.ExecSyncRequest{
		ContainerId: id, Cmd: []string{"/bin/sh", "-c", "until [ -p /tmp/go ]; do usleep 1000; done; echo word > /tmp/go"},
	}); err != nil {
		return err
	}
	for {
		answer, err := b.Runtime.ContainerStatus(ctx, &runtimeapi.ContainerStatusRequest{ContainerId: id})
		if err != nil {
			return err
		}
		if answer.Status.State != runtimeapi.ContainerState_CONTAINER_EXITED {
			time.Sleep(5 * time.Millisecond)
			continue
		}
		lines, err := harness.LogLines(answer.Status.LogPath)
		if err != nil || answer.Status.ExitCode != code || len(lines) != 1 || lines[0] != "hello" {
			return fmt.Errorf("code %d, want %d; log %q: %w", answer.Status.ExitCode, code, lines, err)
		}
		_, err = b.Runtime.RemovePodSandbox(ctx, &runtimeapi.RemovePodSandboxRequest{PodSandboxId: sandbox.PodSandboxId})
		return err
	}
}

func size(path string) int64 {
	info, err := os.Stat(path)
	if err != nil {
		return 0
	}
	return info.Size()
}
