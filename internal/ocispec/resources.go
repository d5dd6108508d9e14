package ocispec

import (
	"errors"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/opencontainers/runtime-spec/specs-go"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// The fields that limits are in: of a new container, of one that is updated, and of a
// sandbox that is updated.
const (
	FieldCreate        = "config.linux.resources"
	FieldUpdate        = "linux"
	FieldUpdateSandbox = "resources"
)

// Resources turns the limits in a request's field into the spec's, for a new container
// or for one that is updated. What is 0 or "" is not specified and left out. The
// result is never nil.
func Resources(field string, res *runtimeapi.LinuxContainerResources, host Host) (*specs.LinuxResources, error) {
	if err := CheckResources(field, res); err != nil {
		return nil, err
	}
	out := &specs.LinuxResources{CPU: cpuOf(res), Memory: memoryOf(res, host)}
	for i, limit := range res.GetHugepageLimits() {
		if !host.Hugetlb {
			if limit.GetLimit() == 0 {
				continue // the kubelet's way of saying that none was asked for
			}
			return nil, unsupported(index(field+".hugepage_limits", i, "limit"),
				"%d bytes of %s pages: the host has no usable hugetlb controller", limit.GetLimit(), limit.GetPageSize())
		}
		out.HugepageLimits = append(out.HugepageLimits, specs.LinuxHugepageLimit{
			Pagesize: limit.GetPageSize(), Limit: limit.GetLimit(),
		})
	}
	for _, key := range sortedKeys(res.GetUnified()) {
		if host.CgroupV2 {
			if out.Unified == nil {
				out.Unified = map[string]string{}
			}
			out.Unified[key] = res.GetUnified()[key]
			continue
		}
		// Sent for every pod, and without meaning on v1, where the OOM killer
		// takes single processes.
		if key != "memory.oom.group" {
			return nil, unsupported(field+".unified", "%q needs cgroup v2, and the host has v1", key)
		}
	}
	return out, nil
}

// Update is Resources for what exists. A memory limit below what is in use is refused
// there, instead of ending processes.
func Update(field string, res *runtimeapi.LinuxContainerResources, host Host) (*specs.LinuxResources, error) {
	out, err := Resources(field, res, host)
	if err == nil && out.Memory != nil && out.Memory.Limit != nil {
		check := true
		out.Memory.CheckBeforeUpdate = &check
	}
	return out, err
}

func cpuOf(res *runtimeapi.LinuxContainerResources) *specs.LinuxCPU {
	cpu := &specs.LinuxCPU{Cpus: res.GetCpusetCpus(), Mems: res.GetCpusetMems()}
	if period := uint64(res.GetCpuPeriod()); period != 0 {
		cpu.Period = &period
	}
	if quota := res.GetCpuQuota(); quota != 0 {
		cpu.Quota = &quota
	}
	if shares := uint64(res.GetCpuShares()); shares != 0 {
		cpu.Shares = &shares
	}
	if *cpu == (specs.LinuxCPU{}) {
		return nil
	}
	return cpu
}

// memoryOf: without a limit for swap, memory and swap together are limited to the
// memory limit, so that a container does not swap unless it is told to.
func memoryOf(res *runtimeapi.LinuxContainerResources, host Host) *specs.LinuxMemory {
	memory := &specs.LinuxMemory{}
	limit, swap := res.GetMemoryLimitInBytes(), res.GetMemorySwapLimitInBytes()
	if limit != 0 {
		memory.Limit = &limit
	}
	if swap == 0 {
		swap = limit
	}
	if swap != 0 && host.SwapLimit {
		memory.Swap = &swap
	}
	if *memory == (specs.LinuxMemory{}) {
		return nil
	}
	return memory
}

// CheckResources judges the limits in a request's field as a whole: kind Invalid, with
// the name of what is wrong.
func CheckResources(field string, res *runtimeapi.LinuxContainerResources) error {
	for _, v := range []struct {
		name     string
		value    int64
		min, max int64
	}{
		{"cpu_period", res.GetCpuPeriod(), 0, maxPeriod},
		{"cpu_quota", res.GetCpuQuota(), -1, maxQuota},
		{"cpu_shares", res.GetCpuShares(), 0, maxShares},
		{"memory_limit_in_bytes", res.GetMemoryLimitInBytes(), -1, math.MaxInt64},
		{"memory_swap_limit_in_bytes", res.GetMemorySwapLimitInBytes(), -1, math.MaxInt64},
		{"oom_score_adj", res.GetOomScoreAdj(), -1000, 1000},
	} {
		if v.value < v.min || v.value > v.max {
			return invalid(field+"."+v.name, "%d is out of range", v.value)
		}
	}
	if period := res.GetCpuPeriod(); period != 0 && period < minPeriod {
		return invalid(field+".cpu_period", "%d is out of range", period)
	}
	if shares := res.GetCpuShares(); shares != 0 && shares < minShares {
		return invalid(field+".cpu_shares", "%d is out of range", shares)
	}
	if quota := res.GetCpuQuota(); quota > 0 && quota < minPeriod {
		return invalid(field+".cpu_quota", "%d is out of range", quota)
	}
	if !isNumberList(res.GetCpusetCpus()) {
		return invalid(field+".cpuset_cpus", "%q is no list of CPUs", res.GetCpusetCpus())
	}
	if !isNumberList(res.GetCpusetMems()) {
		return invalid(field+".cpuset_mems", "%q is no list of memory nodes", res.GetCpusetMems())
	}
	return errors.Join(checkSwap(field, res), checkHugepages(field, res), checkUnified(field, res))
}

// The kernel's limits of CPU shares, and of CPU bandwidth in microseconds.
const (
	minShares = 2
	maxShares = 1 << 18
	minPeriod = 1000
	maxPeriod = 1_000_000
	maxQuota  = 1<<44 - 1
)

// checkSwap: the limit of swap is one of memory and swap together.
func checkSwap(field string, res *runtimeapi.LinuxContainerResources) error {
	swap, memory := res.GetMemorySwapLimitInBytes(), res.GetMemoryLimitInBytes()
	if swap > 0 && memory <= 0 {
		return invalid(field+".memory_swap_limit_in_bytes", "%d needs a limit of memory too", swap)
	}
	if swap > 0 && swap < memory {
		return invalid(field+".memory_swap_limit_in_bytes", "%d is less than the %d of memory_limit_in_bytes, which it includes", swap, memory)
	}
	return nil
}

// Bounds of lists of which a kernel knows a few.
const (
	maxHugepageSizes = 32
	maxUnified       = 256
)

func checkHugepages(field string, res *runtimeapi.LinuxContainerResources) error {
	if n := len(res.GetHugepageLimits()); n > maxHugepageSizes {
		return invalid(field+".hugepage_limits", "%d are more than the %d that there can be", n, maxHugepageSizes)
	}
	for i, limit := range res.GetHugepageLimits() {
		number := strings.TrimRight(strings.TrimSuffix(limit.GetPageSize(), "B"), "KMG")
		if number == "" || !onlyOf(number, "0123456789") || len(limit.GetPageSize())-len(number) > 2 {
			return invalid(index(field+".hugepage_limits", i, "page_size"), "%q is no page size", limit.GetPageSize())
		}
	}
	return nil
}

func checkUnified(field string, res *runtimeapi.LinuxContainerResources) error {
	if n := len(res.GetUnified()); n > maxUnified {
		return invalid(field+".unified", "%d are more than the %d files that there can be", n, maxUnified)
	}
	for _, key := range sortedKeys(res.GetUnified()) {
		// It becomes a file name.
		if !strings.Contains(key, ".") || hasControl(key) || strings.Contains(key, "/") || strings.HasPrefix(key, ".") {
			return invalid(field+".unified", "%q is no cgroup v2 file", key)
		}
		if hasControl(res.GetUnified()[key]) {
			return invalid(field+".unified", "the value of %q contains a control character", key)
		}
	}
	return nil
}

// maxNumberList is the longest list that a kernel reads: 6 bytes for each of 8192 CPUs.
const maxNumberList = 6 * 8192

// isNumberList reports whether s is "" or a list as the kernel takes it: "0-2,5".
func isNumberList(s string) bool {
	if s == "" {
		return true
	}
	if len(s) > maxNumberList {
		return false
	}
	for part := range strings.SplitSeq(s, ",") {
		from, to, isRange := strings.Cut(part, "-")
		first, err := strconv.ParseUint(from, 10, 16)
		if err != nil || !onlyOf(from, "0123456789") {
			return false
		}
		if !isRange {
			continue
		}
		if last, err := strconv.ParseUint(to, 10, 16); err != nil || !onlyOf(to, "0123456789") || last < first {
			return false
		}
	}
	return true
}

func sortedKeys[V any](m map[string]V) []string {
	keys := make([]string, 0, len(m))
	for key := range m {
		keys = append(keys, key)
	}
	slices.Sort(keys)
	return keys
}
