//go:build integration

package integration

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/berthrun/berth/internal/engine/docker/translate"
	"github.com/berthrun/berth/test/harness"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/testing/protocmp"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

func (f *fields) update(container string, res *runtimeapi.LinuxContainerResources) error {
	_, err := f.Runtime.UpdateContainerResources(f.Ctx(), &runtimeapi.UpdateContainerResourcesRequest{ContainerId: container, Linux: res})
	return err
}

// TestFieldsOfResources: each limit is in the cgroup and in the status.
func TestFieldsOfResources(t *testing.T) {
	f := newFields(t, harness.Options{}, nil)
	f.try(t, "resources cpu_period/quota/shares, memory_limit, oom_score_adj", func(t *testing.T) {
		f.NeedsOfHandler(t, harness.ContainerLimits)
		res := &runtimeapi.LinuxContainerResources{CpuPeriod: 50000, CpuQuota: 25000, CpuShares: 512, MemoryLimitInBytes: 96 << 20, OomScoreAdj: 700}
		id := f.running(func(c containerConfig) { c.Linux.Resources = res })
		if onV2() {
			want(t, "cpu", f.limit(id, "", "cpu.max"), "25000 50000")
		} else {
			want(t, "period", f.limit(id, "cpu/cpu.cfs_period_us", ""), "50000")
			want(t, "quota", f.limit(id, "cpu/cpu.cfs_quota_us", ""), "25000")
			want(t, "shares", f.limit(id, "cpu/cpu.shares", ""), "512")
		}
		want(t, "memory", f.limit(id, "memory/memory.limit_in_bytes", "memory.max"), "100663296")
		want(t, "oom_score_adj", f.ExecOut(id, "cat /proc/1/oom_score_adj"), "700")
		if diff := cmp.Diff(res, f.Status(id).GetResources().GetLinux(), protocmp.Transform()); diff != "" {
			t.Errorf("status: %s", diff)
		}
	})
	f.try(t, "resources oom_score_adj without CAP_SYS_RESOURCE", func(t *testing.T) {
		f.NeedsPart(t, harness.ClampedLimits)
		// berth raises a score to the lowest that the host allows, and reports this once.
		id := f.running(func(c containerConfig) { c.Linux.Resources.OomScoreAdj = -997 })
		got := f.ExecOut(id, "cat /proc/1/oom_score_adj")
		answer, err := f.Runtime.Status(f.Ctx(), &runtimeapi.StatusRequest{Verbose: true})
		if err != nil {
			t.Fatal(err)
		}
		reasons := 0
		for _, value := range answer.Info {
			reasons += strings.Count(value, "oom_score_adj of containers cannot be lowered")
		}
		if got != "-997" && reasons != 1 {
			t.Errorf("it is %s, and the status has the reason %d times", got, reasons)
		}
	})
	f.try(t, "cpuset_cpus/mems", func(t *testing.T) {
		f.NeedsOfHandler(t, harness.ContainerLimits)
		id := f.running(func(c containerConfig) { c.Linux.Resources.CpusetCpus, c.Linux.Resources.CpusetMems = "0", "0" })
		want(t, "cpus", f.limit(id, "cpuset/cpuset.cpus", "cpuset.cpus"), "0")
		want(t, "mems", f.limit(id, "cpuset/cpuset.mems", "cpuset.mems"), "0")
	})
	f.try(t, "hugepage_limits", func(t *testing.T) { f.testHugepages(t) })
	f.try(t, "memory_swap_limit", func(t *testing.T) {
		f.running(func(c containerConfig) {
			c.Linux.Resources.MemoryLimitInBytes, c.Linux.Resources.MemorySwapLimitInBytes = 64<<20, 96<<20
		})
		if _, err := os.Stat("/sys/fs/cgroup/memory/memory.memsw.limit_in_bytes"); err != nil && !onV2() {
			t.Logf("without swap accounting the limit is of memory alone: %v", err)
			return
		}
		id := f.running(func(c containerConfig) {
			c.Linux.Resources.MemoryLimitInBytes, c.Linux.Resources.MemorySwapLimitInBytes = 64<<20, 96<<20
		})
		f.NeedsOfHandler(t, harness.ContainerLimits)
		if onV2() {
			want(t, "swap", f.limit(id, "", "memory.swap.max"), "33554432")
		} else {
			want(t, "memory and swap", f.limit(id, "memory/memory.memsw.limit_in_bytes", ""), "100663296")
		}
	})
	f.try(t, "unified (cgroup v2 raw)", func(t *testing.T) { f.testUnified(t) })
	f.try(t, "UpdateContainerResources", func(t *testing.T) { f.testUpdate(t) })
	f.try(t, "UpdatePodSandboxResources", func(t *testing.T) { f.testUpdateSandbox(t) })
}

// testHugepages: a limit is in the cgroup if the host has the controller. Otherwise berth refuses
// it by name. It always accepts the kubelet's 0.
func (f *fields) testHugepages(t *testing.T) {
	limit := func(bytes uint64) func(containerConfig) {
		return func(c containerConfig) {
			c.Linux.Resources.HugepageLimits = []*runtimeapi.HugepageLimit{{PageSize: "2MB", Limit: bytes}}
		}
	}
	f.running(limit(0))
	if engineRefuses(t, f.Berth, translate.HugePages, ofContainer(limit(2<<20)), "hugepage_limits[0].limit") {
		return
	}
	f.NeedsOfHandler(t, harness.ContainerLimits)
	mounts, _ := os.ReadFile("/proc/self/mounts")
	controllers, _ := os.ReadFile("/sys/fs/cgroup/cgroup.controllers")
	if !strings.Contains(string(mounts), "hugetlb") && !strings.Contains(string(controllers), "hugetlb") {
		config := f.Container("huge", "exit 0")
		limit(2 << 20)(config)
		_, err := f.Runtime.CreateContainer(f.Ctx(), &runtimeapi.CreateContainerRequest{PodSandboxId: f.sandbox, Config: config, SandboxConfig: f.config})
		checkRefusal(t, err, codes.Unimplemented, []string{"hugepage_limits[0].limit", "hugetlb"})
		return
	}
	want(t, "huge pages", f.limit(f.running(limit(2<<20)), "hugetlb/hugetlb.2MB.limit_in_bytes", "hugetlb.2MB.max"), "2097152")
}

// testUnified: files of v2. On v1 berth refuses by name all except the one that every kubelet
// sends.
func (f *fields) testUnified(t *testing.T) {
	unified := func(values map[string]string) func(containerConfig) {
		return func(c containerConfig) { c.Linux.Resources.Unified = values }
	}
	high := ofContainer(unified(map[string]string{"memory.high": "100000000"}))
	if engineRefuses(t, f.Berth, translate.Unified, high, "unified", "memory.high") {
		f.running(unified(map[string]string{"memory.oom.group": "1"}))
		return
	}
	if !onV2() {
		f.running(unified(map[string]string{"memory.oom.group": "1"}))
		config := f.Container("unified", "exit 0")
		unified(map[string]string{"memory.high": "100000000"})(config)
		_, err := f.Runtime.CreateContainer(f.Ctx(), &runtimeapi.CreateContainerRequest{PodSandboxId: f.sandbox, Config: config, SandboxConfig: f.config})
		checkRefusal(t, err, codes.Unimplemented, []string{"unified", "memory.high", "cgroup v2"})
		return
	}
	id := f.running(unified(map[string]string{"memory.oom.group": "1", "memory.high": "104857600"}))
	want(t, "memory.high", f.limit(id, "", "memory.high"), "104857600")
	want(t, "memory.oom.group", f.limit(id, "", "memory.oom.group"), "1")
}

// testUpdate: an update, up or down, is in the cgroup and in the status. It is in both again after
// the daemon was killed. A refused update changes nothing.
func (f *fields) testUpdate(t *testing.T) {
	f.NeedsOfHandler(t, harness.ContainerLimits)
	id := f.running(func(c containerConfig) {
		c.Linux.Resources = &runtimeapi.LinuxContainerResources{CpuPeriod: 100000, CpuQuota: 20000, CpuShares: 102, MemoryLimitInBytes: 64 << 20, OomScoreAdj: 900}
	})
	memory := func() string { return f.limit(id, "memory/memory.limit_in_bytes", "memory.max") }
	for _, bytes := range []int64{256 << 20, 32 << 20, 128 << 20} { // swap follows in the kernel's order
		if err := f.update(id, &runtimeapi.LinuxContainerResources{MemoryLimitInBytes: bytes}); err != nil {
			t.Fatalf("update to %d: %v", bytes, err)
		}
	}
	if err := f.update(id, &runtimeapi.LinuxContainerResources{CpuQuota: 70000, CpuShares: 1024, CpusetCpus: "0"}); err != nil {
		t.Fatal(err)
	}
	check := func(when string) {
		t.Helper()
		want(t, "memory "+when, memory(), "134217728")
		want(t, "cpus "+when, f.limit(id, "cpuset/cpuset.cpus", "cpuset.cpus"), "0")
		if !onV2() {
			want(t, "quota "+when, f.limit(id, "cpu/cpu.cfs_quota_us", ""), "70000")
			want(t, "shares "+when, f.limit(id, "cpu/cpu.shares", ""), "1024")
		}
		res := &runtimeapi.LinuxContainerResources{CpuPeriod: 100000, CpuQuota: 70000, CpuShares: 1024, MemoryLimitInBytes: 128 << 20, CpusetCpus: "0", OomScoreAdj: 900}
		if diff := cmp.Diff(res, f.Status(id).GetResources().GetLinux(), protocmp.Transform()); diff != "" {
			t.Errorf("status %s: %s", when, diff)
		}
	}
	check("after the update")
	waiting := f.create("exec sleep 100000", nil)
	if err := f.update(waiting, &runtimeapi.LinuxContainerResources{MemoryLimitInBytes: 80 << 20}); err != nil {
		t.Errorf("update before the start: %v", err)
	}
	f.StartContainer(waiting)
	want(t, "memory of one that was updated before its start", f.limit(waiting, "memory/memory.limit_in_bytes", "memory.max"), "83886080")
	for name, c := range map[string]struct {
		res   *runtimeapi.LinuxContainerResources
		words []string
	}{
		"score of no process":    {&runtimeapi.LinuxContainerResources{OomScoreAdj: 5000}, []string{"linux.oom_score_adj"}},
		"huge shares":            {&runtimeapi.LinuxContainerResources{CpuShares: 1 << 62}, []string{"linux.cpu_shares"}},
		"memory of another host": {&runtimeapi.LinuxContainerResources{CpusetMems: "900"}, []string{"linux.cpuset_mems"}},
		"negative shares":        {&runtimeapi.LinuxContainerResources{CpuShares: -1}, []string{"cpu_shares"}},
		"huge quota":             {&runtimeapi.LinuxContainerResources{CpuQuota: 1 << 62}, []string{"cpu_quota"}},
		"tiny period":            {&runtimeapi.LinuxContainerResources{CpuPeriod: 5}, []string{"cpu_period"}},
		"CPUs of two lines":      {&runtimeapi.LinuxContainerResources{CpusetCpus: "0\n1"}, []string{"cpuset_cpus"}},
		"CPUs backwards":         {&runtimeapi.LinuxContainerResources{CpusetCpus: "3-1"}, []string{"cpuset_cpus"}},
		"CPUs of another host":   {&runtimeapi.LinuxContainerResources{CpusetCpus: "4000"}, []string{"cpuset"}},
		"swap below the memory":  {&runtimeapi.LinuxContainerResources{MemorySwapLimitInBytes: 1 << 20}, []string{"memory_swap_limit_in_bytes"}},
		"less memory than used":  {&runtimeapi.LinuxContainerResources{MemoryLimitInBytes: 4096}, []string{"memory"}},
	} {
		checkRefusal(t, f.update(id, c.res), codes.InvalidArgument, c.words)
		if t.Failed() {
			t.Fatalf("after %s", name)
		}
	}
	checkRefusal(t, f.update(id, nil), codes.InvalidArgument, []string{"linux is missing"})
	check("after the refusals")
	f.KillDaemon()
	f.StartDaemon()
	check("after the restart")
}

// testUpdateSandbox: the pod's own cgroup has the limits. Its containers do not see them.
func (f *fields) testUpdateSandbox(t *testing.T) {
	dir := podCgroup(t, f.pid(t, f.running(nil)))
	res := &runtimeapi.LinuxContainerResources{CpuPeriod: 100000, CpuQuota: 90000, CpuShares: 300, MemoryLimitInBytes: 512 << 20}
	for range 2 {
		if _, err := f.Runtime.UpdatePodSandboxResources(f.Ctx(), &runtimeapi.UpdatePodSandboxResourcesRequest{PodSandboxId: f.sandbox, Resources: res}); err != nil {
			t.Fatal(err)
		}
	}
	file, read := filepath.Join(dir("memory"), "memory.limit_in_bytes"), ""
	if onV2() {
		file = filepath.Join(dir(""), "memory.max")
	}
	if data, err := os.ReadFile(file); err == nil {
		read = strings.TrimSpace(string(data))
	}
	want(t, file, read, "536870912")
	// If the kernel refuses a value, the previous limits stay.
	_, err := f.Runtime.UpdatePodSandboxResources(f.Ctx(), &runtimeapi.UpdatePodSandboxResourcesRequest{
		PodSandboxId: f.sandbox, Resources: &runtimeapi.LinuxContainerResources{MemoryLimitInBytes: 256 << 20, CpusetCpus: "4000"},
	})
	checkRefusal(t, err, codes.InvalidArgument, []string{"cpuset", "all limits are as they were"})
	if data, err := os.ReadFile(file); err == nil {
		read = strings.TrimSpace(string(data))
	}
	want(t, file+" after a refusal", read, "536870912")
	answer, err := f.Runtime.PodSandboxStatus(f.Ctx(), &runtimeapi.PodSandboxStatusRequest{PodSandboxId: f.sandbox, Verbose: true})
	if err != nil || !strings.Contains(answer.Info["info"], `"memoryLimitInBytes":"536870912"`) {
		t.Errorf("verbose status %v, %v", answer.GetInfo(), err)
	}
	_, err = f.Runtime.UpdatePodSandboxResources(f.Ctx(), &runtimeapi.UpdatePodSandboxResourcesRequest{
		PodSandboxId: f.sandbox, Resources: &runtimeapi.LinuxContainerResources{CpuPeriod: -1},
	})
	checkRefusal(t, err, codes.InvalidArgument, []string{"cpu_period"})
}

// podCgroup returns the parent of a process's cgroup, by controller ("" on v2).
func podCgroup(t *testing.T, pid string) func(controller string) string {
	t.Helper()
	data, err := os.ReadFile(filepath.Join("/proc", pid, "cgroup"))
	if err != nil {
		t.Fatal(err)
	}
	return func(controller string) string {
		for line := range strings.Lines(string(data)) {
			parts := strings.SplitN(strings.TrimSpace(line), ":", 3)
			if len(parts) == 3 && slices.Contains(strings.Split(parts[1], ","), controller) {
				return filepath.Join("/sys/fs/cgroup", parts[1], filepath.Dir(parts[2]))
			}
		}
		return "/nowhere"
	}
}
