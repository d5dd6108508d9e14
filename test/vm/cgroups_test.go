//go:build vm

package vm

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/berthrun/berth/test/harness"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// podSlice is a slice's name as a kubelet with the systemd driver has it, and its path in systemd's
// tree.
const (
	podSlice    = "kubepods-besteffort-pod0a1b_2c3d.slice"
	podSliceDir = "/sys/fs/cgroup/kubepods.slice/kubepods-besteffort.slice/" + podSlice
)

// inSlice runs a pod in podSlice and returns the container and its cgroup.
func inSlice(b *harness.Berth, name, script string, change func(*runtimeapi.ContainerConfig)) (pod harness.Pod, dir string) {
	b.T.Helper()
	config := b.Sandbox(name)
	config.Linux.CgroupParent = podSlice
	pod = harness.Pod{Config: config, Sandbox: b.RunSandbox(config)}
	// A kubelet stops the slices that it created. systemd created these for the test.
	b.T.Cleanup(func() {
		b.RemoveAllPods()
		harness.Systemctl(b.T, "stop", "kubepods.slice")
	})
	container := b.Container("c", script)
	if change != nil {
		change(container)
	}
	pod.Container = b.Create(pod.Sandbox, container, config)
	b.StartContainer(pod.Container)
	pod.LogFile = filepath.Join(config.LogDirectory, "c", "0.log")
	return pod, filepath.Join(podSliceDir, scopeOf(pod.Container))
}

func scopeOf(container string) string { return "cri-containerd-" + container + ".scope" }

func read(t testing.TB, path ...string) string {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(path...))
	if err != nil {
		t.Error(err)
	}
	return strings.TrimSpace(string(data))
}

func TestInstalledContainersAreScopesWithTheirLimits(t *testing.T) {
	b := harness.Installed(t)
	pod, dir := inSlice(b, "limits", "sleep 10000", func(c *runtimeapi.ContainerConfig) {
		c.Linux.Resources = &runtimeapi.LinuxContainerResources{
			CpuPeriod: 100000, CpuQuota: 50000, CpuShares: 512, CpusetCpus: "1", MemoryLimitInBytes: 64 << 20,
			Unified: map[string]string{"pids.max": "77", "memory.oom.group": "1"},
		}
	})
	if got := read(t, dir, "memory.oom.group"); got != "1" {
		t.Errorf("memory.oom.group is %q, want 1", got) // systemd before 253 resets it to 0 at a reload
	}
	check := func(when string) {
		t.Helper()
		for file, want := range map[string]string{
			"memory.max": "67108864", "cpu.max": "50000 100000", "cpu.weight": "59",
			"cpuset.cpus": "1", "cpuset.cpus.effective": "1", "pids.max": "77",
		} {
			if got := read(t, dir, file); got != want {
				t.Errorf("%s: %s is %q, want %q", when, file, got, want)
			}
		}
	}
	check("started")
	if got := show(t, scopeOf(pod.Container), "Slice", "Delegate", "MemoryMax", "TasksMax"); got != podSlice+"\nyes\n67108864\n77" {
		t.Errorf("systemd says of the scope:\n%s", got)
	}
	if got := b.ExecOut(pod.Container, "cat /sys/fs/cgroup/memory.max"); got != "67108864" {
		t.Errorf("the container sees the limit %q", got)
	}
	harness.Systemctl(t, "daemon-reload")
	check("after a daemon-reload")
	harness.Systemctl(t, "restart", harness.SupervisorUnit, harness.DaemonUnit)
	b.AwaitAnswer()
	check("after a restart")
	stats, err := b.Runtime.ContainerStats(b.Ctx(), &runtimeapi.ContainerStatsRequest{ContainerId: pod.Container})
	if err != nil || stats.Stats.Memory.GetWorkingSetBytes().GetValue() == 0 || stats.Stats.Cpu.GetUsageCoreNanoSeconds().GetValue() == 0 {
		t.Errorf("stats %v (%v)", stats, err)
	}
	b.RemovePod(pod.Sandbox)
	b.Await("the scope to be gone", func() bool { _, err := os.Stat(dir); return os.IsNotExist(err) })
	if state := show(t, scopeOf(pod.Container), "LoadState"); state != "not-found" {
		t.Errorf("the scope of a removed container is %q to systemd", state)
	}
}

func TestInstalledDevicesAreRefused(t *testing.T) {
	b := harness.Installed(t)
	pod, _ := inSlice(b, "devices", "sleep 10000", nil)
	try := func(when string) {
		t.Helper()
		if got := b.Exec(pod.Container, "echo x > /dev/null && head -c 1 /dev/zero"); got.ExitCode != 0 {
			t.Errorf("%s: /dev/null and /dev/zero: %s", when, got.Stderr)
		}
		// 1:11 is /dev/kmsg: a node of it may be created, but not used.
		got := b.Exec(pod.Container, "rm -f /k; mknod /k c 1 11 && head -c 1 < /k")
		if got.ExitCode == 0 || !strings.Contains(string(got.Stderr), "not permitted") {
			t.Errorf("%s: reading a forbidden device: code %d, %s", when, got.ExitCode, got.Stderr)
		}
	}
	try("started")
	harness.Systemctl(t, "daemon-reload")
	try("after a daemon-reload")
}

func TestInstalledOOMKillsAreTold(t *testing.T) {
	b := harness.Installed(t)
	limit := func(c *runtimeapi.ContainerConfig) { c.Linux.Resources.MemoryLimitInBytes = 16 << 20 }
	for range 5 { // systemd removes the scope, and the counter with it, at once
		pod, _ := inSlice(b, "oom", "tail /dev/zero", limit)
		// With one process the kernel kills the init itself.
		if status := b.AwaitExit(pod.Container); status.Reason != "OOMKilled" || status.ExitCode != 137 {
			t.Errorf("reason %q, code %d, message %q; want OOMKilled, 137", status.Reason, status.ExitCode, status.Message)
		}
		b.RemovePod(pod.Sandbox)
	}
	pod, _ := inSlice(b, "oom-child", `sh -c 'tail /dev/zero' ; echo survived; exit 3`, limit)
	if status := b.AwaitExit(pod.Container); status.Reason != "OOMKilled" || status.ExitCode != 3 {
		t.Errorf("killed child: reason %q, code %d; want OOMKilled, 3", status.Reason, status.ExitCode)
	}
}

func TestInstalledExecHasACgroupOfItsOwn(t *testing.T) {
	b := harness.Installed(t)
	pod, dir := inSlice(b, "exec", "sleep 10000", nil)
	if got := b.ExecOut(pod.Container, "cat /proc/self/cgroup"); !strings.Contains(got, "/berth-exec-") {
		t.Errorf("an exec is in %q", got)
	}
	// Its exit also ends the processes that it started and detached.
	_, err := b.Runtime.ExecSync(b.Ctx(), &runtimeapi.ExecSyncRequest{
		ContainerId: pod.Container, Cmd: []string{"sh", "-c", "(setsid sleep 7171 &) ; sleep 7172"}, Timeout: 2,
	})
	if err == nil {
		t.Error("an exec over its timeout succeeds")
	}
	b.Await("what the exec started to end", func() bool {
		return len(harness.Processes(func(_ int, cmdline string) bool { return strings.HasPrefix(cmdline, "sleep 717") })) == 0
	})
	b.Await("its cgroup to be gone", func() bool {
		left, err := filepath.Glob(dir + "/berth-exec-*")
		return err == nil && len(left) == 0
	})
	if status := b.Status(pod.Container); status.State != runtimeapi.ContainerState_CONTAINER_RUNNING {
		t.Errorf("the container is %v", status.State)
	}
}

// A container may delegate its cgroup, as systemd and container engines in a pod do. berth can
// still exec in it. On cgroup v2 a cgroup whose controllers are enabled for its children may have
// no processes, and a threaded root has only threaded children.
func TestInstalledExecInContainersThatUseTheirCgroup(t *testing.T) {
	b := harness.Installed(t)
	for name, prepare := range map[string]string{
		"controllers": "mkdir leaf && echo $init > leaf/cgroup.procs && echo +pids > cgroup.subtree_control",
		"threads":     "mkdir thread && echo threaded > thread/cgroup.type",
	} {
		pod, dir := inSlice(b, "uses-"+name, "sleep 10000", nil)
		init := strings.Fields(read(t, dir, "cgroup.procs"))[0]
		if out, err := exec.Command("sh", "-c", "cd "+dir+" && init="+init+" && "+prepare).CombinedOutput(); err != nil {
			t.Fatalf("%s: %v: %s", name, err, out)
		}
		if got := b.ExecOut(pod.Container, "echo here"); got != "here" {
			t.Errorf("%s: %q", name, got)
		}
		_, err := b.Runtime.ExecSync(b.Ctx(), &runtimeapi.ExecSyncRequest{
			ContainerId: pod.Container, Cmd: []string{"sh", "-c", "exec sleep 34591"}, Timeout: 3,
		})
		if err == nil || !strings.Contains(err.Error(), "timed out") {
			t.Errorf("%s: over its time-out: %v", name, err)
		}
		b.Await("the command to be killed", func() bool { return !strings.Contains(b.ExecOut(pod.Container, "ps"), "34591") })
		b.RemovePod(pod.Sandbox)
	}
}
