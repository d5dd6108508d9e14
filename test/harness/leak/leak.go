// Package leak runs pods through their whole lives, many at a time, and checks what is left of
// them: on the host, in berth's state, and in berth's processes.
package leak

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/berthrun/berth/internal/image/imagetest"
	"github.com/berthrun/berth/test/harness"
	"golang.org/x/sync/errgroup"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// Options of a run.
type Options struct {
	// Pods in all, Parallel at a time. Memory is measured after Early of them and
	// at the end.
	Pods, Parallel, Early int
	// MemoryKiB is how much more memory the processes may have at the end.
	MemoryKiB int64
}

const (
	// cleanupTimeout is how long everything may take to disappear after the last pod.
	cleanupTimeout = time.Minute
	// collected is how many descriptors may wait for the collector of garbage in
	// the supervisor, and spare how many goroutines may differ between two moments
	// of rest.
	collected, spare = 100, 5
	// rest is longer than the time between two looks of a process for memory that it can return to the host.
	rest = 5 * time.Second
)

// Run runs the pods and fails the test if something is left.
func Run(t *testing.T, opts Options) {
	b := harness.Start(t, harness.Options{Args: []string{"--log-level", "info"}})
	b.NeedsPart(t, harness.Supervisors) // it measures all three processes
	b.ImportDeclaring(volumesImage, []string{"/data", "/empty"}, imagetest.File{Path: "/data/file", Content: []byte("x")})
	lives(t, b, "warm", opts.Parallel, opts.Parallel)
	b.StillGround()
	goroutines := quit(t, b)
	// The new processes create again what they create once and keep.
	lives(t, b, "again", opts.Parallel, opts.Parallel)
	before := b.StillGround()

	began := time.Now()
	lives(t, b, "early", opts.Early, opts.Parallel)
	early := memory(t, b, before)
	lives(t, b, "late", opts.Pods-opts.Early, opts.Parallel)
	t.Logf("%d pods in %s", opts.Pods, time.Since(began).Round(time.Second))
	late := memory(t, b, before)
	t.Logf("PSS after %d pods: %s", opts.Early, early)
	t.Logf("PSS after %d pods: %s", opts.Pods, late)
	if more := late.sum() - early.sum(); more > opts.MemoryKiB {
		t.Errorf("%d KiB more after %d pods than after %d, want at most %d", more, opts.Pods, opts.Early, opts.MemoryKiB)
	}
	for name, pid := range processes(b) {
		if entries, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", pid)); err != nil || len(entries) > collected {
			t.Errorf("the %s has %d descriptors: %v", name, len(entries), err)
		}
	}
	for name, now := range quit(t, b) {
		t.Logf("goroutines of the %s: %d, were %d", name, now, goroutines[name])
		if now > goroutines[name]+spare {
			t.Errorf("%d goroutines in the %s, were %d", now, name, goroutines[name])
		}
	}
	b.AwaitDaemon()
}

// lives runs n pods through their lives, parallel at a time.
func lives(t *testing.T, b *harness.Berth, name string, n, parallel int) {
	t.Helper()
	group, ctx := errgroup.WithContext(t.Context())
	group.SetLimit(parallel)
	for i := range n {
		group.Go(func() error { return life(ctx, b, fmt.Sprintf("%s-%d", name, i), i) })
	}
	if err := group.Wait(); err != nil {
		t.Fatal(err)
	}
}

// volumesImage declares volumes.
const volumesImage = "docker.io/library/volumes:leak"

// life is one pod: it logs, some run execs, some have a terminal, some have volumes of their image,
// some fail, and half are removed while they run.
func life(ctx context.Context, b *harness.Berth, name string, i int) error {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	config := b.Sandbox(name)
	sandbox, err := b.Runtime.RunPodSandbox(ctx, &runtimeapi.RunPodSandboxRequest{Config: config})
	if err != nil {
		return err
	}
	script := "echo out; echo err >&2; exit 3"
	if i%2 == 0 {
		script = "echo out; exec sleep 100000"
	}
	container := b.Container("c", script)
	container.Tty = i%5 == 0
	if i%4 < 2 {
		container.Image.Image = volumesImage
	}
	switch i % 7 {
	case failsCreate:
		container.Mounts = []*runtimeapi.Mount{{HostPath: config.LogDirectory, ContainerPath: "/bin/busybox"}} // a directory on a file
	case failsStart:
		container.Command = []string{"/no/such"}
	}
	made, err := b.Runtime.CreateContainer(ctx, &runtimeapi.CreateContainerRequest{PodSandboxId: sandbox.PodSandboxId, Config: container, SandboxConfig: config})
	switch {
	case (err != nil) != (i%7 == failsCreate && b.Has(harness.EarlyFaults)):
		return fmt.Errorf("creation: %w", err)
	case err == nil:
		if err := use(ctx, b, made.ContainerId, i); err != nil {
			return err
		}
	}
	if i%3 != 0 {
		if _, err := b.Runtime.StopPodSandbox(ctx, &runtimeapi.StopPodSandboxRequest{PodSandboxId: sandbox.PodSandboxId}); err != nil {
			return err
		}
	}
	if _, err := b.Runtime.RemovePodSandbox(ctx, &runtimeapi.RemovePodSandboxRequest{PodSandboxId: sandbox.PodSandboxId}); err != nil {
		return err
	}
	return os.RemoveAll(config.LogDirectory)
}

// Which pods, modulo 7, have a container that cannot be created or started.
const (
	failsCreate = 0
	failsStart  = 3
)

func use(ctx context.Context, b *harness.Berth, container string, i int) error {
	_, err := b.Runtime.StartContainer(ctx, &runtimeapi.StartContainerRequest{ContainerId: container})
	if (i%7 == failsStart || i%7 == failsCreate) && err != nil {
		return nil
	}
	if err != nil {
		return err
	}
	if i%4 == 0 {
		answer, err := b.Runtime.ExecSync(ctx, &runtimeapi.ExecSyncRequest{ContainerId: container, Cmd: []string{"echo", "here"}, Timeout: 60})
		if err != nil || string(answer.Stdout) != "here\n" {
			return fmt.Errorf("exec: %q, %w", answer.GetStdout(), err)
		}
	}
	if _, err := b.Runtime.StopContainer(ctx, &runtimeapi.StopContainerRequest{ContainerId: container}); err != nil {
		return err
	}
	_, err = b.Runtime.ContainerStatus(ctx, &runtimeapi.ContainerStatusRequest{ContainerId: container, Verbose: true})
	return err
}

func processes(b *harness.Berth) map[string]int {
	return map[string]int{"daemon": b.DaemonPid(), "supervisor": b.SupervisorPid(), "keeper": b.KeeperPid()}
}

// usage is the memory of each process in KiB.
type usage map[string]int64

func (u usage) sum() int64 { return u["daemon"] + u["supervisor"] + u["keeper"] }

func (u usage) String() string {
	return fmt.Sprintf("daemon %d, supervisor %d, keeper %d, together %d KiB", u["daemon"], u["supervisor"], u["keeper"], u.sum())
}

// memory waits until all pods are gone and the processes have returned to the host what they do not need, and measures.
func memory(t *testing.T, b *harness.Berth, before harness.Ground) usage {
	t.Helper()
	if left := b.AwaitGround(before, cleanupTimeout); left != "" {
		t.Errorf("left behind:\n%s", left)
	}
	// A process returns memory some seconds after its last work with pods, and the daemon has answered many lists since. So
	// there is one more pod, and the lowest reading is the one after the processes have returned memory.
	lives(t, b, "last", 1, 1)
	u := usage{}
	for lowered := time.Now(); time.Since(lowered) < rest; time.Sleep(200 * time.Millisecond) {
		for name, pid := range processes(b) {
			if now := pss(t, pid); u[name] == 0 || now < u[name] {
				u[name], lowered = now, time.Now()
			}
		}
	}
	return u
}

func pss(t *testing.T, pid int) int64 {
	t.Helper()
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/smaps_rollup", pid))
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(data)) {
		if fields := strings.Fields(line); len(fields) > 1 && fields[0] == "Pss:" {
			n, err := strconv.ParseInt(fields[1], 10, 64)
			if err != nil {
				t.Fatal(err)
			}
			return n
		}
	}
	t.Fatalf("process %d has no PSS", pid)
	return 0
}

// goroutinePattern is the head of a goroutine in what Go writes on SIGQUIT.
var goroutinePattern = regexp.MustCompile(`(?m)^goroutine \d+ `)

// quit ends daemon and supervisor by SIGQUIT, on which Go writes all goroutines, starts the daemon
// again, and returns how many there were.
func quit(t *testing.T, b *harness.Berth) map[string]int {
	t.Helper()
	logs := map[string]string{"daemon": filepath.Join(b.Dir, "berth.log"), "supervisor": filepath.Join(b.State, "supervisor.log")}
	found := map[string]int{}
	pids := processes(b)
	// The supervisor first: without a daemon and containers it may end by itself.
	for _, name := range []string{"supervisor", "daemon"} {
		begin := int64(0)
		if info, err := os.Stat(logs[name]); err == nil {
			begin = info.Size()
		}
		if err := syscall.Kill(pids[name], syscall.SIGQUIT); err != nil {
			t.Fatal(err)
		}
		b.Await("the end of the "+name, func() bool { return processes(b)[name] != pids[name] || name == "daemon" && !b.Running() })
		data, err := os.ReadFile(logs[name])
		if err != nil {
			t.Fatal(err)
		}
		found[name] = len(goroutinePattern.FindAll(data[begin:], -1))
		if found[name] == 0 {
			t.Fatalf("the %s wrote nothing down", name)
		}
	}
	b.StartDaemon()
	return found
}
