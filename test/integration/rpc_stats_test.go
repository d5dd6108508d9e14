//go:build integration

package integration

import (
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"github.com/berthrun/berth/test/harness"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// TestRPCStats: every stats call reports one pod that computes, writes, listens and has a limit.
func TestRPCStats(t *testing.T) {
	b := harness.Start(t, harness.Options{})
	sandboxConfig := b.Sandbox("busy")
	sandbox := b.RunSandbox(sandboxConfig)
	config := b.Container("c", `dd if=/dev/zero of=/written bs=1024 count=300 2>/dev/null; nc -l -p 8080 & echo up; while :; do :; done`)
	config.Linux.Resources.MemoryLimitInBytes = 64 << 20
	config.Linux.Resources.CpuQuota = 50000
	container := b.Create(sandbox, config, sandboxConfig)
	b.StartContainer(container)
	logFile := filepath.Join(sandboxConfig.LogDirectory, config.LogPath)
	b.Await("the program", func() bool { lines, _ := harness.LogLines(logFile); return len(lines) > 0 })

	t.Run("ContainerStats / ListContainerStats / StreamContainerStats", func(t *testing.T) { containerStats(t, b, container) })
	t.Run("PodSandboxStats / List / StreamPodSandboxStats", func(t *testing.T) { podStats(t, b, sandbox, container) })
	t.Run("ListMetricDescriptors / ListPodSandboxMetrics / StreamPodSandboxMetrics", func(t *testing.T) { metrics(t, b, sandbox, container) })
	t.Run("PublicDashboards", func(t *testing.T) {
		series, described := containerSeries(b)
		publicDashboards(t, true, series, described)
	})
	t.Run("AfterARestart", func(t *testing.T) {
		b.KillDaemon()
		b.StartDaemon()
		resp, err := b.Runtime.ListContainerStats(b.Ctx(), &runtimeapi.ListContainerStatsRequest{})
		if err != nil || len(resp.Stats) != 1 || resp.Stats[0].Cpu.GetUsageCoreNanoSeconds().GetValue() == 0 {
			t.Errorf("stats %v, %v", resp, err)
		}
	})
}

// A container can create directories whose paths are longer than the kernel accepts. Their content
// counts, and is removed with the container.
func TestDeepDirectoriesOfContainers(t *testing.T) {
	x := newTrial(t, harness.Options{})
	pod := x.RunPod("deep", `deep=$(printf 'd/%.0s' $(seq 900))
		for n in 1 2 3; do mkdir -p /t$n/$deep; done
		dd if=/dev/zero of=/t1/$deep/file bs=1024 count=3000 2>/dev/null
		mv /t1 /t2/$deep && mv /t2 /t3/$deep && echo made; sleep 100000`)
	x.Await("the directories", func() bool { lines, _ := harness.LogLines(pod.LogFile); return len(lines) > 0 })
	x.Await("their size", func() bool {
		answer, err := x.Runtime.ContainerStats(x.Ctx(), &runtimeapi.ContainerStatsRequest{ContainerId: pod.Container})
		if err != nil {
			t.Fatal(err)
		}
		layer := answer.GetStats().GetWritableLayer()
		return layer.GetUsedBytes().GetValue() >= 3000<<10 && layer.GetInodesUsed().GetValue() > 2500
	})
	x.RemovePod(pod.Sandbox)
	x.nothingLeft(t)
}

func containerStats(t *testing.T, b *harness.Berth, id string) {
	read := func() *runtimeapi.ContainerStats {
		resp, err := b.Runtime.ContainerStats(b.Ctx(), &runtimeapi.ContainerStatsRequest{ContainerId: id})
		if err != nil {
			t.Fatal(err)
		}
		return resp.Stats
	}
	// The sampler has a rate after its first window.
	b.Await("a rate of CPU", func() bool { return read().GetCpu().GetUsageNanoCores() != nil })
	stats := read()
	if stats.Attributes.GetMetadata().GetName() != "c" || stats.Attributes.GetLabels()["container"] != "c" {
		t.Errorf("attributes %v", stats.Attributes)
	}
	if rate := stats.Cpu.UsageNanoCores.Value; rate == 0 || rate > 800_000_000 {
		t.Errorf("%d nanocores, want at most about half a core", rate)
	}
	again := read()
	if again.Cpu.UsageNanoCores.Value != stats.Cpu.UsageNanoCores.Value && again.Cpu.Timestamp-stats.Cpu.Timestamp < int64(time.Second) {
		again = read() // a window ended in between
		if again.Cpu.UsageNanoCores.Value != read().Cpu.UsageNanoCores.Value {
			t.Error("the rate is of the request's own readings")
		}
	}
	m := stats.Memory
	if m.WorkingSetBytes.GetValue() == 0 || m.UsageBytes.GetValue() < m.WorkingSetBytes.GetValue() || m.RssBytes.GetValue() == 0 || m.PageFaults.GetValue() == 0 ||
		m.AvailableBytes.GetValue() != 64<<20-m.WorkingSetBytes.GetValue() {
		t.Errorf("memory %v", m)
	}
	if w := stats.WritableLayer; w.GetUsedBytes().GetValue() < 300<<10 || w.GetInodesUsed().GetValue() == 0 || w.GetFsId().GetMountpoint() == "" || w.GetTimestamp() == 0 {
		t.Errorf("writable layer %v, want at least 300 KiB", w)
	}
	if reportsPressure() && (stats.Cpu.GetPsi().GetSome() == nil || m.GetPsi().GetSome() == nil || stats.Io.GetPsi().GetSome() == nil) {
		t.Errorf("the kernel reports pressure, and the stats have CPU %v, memory %v, IO %v", stats.Cpu.GetPsi(), m.GetPsi(), stats.Io.GetPsi())
	}
	filter := &runtimeapi.ContainerStatsFilter{Id: id}
	list, err := b.Runtime.ListContainerStats(b.Ctx(), &runtimeapi.ListContainerStatsRequest{Filter: filter})
	if err != nil {
		t.Fatal(err)
	}
	for how, got := range map[string][]*runtimeapi.ContainerStats{
		"listed": list.Stats,
		"streamed": streamed(t, b, &runtimeapi.StreamContainerStatsRequest{Filter: filter},
			b.Runtime.StreamContainerStats, (*runtimeapi.StreamContainerStatsResponse).GetContainerStats),
	} {
		if len(got) != 1 || got[0].Attributes.Id != id || got[0].Cpu.GetUsageCoreNanoSeconds().GetValue() < stats.Cpu.GetUsageCoreNanoSeconds().GetValue() {
			t.Errorf("%s: %v", how, got)
		}
	}
}

// reportsPressure reports whether the kernel has pressure figures, and cgroups of v2, which alone
// have them.
func reportsPressure() bool {
	_, kernel := os.Stat("/proc/pressure/cpu")
	_, hybrid := os.Stat("/sys/fs/cgroup/unified")
	return kernel == nil && (onV2() || hybrid == nil)
}

func podStats(t *testing.T, b *harness.Berth, sandbox, container string) {
	resp, err := b.Runtime.PodSandboxStats(b.Ctx(), &runtimeapi.PodSandboxStatsRequest{PodSandboxId: sandbox})
	if err != nil {
		t.Fatal(err)
	}
	linux := resp.Stats.Linux
	if linux.Cpu.GetUsageCoreNanoSeconds().GetValue() == 0 || linux.Memory.GetWorkingSetBytes().GetValue() == 0 || linux.Process.GetProcessCount().GetValue() < 2 {
		t.Errorf("pod %v", linux)
	}
	// No request came before: the sampler includes a pod from its start.
	if linux.Cpu.GetUsageNanoCores() == nil {
		t.Errorf("the pod's rate of CPU is not known at the first read: %v", linux.Cpu)
	}
	if n := linux.Network; n.GetTimestamp() == 0 || n.GetDefaultInterface().GetName() != "eth0" || n.GetDefaultInterface().GetTxBytes() == nil {
		t.Errorf("network %v", n)
	}
	if len(linux.Containers) != 1 || linux.Containers[0].Attributes.Id != container {
		t.Errorf("containers %v", linux.Containers)
	}
	filter := &runtimeapi.PodSandboxStatsFilter{LabelSelector: map[string]string{"app": "busy"}}
	list, err := b.Runtime.ListPodSandboxStats(b.Ctx(), &runtimeapi.ListPodSandboxStatsRequest{Filter: filter})
	if err != nil {
		t.Fatal(err)
	}
	for how, got := range map[string][]*runtimeapi.PodSandboxStats{
		"listed": list.Stats,
		"streamed": streamed(t, b, &runtimeapi.StreamPodSandboxStatsRequest{Filter: filter},
			b.Runtime.StreamPodSandboxStats, (*runtimeapi.StreamPodSandboxStatsResponse).GetPodSandboxStats),
	} {
		if len(got) != 1 || got[0].Attributes.Id != sandbox || len(got[0].GetLinux().GetContainers()) != 1 {
			t.Errorf("%s: %v", how, got)
		}
	}
	// A thread that entered a pod's network returns or ends.
	for range 50 {
		if _, err := b.Runtime.ListPodSandboxStats(b.Ctx(), &runtimeapi.ListPodSandboxStatsRequest{}); err != nil {
			t.Fatal(err)
		}
	}
	home, err := os.Readlink(procOf(b, "ns/net"))
	if err != nil {
		t.Fatal(err)
	}
	tasks, err := os.ReadDir(procOf(b, "task"))
	if err != nil {
		t.Fatal(err)
	}
	for _, task := range tasks {
		at, err := os.Readlink(procOf(b, "task/"+task.Name()+"/ns/net"))
		if err == nil && at != home {
			t.Errorf("a thread is left in %s", at)
		}
	}
	if len(tasks) > 60 {
		t.Errorf("the daemon has %d threads", len(tasks))
	}
}

func metrics(t *testing.T, b *harness.Berth, sandbox, container string) {
	described, err := b.Runtime.ListMetricDescriptors(b.Ctx(), &runtimeapi.ListMetricDescriptorsRequest{})
	if err != nil {
		t.Fatal(err)
	}
	keys := map[string][]string{}
	for _, d := range described.Descriptors {
		keys[d.Name] = d.LabelKeys
	}
	list, err := b.Runtime.ListPodSandboxMetrics(b.Ctx(), &runtimeapi.ListPodSandboxMetricsRequest{})
	if err != nil {
		t.Fatal(err)
	}
	if len(list.PodMetrics) != 1 || list.PodMetrics[0].PodSandboxId != sandbox || len(list.PodMetrics[0].ContainerMetrics) != 1 ||
		list.PodMetrics[0].ContainerMetrics[0].ContainerId != container {
		t.Fatalf("metrics of %v", list.PodMetrics)
	}
	values := map[string]uint64{}
	for _, m := range append(list.PodMetrics[0].Metrics, list.PodMetrics[0].ContainerMetrics[0].Metrics...) {
		if len(keys[m.Name]) != len(m.LabelValues) {
			t.Errorf("%s: %d values for %d labels", m.Name, len(m.LabelValues), len(keys[m.Name]))
		}
		values[m.Name] = max(values[m.Name], m.Value.GetValue())
	}
	for _, name := range []string{
		"container_memory_working_set_bytes", "container_memory_rss", "container_processes", "container_threads", "container_sockets",
		"container_file_descriptors", "container_ulimits_soft", "container_start_time_seconds", "container_last_seen", "container_spec_cpu_quota",
		"container_spec_cpu_shares", "container_cpu_cfs_periods_total", "container_network_transmit_bytes_total", "container_fs_usage_bytes",
		"container_fs_limit_bytes",
	} {
		if values[name] == 0 {
			t.Errorf("%s is 0 or missing", name)
		}
	}
	if values["container_spec_memory_limit_bytes"] != 64<<20 {
		t.Errorf("memory limit %d", values["container_spec_memory_limit_bytes"])
	}
	got := streamed(t, b, &runtimeapi.StreamPodSandboxMetricsRequest{}, b.Runtime.StreamPodSandboxMetrics,
		(*runtimeapi.StreamPodSandboxMetricsResponse).GetPodSandboxMetrics)
	if len(got) != 1 || got[0].PodSandboxId != sandbox || len(got[0].Metrics) != len(list.PodMetrics[0].Metrics) {
		t.Errorf("streamed: %v", got)
	}
}

// procOf is a path below the daemon's directory in /proc.
func procOf(b *harness.Berth, path string) string {
	return filepath.Join("/proc", strconv.Itoa(b.DaemonPid()), path)
}
