//go:build integration

package integration

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/berthrun/berth/internal/image/imagetest"
	"github.com/berthrun/berth/internal/require"
	"github.com/berthrun/berth/test/harness"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// TestEndings: how containers exit, in the cases that suites of other runtimes have.
func TestEndings(t *testing.T) {
	b := harness.Start(t, harness.Options{})
	for name, test := range map[string]func(*testing.T, *harness.Berth){
		"commands run in the grace period and not after it": commandsWhileStopping,
		"a stop that its client gives up goes on":           abandonedStop,
		"every process of a shared PID namespace ends":      sharedProcessesEnd,
		"no process is left in the host's PID namespace":    hostProcessesEnd,
		"a log's last line needs no newline":                logsOfAllKinds,
		"an image may go before its containers":             imageGoesFirst,
		"a name is free as soon as its owner is removed":    namesOfTheRemoved,
		"terminals and failed starts leave no descriptor":   descriptorsOfSupervisor,
	} {
		t.Run(name, func(t *testing.T) {
			mine := *b
			mine.T = t
			test(t, &mine)
		})
	}
}

// stubborn exits a while after the signal, or not at all.
const stubborn = "trap 'touch /tmp/asked' TERM; echo up; until test -e /tmp/end; do sleep 0.05; done; exit 7"

func awaitUp(b *harness.Berth, pod harness.Pod) {
	b.Await("the container's first line", func() bool { lines, _ := harness.LogLines(pod.LogFile); return len(lines) > 0 })
}

func commandsWhileStopping(t *testing.T, b *harness.Berth) {
	pod := b.RunPod("grace", stubborn)
	defer b.RemovePod(pod.Sandbox)
	awaitUp(b, pod)
	early := make(chan error, 1)
	go func() {
		_, err := execSync(b, pod.Container, 0, "/bin/sleep", "1000")
		early <- err
	}()
	stopped := make(chan error, 1)
	go func() {
		_, err := b.Runtime.StopContainer(b.Ctx(), &runtimeapi.StopContainerRequest{ContainerId: pod.Container, Timeout: 600})
		stopped <- err
	}()
	b.Await("the stop signal", func() bool { return b.Exec(pod.Container, "test -e /tmp/asked").ExitCode == 0 })
	for range 3 {
		if got := b.ExecOut(pod.Container, "echo in time"); got != "in time" {
			t.Errorf("a command in the grace period: %q", got)
		}
	}
	select {
	case err := <-early:
		t.Errorf("a command that ran before the stop has ended: %v", err)
	default:
	}
	b.Exec(pod.Container, "touch /tmp/end")
	if err := <-stopped; err != nil {
		t.Error(err)
	}
	<-early // it ended with the container
	if s := b.Status(pod.Container); s.ExitCode != 7 {
		t.Errorf("the container's end: %v", s)
	}
	if _, err := execSync(b, pod.Container, 5, "/bin/true"); status.Code(err) != codes.FailedPrecondition {
		t.Errorf("a command after the end: %v", err)
	}
}

// abandonedStop: a second stop with a shorter grace period wins, and the container is killed.
func abandonedStop(t *testing.T, b *harness.Berth) {
	pod := b.RunPod("abandoned", stubborn)
	defer b.RemovePod(pod.Sandbox)
	awaitUp(b, pod)
	for _, asked := range []int64{600, 300} {
		ctx, cancel := context.WithCancel(b.Ctx())
		given := make(chan error, 1)
		go func() {
			_, err := b.Runtime.StopContainer(ctx, &runtimeapi.StopContainerRequest{ContainerId: pod.Container, Timeout: asked})
			given <- err
		}()
		b.Await("the stop signal", func() bool { return b.Exec(pod.Container, "test -e /tmp/asked").ExitCode == 0 })
		cancel()
		if err := <-given; status.Code(err) != codes.Canceled {
			t.Errorf("a stop that was given up: %v", err)
		}
		if s := b.Status(pod.Container); s.State != runtimeapi.ContainerState_CONTAINER_RUNNING {
			t.Errorf("in its grace period: %v", s)
		}
	}
	began := time.Now()
	if _, err := b.Runtime.StopContainer(b.Ctx(), &runtimeapi.StopContainerRequest{ContainerId: pod.Container, Timeout: 1}); err != nil {
		t.Fatal(err)
	}
	if s := b.Status(pod.Container); s.ExitCode != 137 || time.Since(began) > require.Patience(30*time.Second) {
		t.Errorf("killed after %s: %v", time.Since(began), s)
	}
}

// family leaves children of all kinds: in another session, without a parent, or ignoring signals.
func family() string {
	return "trap '' TERM; setsid " + ownSleep(4711) + " & (setsid " + ownSleep(4712) + " &); sh -c \"trap '' TERM; while :; do sleep 0.1; done\" & echo up; "
}

// ownSleep is a command that only this process's tests run: it can be looked for on the whole host.
func ownSleep(seconds int) string { return fmt.Sprintf("sleep %d.%d", seconds, os.Getpid()) }

func processesOf(t *testing.T, command string) (pids []string) {
	t.Helper()
	entries, err := os.ReadDir("/proc")
	if err != nil {
		t.Fatal(err)
	}
	for _, entry := range entries {
		line, err := os.ReadFile(filepath.Join("/proc", entry.Name(), "cmdline"))
		if err == nil && strings.ReplaceAll(string(line), "\x00", " ") == command+" " {
			pids = append(pids, entry.Name())
		}
	}
	return pids
}

func sharedProcessesEnd(t *testing.T, b *harness.Berth) {
	config, container := b.Sandbox("shared-end"), b.Container("c", family()+"wait")
	sharedProcesses(config, container)
	sandbox := b.RunSandbox(config)
	defer b.RemovePod(sandbox)
	many := b.Create(sandbox, container, config)
	b.StartContainer(many)
	other := b.Container("other", "sleep 4713")
	sharedProcesses(config, other)
	stays := b.Create(sandbox, other, config)
	b.StartContainer(stays)
	b.Await("the family", func() bool { return strings.Count(b.ExecOut(stays, "ps -o args"), "sleep 471") >= 3 })
	if _, err := b.Runtime.StopContainer(b.Ctx(), &runtimeapi.StopContainerRequest{ContainerId: many, Timeout: 0}); err != nil {
		t.Fatal(err)
	}
	if seen := b.ExecOut(stays, "ps -o args"); strings.Contains(seen, "sleep 4711") || strings.Contains(seen, "sleep 4712") || !strings.Contains(seen, "sleep 4713") {
		t.Errorf("after the stop the pod has\n%s", seen)
	}
}

func hostProcessesEnd(t *testing.T, b *harness.Berth) {
	for _, end := range []string{"exit 0", "wait"} { // by itself, and when it is stopped
		pod := runPodWith(b, "host-end", family()+end, func(config *runtimeapi.PodSandboxConfig, container *runtimeapi.ContainerConfig) {
			config.Linux.SecurityContext.NamespaceOptions.Pid = runtimeapi.NamespaceMode_NODE
			container.Linux.SecurityContext.NamespaceOptions = config.Linux.SecurityContext.NamespaceOptions
		})
		awaitUp(b, pod)
		if _, err := b.Runtime.StopContainer(b.Ctx(), &runtimeapi.StopContainerRequest{ContainerId: pod.Container, Timeout: 0}); err != nil {
			t.Fatal(err)
		}
		b.RemovePod(pod.Sandbox)
		for _, command := range []string{ownSleep(4711), ownSleep(4712)} {
			if left := processesOf(t, command); len(left) > 0 {
				t.Errorf("%s: %s is left: %q", end, command, left)
			}
		}
	}
}

func logsOfAllKinds(t *testing.T, b *harness.Berth) {
	for name, c := range map[string]struct {
		tty    bool
		script string
		want   []string
	}{
		"no newline":      {false, "printf 'a\nb'", []string{"stdout F a", "stdout P b"}},
		"terminal":        {true, "printf 'a\nb\n'; echo c >&2", []string{"stdout F a\r", "stdout F b\r", "stdout F c\r"}},
		"terminal, no nl": {true, "printf a", []string{"stdout P a"}},
		"nothing":         {false, "true", nil},
	} {
		config, container := b.Sandbox("log-"+strings.ReplaceAll(name, " ", "")), b.Container("c", c.script)
		container.Tty = c.tty
		sandbox := b.RunSandbox(config)
		id := b.Create(sandbox, container, config)
		b.StartContainer(id)
		b.AwaitExit(id)
		data, err := os.ReadFile(filepath.Join(config.LogDirectory, container.LogPath))
		var got []string
		for line := range strings.Lines(string(data)) {
			_, entry, _ := strings.Cut(strings.TrimSuffix(line, "\n"), " ") // after the time
			got = append(got, entry)
		}
		if err != nil || !slices.Equal(got, c.want) {
			t.Errorf("%s: %q, %v; want %q", name, got, err, c.want)
		}
		b.RemovePod(sandbox)
	}
}

// imageGoesFirst: a container keeps the layers that it runs from.
func imageGoesFirst(t *testing.T, b *harness.Berth) {
	const name = "docker.io/library/short-lived:1"
	b.ImportDeclaring(name, nil, imagetest.File{Path: "/mark", Content: []byte("of its own")})
	config, container := b.Sandbox("imageless"), b.Container("c", "sleep 1000")
	container.Image = &runtimeapi.ImageSpec{Image: name, UserSpecifiedImage: name}
	sandbox := b.RunSandbox(config)
	defer b.RemovePod(sandbox)
	id := b.Create(sandbox, container, config)
	if _, err := b.Images.RemoveImage(b.Ctx(), &runtimeapi.RemoveImageRequest{Image: container.Image}); err != nil {
		t.Fatal(err)
	}
	b.StartContainer(id)
	if got := b.ExecOut(id, "cat /mark"); got != "of its own" {
		t.Errorf("its files: %q", got)
	}
	if s := b.Status(id); s.Image.GetImage() != name || s.ImageRef == "" || s.State != runtimeapi.ContainerState_CONTAINER_RUNNING {
		t.Errorf("status: %v", s)
	}
	if _, err := b.Runtime.StopContainer(b.Ctx(), &runtimeapi.StopContainerRequest{ContainerId: id, Timeout: 0}); err != nil {
		t.Error(err)
	}
	if _, err := b.Runtime.RemoveContainer(b.Ctx(), &runtimeapi.RemoveContainerRequest{ContainerId: id}); err != nil {
		t.Error(err)
	}
}

// namesOfTheRemoved: while berth removes a pod its name is taken. A request with this name never
// gets the pod that berth removes.
func namesOfTheRemoved(t *testing.T, b *harness.Berth) {
	config := b.Sandbox("again")
	for range 5 {
		sandbox := b.RunSandbox(config)
		first := b.Create(sandbox, b.Container("c", "sleep 1000"), config)
		b.StartContainer(first)
		if _, err := b.Runtime.RemoveContainer(b.Ctx(), &runtimeapi.RemoveContainerRequest{ContainerId: first}); err != nil {
			t.Fatal(err)
		}
		second := b.Create(sandbox, b.Container("c", "sleep 1000"), config)
		b.StartContainer(second)
		removed := make(chan error, 1)
		go func() {
			_, err := b.Runtime.RemovePodSandbox(b.Ctx(), &runtimeapi.RemovePodSandboxRequest{PodSandboxId: sandbox})
			removed <- err
		}()
		var next string
		b.Await("a new sandbox of the name", func() bool {
			answer, err := b.Runtime.RunPodSandbox(b.Ctx(), &runtimeapi.RunPodSandboxRequest{Config: config})
			if code := status.Code(err); err != nil && code != codes.AlreadyExists && code != codes.FailedPrecondition && code != codes.Unavailable {
				t.Errorf("while the old one goes: %v", err)
			}
			next = answer.GetPodSandboxId()
			return err == nil
		})
		if err := <-removed; err != nil {
			t.Error(err)
		}
		if next == sandbox || second == first || b.SandboxStatus(next).State != runtimeapi.PodSandboxState_SANDBOX_READY {
			t.Errorf("the new sandbox is %s after %s", next, sandbox)
		}
		b.RemovePod(next)
	}
}

// descriptorsOfSupervisor: neither terminals nor failed starts leak descriptors in the process that
// all containers share.
func descriptorsOfSupervisor(t *testing.T, b *harness.Berth) {
	config := b.Sandbox("descriptors")
	sandbox := b.RunSandbox(config)
	defer b.RemovePod(sandbox)
	round := func(i int) {
		for j, change := range []func(*runtimeapi.ContainerConfig){
			func(c *runtimeapi.ContainerConfig) { c.Tty = true },
			func(c *runtimeapi.ContainerConfig) { c.Tty, c.Stdin = true, true },
			func(c *runtimeapi.ContainerConfig) { c.Command = []string{"/no/such/program"} },
		} {
			container := b.Container("d"+strconv.Itoa(3*i+j), "echo once")
			change(container)
			answer, err := b.Runtime.CreateContainer(b.Ctx(), &runtimeapi.CreateContainerRequest{PodSandboxId: sandbox, Config: container, SandboxConfig: config})
			if err != nil {
				t.Fatal(err)
			}
			if _, err := b.Runtime.StartContainer(b.Ctx(), &runtimeapi.StartContainerRequest{ContainerId: answer.ContainerId}); (err != nil) != (j == 2) {
				t.Errorf("start of %d: %v", j, err)
			}
			b.AwaitExit(answer.ContainerId)
			if _, err := b.Runtime.RemoveContainer(b.Ctx(), &runtimeapi.RemoveContainerRequest{ContainerId: answer.ContainerId}); err != nil {
				t.Error(err)
			}
		}
	}
	round(0)
	before := openFiles(t, b)
	const rounds = 10
	for i := range rounds {
		round(i + 1)
	}
	b.Await("the descriptors of "+strconv.Itoa(rounds)+" rounds to close", func() bool { return openFiles(t, b) < before+rounds })
}

// openFiles counts the descriptors of the supervisor's processes. Where an engine has the containers, it
// counts those of the daemon.
func openFiles(t *testing.T, b *harness.Berth) (count int) {
	t.Helper()
	pids := supervisorPids(t, b)
	if !b.Has(harness.Supervisors) {
		pids = []string{strconv.Itoa(b.DaemonPid())}
	}
	for _, pid := range pids {
		entries, err := os.ReadDir(filepath.Join("/proc", pid, "fd"))
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			t.Fatal(err)
		}
		count += len(entries)
	}
	if count == 0 {
		t.Fatal("no supervisor is found")
	}
	return count
}

// supervisorPids are those of the instance's supervisor and keeper, which have its state directory
// in their arguments.
func supervisorPids(t *testing.T, b *harness.Berth) (pids []string) {
	t.Helper()
	entries, err := os.ReadDir("/proc")
	if err != nil {
		t.Fatal(err)
	}
	for _, entry := range entries {
		line, err := os.ReadFile(filepath.Join("/proc", entry.Name(), "cmdline"))
		if err == nil && strings.Contains(string(line), "berth-supervisor") && strings.Contains(string(line), b.State) {
			pids = append(pids, entry.Name())
		}
	}
	return pids
}
