//go:build integration

package integration

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/berthrun/berth/internal/docker/dockertest"
	"github.com/berthrun/berth/test/harness"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// runtimeReady returns the condition RuntimeReady.
func runtimeReady(b *harness.Berth) *runtimeapi.RuntimeCondition {
	b.T.Helper()
	status, err := b.Runtime.Status(b.Ctx(), &runtimeapi.StatusRequest{})
	if err != nil {
		b.T.Fatal(err)
	}
	for _, c := range status.GetStatus().GetConditions() {
		if c.GetType() == runtimeapi.RuntimeReady {
			return c
		}
	}
	b.T.Fatal("no condition RuntimeReady")
	return nil
}

// printNumbers prints increasing numbers, ten a second.
const printNumbers = `i=0; while true; do echo $i; i=$((i+1)); sleep 0.1; done`

// numbersIn returns the numbers in a log, and fails the test if they are not 0, 1, 2 and so on.
func numbersIn(t *testing.T, path string) int {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	next := 0
	for line := range strings.Lines(string(data)) {
		fields := strings.Fields(line)
		if len(fields) != 4 || fields[3] != fmt.Sprint(next) {
			t.Fatalf("line %d of the log is %q", next+1, line)
		}
		next++
	}
	return next
}

// TestDockerEngineIsKilled: while the Docker engine is away, the runtime is not ready and says
// why. With live-restore containers run on, and no line of their logs is lost or doubled.
func TestDockerEngineIsKilled(t *testing.T) {
	b := harness.Start(t, harness.Options{Docker: &dockertest.Options{LiveRestore: true}})
	pod := b.RunPod("counts", printNumbers)
	log := b.Status(pod.Container).GetLogPath()
	b.Await("the first lines", func() bool { return numbersIn(t, log) > 3 })
	for range 3 {
		b.Docker.Kill()
		b.Await("the condition", func() bool { return !runtimeReady(b).GetStatus() })
		if c := runtimeReady(b); c.GetReason() != "DockerDaemonNotReady" || c.GetMessage() == "" {
			t.Errorf("condition %v", c)
		}
		if state := b.Status(pod.Container).GetState(); state != runtimeapi.ContainerState_CONTAINER_RUNNING {
			t.Errorf("the container is %v while the engine is away", state)
		}
		b.Docker.Launch()
		b.Await("the runtime to be ready", func() bool { return runtimeReady(b).GetStatus() })
		seen := numbersIn(t, log)
		b.Await("more lines", func() bool { return numbersIn(t, log) > seen+3 })
	}
	if got := b.ExecOut(pod.Container, "echo still here"); got != "still here" {
		t.Errorf("exec: %q", got)
	}
}

// TestDockerEngineIsStopped: without live-restore containers end with their engine. Each has a
// true end, and a new pod runs.
func TestDockerEngineIsStopped(t *testing.T) {
	b := harness.Start(t, harness.Options{Docker: &dockertest.Options{}})
	pod := b.RunPod("ends", "sleep 10000")
	b.Docker.Restart()
	status := b.AwaitExit(pod.Container)
	if status.GetExitCode() == 0 || status.GetFinishedAt() == 0 || status.GetReason() == "" {
		t.Errorf("status %v", status)
	}
	b.Await("the sandbox to be not ready", func() bool {
		return b.SandboxStatus(pod.Sandbox).GetState() == runtimeapi.PodSandboxState_SANDBOX_NOTREADY
	})
	b.RemovePod(pod.Sandbox)
	b.RunPod("next", "sleep 10000")
}

// TestBerthIsKilledOverDocker: a killed berth finds its pods, their exits and the rest of their
// logs.
func TestBerthIsKilledOverDocker(t *testing.T) {
	b := harness.Start(t, harness.Options{Docker: &dockertest.Options{}})
	counts, ends := b.RunPod("counts", printNumbers), b.RunPod("ends", "sleep 1; exit 7")
	log := b.Status(counts.Container).GetLogPath()
	for range 3 {
		b.KillDaemon()
		b.StartDaemon()
		seen := numbersIn(t, log)
		b.Await("more lines", func() bool { return numbersIn(t, log) > seen+3 })
	}
	if status := b.AwaitExit(ends.Container); status.GetExitCode() != 7 {
		t.Errorf("status %v, want exit code 7", status)
	}
	if state := b.Status(counts.Container).GetState(); state != runtimeapi.ContainerState_CONTAINER_RUNNING {
		t.Errorf("the container is %v", state)
	}
}

// TestEngineChanges: pods of the former engine are stopped, with their exits on record, and hold
// nothing; pods run on the new engine.
func TestEngineChanges(t *testing.T) {
	t.Setenv("BERTH_ENGINE", "native")
	b := harness.Start(t, harness.Options{})
	docker := b.StartDocker(dockertest.Options{})
	change := func(to string, args ...string) {
		t.Helper()
		before := b.RunPod("before-"+to, "trap 'exit 5' TERM; while true; do sleep 0.1; done")
		b.ChangeEngine(args...)
		if status := b.Status(before.Container); status.GetState() != runtimeapi.ContainerState_CONTAINER_EXITED || status.GetExitCode() != 5 {
			t.Errorf("%s: the pod of the former engine: %v", to, status)
		}
		if state := b.SandboxStatus(before.Sandbox).GetState(); state != runtimeapi.PodSandboxState_SANDBOX_NOTREADY {
			t.Errorf("%s: the sandbox of the former engine is %v", to, state)
		}
		if left := held(b, before.Sandbox); len(left) > 0 {
			t.Errorf("%s: left of the former engine's pod: %v", to, left)
		}
		b.ImportBusybox()
		after := b.RunPod("after-"+to, "sleep 10000")
		if got := b.ExecOut(after.Container, "echo runs"); got != "runs" {
			t.Errorf("%s: %q", to, got)
		}
		b.RemovePod(before.Sandbox)
		b.RemovePod(after.Sandbox)
	}
	change("docker", docker...)
	change("native", "--engine", "native", "--docker-endpoint", b.Docker.Endpoint)
}
