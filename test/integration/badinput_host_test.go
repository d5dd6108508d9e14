//go:build integration

package integration

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/berthrun/berth/internal/image/imagetest"
	"github.com/berthrun/berth/test/harness"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// smallDisk mounts a file system of the given size, for a root directory. It unmounts it after
// berth has ended.
func smallDisk(t *testing.T, size string) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "berth-small-")
	if err != nil {
		t.Fatal(err)
	}
	if err := syscall.Mount("small", dir, "tmpfs", 0, "size="+size); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := syscall.Unmount(dir, 0); err != nil {
			t.Errorf("unmount the small disk: %v", err)
		}
		_ = os.Remove(dir)
	})
	return dir
}

// fill writes until a file system is full, and returns a function that frees the space.
func fill(t *testing.T, dir string) (free func()) {
	t.Helper()
	name := filepath.Join(dir, "filler")
	f, err := os.Create(name)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for size := 1 << 20; size > 0; size /= 2 {
		for chunk := make([]byte, size); ; {
			if _, err := f.Write(chunk); err != nil {
				break
			}
		}
	}
	return func() {
		if err := os.Remove(name); err != nil {
			t.Error(err)
		}
	}
}

func TestFullRootDisk(t *testing.T) {
	root := smallDisk(t, "24m")
	b := harness.New(t, harness.Options{Args: []string{"--root", root}})
	b.Root = root
	b.StartDaemon()
	b.ImportBusybox()
	x := &trial{Berth: b}
	b.RemovePod(b.RunPod("warm", "exit 0").Sandbox)
	x.pod = b.RunPod("good", "sleep 100000")
	x.ground = b.StillGround()
	big := archiveOf(t, imagetest.Spec{Name: "big:1", Files: []imagetest.File{{Path: "/big", Content: bytes.Repeat([]byte("0123456789abcdef"), 2<<20)}}})
	x.try(t, []attempt{x.badArchive("import of more than the disk has", codes.ResourceExhausted, big)})

	free := fill(t, root)
	middle := archiveOf(t, imagetest.Spec{Name: "middle:1", Files: []imagetest.File{{Path: "/middle", Content: []byte("x")}}})
	full := []attempt{
		x.badArchive("import", codes.ResourceExhausted, middle),
		x.badSandbox("sandbox", codes.ResourceExhausted, func(sandboxConfig) {}, "no space left"),
	}
	before := x.Ground()
	for _, a := range full {
		checkNamed(t, a)
		if left := x.AwaitGround(before, 10*time.Second); left != "" {
			t.Errorf("%s: left behind:\n%s", a.name, left)
		}
	}
	// Running containers continue. They can be stopped and removed.
	if got := x.ExecOut(x.pod.Container, "echo here"); got != "here" {
		t.Errorf("exec answered %q", got)
	}
	x.RemovePod(x.pod.Sandbox)
	free()
	if _, err := x.Import(bytes.NewReader(middle)); err != nil {
		t.Errorf("import once there is room: %v", err)
	}
	again := x.RunPod("good", "exit 0")
	x.AwaitExit(again.Container)
}

// The state directory is full, as /run is when another program has filled it. berth refuses
// requests that need a record. Running containers continue, exit, are stopped and removed, also by
// restarted processes of berth. With free space everything works again.
func TestFullStateDirectory(t *testing.T) {
	x := newTrial(t, harness.Options{})
	exits, stopped := x.RunPod("exits", `trap 'exit 7' TERM; while :; do sleep 0.1; done`), x.RunPod("stopped", "sleep 100000")
	resize(t, x.State, "4m")
	free := fill(t, x.State)
	before := x.StillGround()
	for _, a := range []attempt{
		x.badSandbox("sandbox", codes.ResourceExhausted, func(sandboxConfig) {}, "no space left"),
		x.badContainer("container", codes.ResourceExhausted, func(containerConfig) {}, "no space left"),
	} {
		checkNamed(t, a)
		if left := x.AwaitGround(before, 10*time.Second); left != "" {
			t.Errorf("%s: left behind:\n%s", a.name, left)
		}
	}
	_, err := x.Runtime.ExecSync(x.Ctx(), &runtimeapi.ExecSyncRequest{ContainerId: x.pod.Container, Cmd: []string{"true"}})
	checkRefusal(t, err, codes.ResourceExhausted, []string{"no space left"})
	if got := x.Status(x.pod.Container).State; got != runtimeapi.ContainerState_CONTAINER_RUNNING {
		t.Errorf("the pod from before is %v", got)
	}

	if _, err := x.Runtime.StopContainer(x.Ctx(), &runtimeapi.StopContainerRequest{ContainerId: exits.Container, Timeout: 60}); err != nil {
		t.Errorf("StopContainer: %v", err)
	}
	if got := x.AwaitExit(exits.Container).ExitCode; got != 7 {
		t.Errorf("it ended with code %d, want 7", got)
	}
	x.RemovePod(stopped.Sandbox)
	x.KillDaemon()
	harness.Kill(t, x.SupervisorPid())
	x.StartDaemon()
	if got := x.Status(exits.Container); got.ExitCode != 7 {
		t.Errorf("after a restart it has ended with code %d, want 7", got.ExitCode)
	}
	x.RemovePod(exits.Sandbox)
	x.RemovePod(x.pod.Sandbox)

	free()
	again := x.RunPod("good", "exit 0")
	x.AwaitExit(again.Container)
}

func resize(t *testing.T, mount, size string) {
	t.Helper()
	if err := syscall.Mount("", mount, "", syscall.MS_REMOUNT, "size="+size); err != nil {
		t.Fatalf("resize %s: %v", mount, err)
	}
}

// No process can be started any more. Requests fail with an error, and running containers continue.
// Everything works again when there is room. If not even a thread can be started, Go ends the
// program, so the supervisor may restart.
func TestFullProcessTable(t *testing.T) {
	x := newTrial(t, harness.Options{})
	logger := x.RunPod("logger", `i=0; while :; do i=$((i+1)); echo line $i; sleep 0.01; done`)
	harness.Kill(t, x.SupervisorPid()) // a supervisor that adopted uses a little more than one that started all containers
	x.Await("the next supervisor", func() bool {
		answer, err := x.Runtime.ExecSync(x.Ctx(), &runtimeapi.ExecSyncRequest{ContainerId: x.pod.Container, Cmd: []string{"true"}})
		return err == nil && answer.ExitCode == 0
	})
	// The first create of a supervisor opens descriptors that it keeps.
	warm, err := x.Runtime.CreateContainer(x.Ctx(), &runtimeapi.CreateContainerRequest{PodSandboxId: x.pod.Sandbox, Config: x.Container("warm", "exit 0"), SandboxConfig: x.pod.Config})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := x.Runtime.RemoveContainer(x.Ctx(), &runtimeapi.RemoveContainerRequest{ContainerId: warm.ContainerId}); err != nil {
		t.Fatal(err)
	}
	x.ground = x.StillGround()
	group := fmt.Sprintf("/sys/fs/cgroup/pids/berth-%s-supervisor", harness.InstanceOf(x.State))
	if _, err := os.Stat(group); err != nil {
		group = fmt.Sprintf("/sys/fs/cgroup/berth-%s-supervisor", harness.InstanceOf(x.State))
	}
	limit := func(text string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(group, "pids.max"), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	current, err := os.ReadFile(filepath.Join(group, "pids.current"))
	if err != nil {
		t.Fatal(err)
	}
	limit(strings.TrimSpace(string(current)))
	failed := 0
	for i := range 5 {
		config := x.Container(fmt.Sprintf("bad%d", i), "exit 0")
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		made, err := x.Runtime.CreateContainer(ctx, &runtimeapi.CreateContainerRequest{PodSandboxId: x.pod.Sandbox, Config: config, SandboxConfig: x.pod.Config})
		cancel()
		if err != nil {
			failed++
			if code := status.Code(err); code != codes.ResourceExhausted && code != codes.Unavailable {
				t.Errorf("code %s: %v", code, err)
			}
			continue
		}
		if _, err := x.Runtime.RemoveContainer(x.Ctx(), &runtimeapi.RemoveContainerRequest{ContainerId: made.ContainerId}); err != nil {
			t.Error(err)
		}
	}
	if failed == 0 {
		t.Error("the limit held nothing up")
	}
	limit("max")
	if got := x.Status(x.pod.Container).State; got != runtimeapi.ContainerState_CONTAINER_RUNNING {
		t.Errorf("the pod from before is %v", got)
	}
	x.Await("containers to be made again", func() bool {
		config := x.Container("again", "exit 0")
		made, err := x.Runtime.CreateContainer(x.Ctx(), &runtimeapi.CreateContainerRequest{PodSandboxId: x.pod.Sandbox, Config: config, SandboxConfig: x.pod.Config})
		if err != nil {
			return false
		}
		_, err = x.Runtime.RemoveContainer(x.Ctx(), &runtimeapi.RemoveContainerRequest{ContainerId: made.ContainerId})
		return err == nil
	})
	if got := x.ExecOut(x.pod.Container, "echo here"); got != "here" {
		t.Errorf("exec answered %q", got)
	}
	x.nothingLeft(t)
	lines := func() []string {
		lines, err := harness.LogLines(logger.LogFile)
		if err != nil {
			t.Fatal(err)
		}
		return lines
	}
	seen := len(lines())
	x.Await("more lines", func() bool { return len(lines()) > seen+10 })
	for i, line := range lines() {
		if line != fmt.Sprintf("line %d", i+1) {
			t.Fatalf("line %d of the log is %q", i+1, line)
		}
	}
}

// The log directory disappears while the container writes. The container continues without a log.
// It has a log again when the directory exists and a client reopens the log.
func TestLogDirectoryIsRemoved(t *testing.T) {
	x := newTrial(t, harness.Options{})
	pod := x.RunPod("nolog", `i=0; while [ ! -e /stop ]; do i=$((i+1)); echo line $i; sleep 0.01; done; exit 6`)
	x.Await("lines", func() bool { lines, _ := harness.LogLines(pod.LogFile); return len(lines) > 5 })
	if err := os.RemoveAll(pod.Config.LogDirectory); err != nil {
		t.Fatal(err)
	}
	reopen := func() error {
		_, err := x.Runtime.ReopenContainerLog(x.Ctx(), &runtimeapi.ReopenContainerLogRequest{ContainerId: pod.Container})
		return err
	}
	checkRefusal(t, reopen(), codes.Unavailable, []string{filepath.Dir(pod.LogFile), "missing"})
	if got := x.ExecOut(pod.Container, "echo here"); got != "here" {
		t.Errorf("exec answered %q", got)
	}
	if err := os.MkdirAll(filepath.Dir(pod.LogFile), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := reopen(); err != nil {
		t.Errorf("reopen once the directory is there: %v", err)
	}
	var first, count int
	x.Await("lines again", func() bool {
		lines, _ := harness.LogLines(pod.LogFile)
		if count = len(lines); count > 5 {
			first, _ = strconv.Atoi(strings.TrimPrefix(lines[0], "line "))
		}
		return count > 5
	})
	if first < 5 {
		t.Errorf("the new log begins with line %d", first)
	}
	// The directory disappears again, and the container ends without a log.
	if err := os.RemoveAll(pod.Config.LogDirectory); err != nil {
		t.Fatal(err)
	}
	x.ExecOut(pod.Container, "touch /stop")
	if status := x.AwaitExit(pod.Container); status.ExitCode != 6 {
		t.Errorf("code %d, want 6", status.ExitCode)
	}
	x.RemovePod(pod.Sandbox)
	x.nothingLeft(t)
}
