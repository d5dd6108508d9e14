//go:build integration

package integration

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/opencontainers/cgroups"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berthrun/berth/test/harness"
)

// testSandboxLimits: the cgroup of a sandbox without a cgroup parent has every limit of the
// request, as far as the host has the controllers.
func (f *fields) testSandboxLimits(t *testing.T) {
	const memory, swap, shares, huge = 200 << 20, 300 << 20, 300, 4 << 20
	res := &runtimeapi.LinuxContainerResources{
		CpuPeriod: 50000, CpuQuota: 30000, CpuShares: shares, CpusetCpus: "0", CpusetMems: "0", MemoryLimitInBytes: memory,
	}
	wants := map[[2]string]string{
		{"cpu", "cpu.cfs_period_us"}: "50000", {"cpu", "cpu.cfs_quota_us"}: "30000", {"cpu", "cpu.shares"}: fmt.Sprint(shares),
		{"cpuset", "cpuset.cpus"}: "0", {"cpuset", "cpuset.mems"}: "0", {"memory", "memory.limit_in_bytes"}: fmt.Sprint(memory),
	}
	exists := func(file string) bool {
		_, err := os.Stat(filepath.Join("/sys/fs/cgroup", file))
		return err == nil
	}
	if onV2() {
		res.MemorySwapLimitInBytes = swap
		res.Unified = map[string]string{"memory.high": "157286400", "pids.max": "321"}
		wants = map[[2]string]string{
			{"", "cpu.max"}: "30000 50000", {"", "cpu.weight"}: fmt.Sprint(cgroups.ConvertCPUSharesToCgroupV2Value(shares)),
			{"", "cpuset.cpus"}: "0", {"", "cpuset.mems"}: "0", {"", "memory.max"}: fmt.Sprint(memory), {"", "memory.swap.max"}: fmt.Sprint(swap - memory),
			{"", "memory.high"}: "157286400", {"", "pids.max"}: "321",
		}
		if controllers, err := os.ReadFile("/sys/fs/cgroup/cgroup.controllers"); err == nil && strings.Contains(string(controllers), "hugetlb") {
			res.HugepageLimits = []*runtimeapi.HugepageLimit{{PageSize: "2MB", Limit: huge}}
			wants[[2]string{"", "hugetlb.2MB.max"}] = fmt.Sprint(huge)
		}
	}
	if exists("memory/memory.memsw.limit_in_bytes") {
		res.MemorySwapLimitInBytes = swap
		wants[[2]string{"memory", "memory.memsw.limit_in_bytes"}] = fmt.Sprint(swap)
	}
	if exists("hugetlb/hugetlb.2MB.limit_in_bytes") {
		res.HugepageLimits = []*runtimeapi.HugepageLimit{{PageSize: "2MB", Limit: huge}}
		wants[[2]string{"hugetlb", "hugetlb.2MB.limit_in_bytes"}] = fmt.Sprint(huge)
	}
	f.pod(func(c *runtimeapi.PodSandboxConfig) { c.Linux.Resources = res })
	dir := podCgroup(t, f.pid(t, f.running(nil)))
	for at, value := range wants {
		file := filepath.Join(dir(at[0]), at[1])
		data, err := os.ReadFile(file)
		if err != nil {
			t.Error(err)
			continue
		}
		want(t, file, strings.TrimSpace(string(data)), value)
	}
}

// TestFieldsOfSandboxesByConfiguration: the directory of pods' namespaces, and the names of their
// containers' scopes.
func TestFieldsOfSandboxesByConfiguration(t *testing.T) {
	dir := t.TempDir()
	t.Cleanup(func() { // it is a mount of its own, and stays, as /run/netns does
		if err := syscall.Unmount(filepath.Join(dir, "pins"), 0); err != nil {
			t.Error(err)
		}
	})
	f := newFields(t, harness.Options{
		Config: fmt.Sprintf("[network]\nnetns_dir = %q\n[runtime]\nscope_prefix = \"crio\"\n", filepath.Join(dir, "pins")),
	}, nil)
	f.try(t, "network.netns_dir", func(t *testing.T) {
		pins := func() []string {
			paths, err := filepath.Glob(filepath.Join(dir, "pins", "*"))
			if err != nil {
				t.Fatal(err)
			}
			return paths
		}
		if got := pins(); len(got) != 1 || !strings.HasSuffix(got[0], f.sandbox) {
			t.Errorf("pins %q of sandbox %s", got, f.sandbox)
		}
		f.KillDaemon()
		f.StartDaemon()
		want(t, "a pod that was adopted", f.says(t, "ip -o addr show eth0 >/dev/null && echo attached", nil), "attached")
		f.RemovePod(f.sandbox)
		if got := pins(); len(got) != 0 {
			t.Errorf("left: %q", got)
		}
	})
	f.try(t, "runtime.scope_prefix", func(t *testing.T) {
		f.NeedsPart(t, harness.ScopeNames)
		f.pod(nil)
		id := f.running(nil)
		data, err := os.ReadFile(filepath.Join("/proc", f.pid(t, id), "cgroup"))
		if err != nil {
			t.Fatal(err)
		}
		name := "/" + id // with cgroupfs there are no scopes
		if _, err := os.Stat("/run/systemd/system"); err == nil {
			name = "/crio-" + id + ".scope"
		}
		if !strings.Contains(string(data), name) {
			t.Errorf("no %s in %s", name, data)
		}
	})
}
