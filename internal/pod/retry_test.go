package pod_test

import (
	"fmt"
	"sync"
	"testing"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/pod/podtest"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// Rule (b): equal requests get the same sandbox, during its creation and after it.
func TestEqualRequestsJoin(t *testing.T) {
	b := newBed(t, nil)
	hang := b.script.HangAt("before network.Attach", false)
	var wg sync.WaitGroup
	var ids [5]string
	for i := range ids {
		wg.Go(func() {
			id, err := b.s.RunSandbox(t.Context(), b.SandboxConfig("web"), "")
			if err != nil {
				t.Errorf("RunSandbox: %v", err)
			}
			ids[i] = id
		})
	}
	<-hang.Reached
	podtest.Eventually(t, "all wait for one job", func() bool { jobs := b.s.Jobs(); return len(jobs) == 1 && jobs[0].Waiters == 5 })
	hang.Release()
	wg.Wait()
	again := b.mustRun(b.SandboxConfig("web"))
	for _, id := range ids {
		if id != again || id == "" {
			t.Errorf("ids %v, again %s", ids, again)
		}
	}
	if n := b.script.Count("before network.Attach"); n != 1 {
		t.Errorf("attached %d times", n)
	}
	b.clear()
}

// Rule (b) for a kubelet's retries: values that a kubelet generates for each attempt do not make
// the request a different one, neither during the job nor after it.
func TestRetriesOfAKubeletJoin(t *testing.T) {
	b := newBed(t, nil)
	seen := func(at string) *runtimeapi.PodSandboxConfig {
		config := b.SandboxConfig("web")
		config.Annotations = map[string]string{"kubernetes.io/config.seen": at, "kubernetes.io/config.source": "api"}
		return config
	}
	hang := b.script.HangAt("before network.Attach", false)
	first := b.runLater(t.Context(), seen("1"))
	<-hang.Reached
	second := b.runLater(t.Context(), seen("2"))
	podtest.Eventually(t, "both wait for one job", func() bool { jobs := b.s.Jobs(); return len(jobs) == 1 && jobs[0].Waiters == 2 })
	hang.Release()
	sandbox := (<-first).id
	if got := (<-second).id; got != sandbox || sandbox == "" || b.mustRun(seen("3")) != sandbox {
		t.Errorf("the retry got %q, the first %q", got, sandbox)
	}

	container := func(lastWords string, envs ...string) *runtimeapi.ContainerConfig {
		config := b.ContainerConfig("main", b.Programs.Sleep)
		config.Annotations = map[string]string{"io.kubernetes.container.terminationMessagePath": "/dev/termination-log"}
		config.Mounts = []*runtimeapi.Mount{{ContainerPath: "/dev/termination-log", HostPath: lastWords}}
		for _, key := range envs {
			config.Envs = append(config.Envs, &runtimeapi.KeyValue{Key: key, Value: []byte("v")})
		}
		return config
	}
	id, err := b.s.CreateContainer(t.Context(), sandbox, container("/tmp/5d41402a", "A", "B"))
	if err != nil {
		t.Fatal(err)
	}
	if again, err := b.s.CreateContainer(t.Context(), sandbox, container("/tmp/7d793037", "B", "A")); again != id {
		t.Errorf("the retry got %q, %v, the first %q", again, err, id)
	}
	_, err = b.s.CreateContainer(t.Context(), sandbox, container("/tmp/7d793037", "B", "C"))
	assertKind(t, err, errs.Exists, "config.envs[0].key", id)
	status := b.status(id)
	if len(status.GetMounts()) != 1 || status.Mounts[0].HostPath != "/tmp/5d41402a" {
		t.Errorf("mounts %v: want the file that the container has", status.GetMounts())
	}
	b.clear()
}

// A kubelet that has just started has not listed its pods yet and requests one that runs. It must
// not get the same sandbox, because it would create the containers a second time.
func TestSandboxWithContainersIsNotReturnedAgain(t *testing.T) {
	b := newBed(t, nil)
	sandbox := b.mustRun(b.SandboxConfig("web"))
	if again := b.mustRun(b.SandboxConfig("web")); again != sandbox {
		t.Errorf("asked again before it had containers: %s, not %s", again, sandbox)
	}
	container := b.mustCreate(sandbox, "main", b.Programs.Sleep)
	_, err := b.s.RunSandbox(t.Context(), b.SandboxConfig("web"), "")
	assertKind(t, err, errs.Exists, sandbox, "has containers", container)
	b.restart()
	_, err = b.s.RunSandbox(t.Context(), b.SandboxConfig("web"), "")
	assertKind(t, err, errs.Exists, sandbox)
	if err := b.s.RemoveContainer(t.Context(), container); err != nil {
		t.Fatal(err)
	}
	if again := b.mustRun(b.SandboxConfig("web")); again != sandbox {
		t.Errorf("asked again without containers: %s, not %s", again, sandbox)
	}
	b.clear()
}

// Rule (b): another config cancels a running job, and a new job starts.
func TestOtherConfigReplacesRunningJob(t *testing.T) {
	b := newBed(t, nil)
	hang := b.script.HangAt("after network.Attach", false)
	first := b.runLater(t.Context(), b.SandboxConfig("web"))
	<-hang.Reached
	other := b.SandboxConfig("web")
	other.Hostname = "other"
	second := b.runLater(t.Context(), other)
	assertKind(t, (<-first).err, errs.Unavailable)
	hang.Release()
	got := <-second
	if got.err != nil {
		t.Fatalf("RunSandbox: %v", got.err)
	}
	b.assertListed(map[string]runtimeapi.PodSandboxState{got.id: ready})
	if left := b.Left(); len(left) != 1 {
		t.Errorf("attached: %v", left)
	}
	b.clear()
}

// Rule (b): after success another config is refused. The error names the field.
func TestOtherConfigAfterSuccess(t *testing.T) {
	b := newBed(t, nil)
	sandbox := b.mustRun(b.SandboxConfig("web"))
	other := b.SandboxConfig("web")
	other.Labels = map[string]string{"app": "other"}
	_, err := b.s.RunSandbox(t.Context(), other, "")
	assertKind(t, err, errs.Exists, `config.labels["app"]`, sandbox)
	_, err = b.s.RunSandbox(t.Context(), b.SandboxConfig("web"), "gvisor")
	assertKind(t, err, errs.Exists, "runtime_handler")
	next := b.SandboxConfig("web")
	next.Metadata.Attempt = 1
	if b.mustRun(next) == sandbox {
		t.Error("the next attempt got the sandbox of the last")
	}

	id := b.mustCreate(sandbox, "main", b.Programs.Sleep)
	if again := b.mustCreate(sandbox, "main", b.Programs.Sleep); again != id {
		t.Errorf("the retry got %s, not %s", again, id)
	}
	_, err = b.s.CreateContainer(t.Context(), sandbox, b.ContainerConfig("main", b.Programs.Stubborn))
	assertKind(t, err, errs.Exists, "config.command[0]", id)
	if err := b.s.StartContainer(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	_, err = b.s.CreateContainer(t.Context(), sandbox, b.ContainerConfig("main", b.Programs.Sleep))
	assertKind(t, err, errs.Exists, "running")
	if err := b.s.StopSandbox(t.Context(), sandbox); err != nil {
		t.Fatal(err)
	}
	_, err = b.s.RunSandbox(t.Context(), b.SandboxConfig("web"), "")
	assertKind(t, err, errs.Exists, "stopped")
	b.clear()
}

// A prefix that several ids share is refused. The error names the field.
func TestAmbiguousIDNamesItsField(t *testing.T) {
	b := newBed(t, nil)
	begun := map[string]bool{}
	for i := 0; ; i++ {
		first := b.mustRun(b.SandboxConfig(fmt.Sprint("web", i)))[:1]
		if begun[first] {
			_, err := b.s.SandboxStatus(t.Context(), first, false)
			assertKind(t, err, errs.Invalid, "pod_sandbox_id", "ambiguous")
			assertKind(t, b.s.StopSandbox(t.Context(), first), errs.Invalid, "pod_sandbox_id")
			break
		}
		begun[first] = true
	}
	b.clear()
}
