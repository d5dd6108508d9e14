package check

import (
	"errors"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berthrun/berth/internal/ocispec/fielderror"
	"github.com/berthrun/berth/internal/ocispec/request"
)

// Resources judges the limits in a request's field as a whole: kind Invalid, with
// the name of what is wrong.
func Resources(field string, res *runtimeapi.LinuxContainerResources) error {
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
			return fielderror.Invalid(field+"."+v.name, "%d is out of range", v.value)
		}
	}
	if period := res.GetCpuPeriod(); period != 0 && period < minPeriod {
		return fielderror.Invalid(field+".cpu_period", "%d is out of range", period)
	}
	if shares := res.GetCpuShares(); shares != 0 && shares < minShares {
		return fielderror.Invalid(field+".cpu_shares", "%d is out of range", shares)
	}
	if quota := res.GetCpuQuota(); quota > 0 && quota < minPeriod {
		return fielderror.Invalid(field+".cpu_quota", "%d is out of range", quota)
	}
	if !isNumberList(res.GetCpusetCpus()) {
		return fielderror.Invalid(field+".cpuset_cpus", "%q is not a list of CPUs", res.GetCpusetCpus())
	}
	if !isNumberList(res.GetCpusetMems()) {
		return fielderror.Invalid(field+".cpuset_mems", "%q is not a list of memory nodes", res.GetCpusetMems())
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
		return fielderror.Invalid(field+".memory_swap_limit_in_bytes", "%d needs a limit of memory too", swap)
	}
	if swap > 0 && swap < memory {
		return fielderror.Invalid(field+".memory_swap_limit_in_bytes", "%d is less than the %d of memory_limit_in_bytes, which it includes", swap, memory)
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
		return fielderror.Invalid(field+".hugepage_limits", "%d are more than the %d that there can be", n, maxHugepageSizes)
	}
	for i, limit := range res.GetHugepageLimits() {
		number := strings.TrimRight(strings.TrimSuffix(limit.GetPageSize(), "B"), "KMG")
		if number == "" || !request.OnlyOf(number, "0123456789") || len(limit.GetPageSize())-len(number) > 2 {
			return fielderror.Invalid(fielderror.Index(field+".hugepage_limits", i, "page_size"), "%q is not a page size", limit.GetPageSize())
		}
	}
	return nil
}

func checkUnified(field string, res *runtimeapi.LinuxContainerResources) error {
	if n := len(res.GetUnified()); n > maxUnified {
		return fielderror.Invalid(field+".unified", "%d are more than the %d files that there can be", n, maxUnified)
	}
	for _, key := range slices.Sorted(maps.Keys(res.GetUnified())) {
		// It becomes a file name.
		if !strings.Contains(key, ".") || request.HasControl(key) || strings.Contains(key, "/") || strings.HasPrefix(key, ".") {
			return fielderror.Invalid(field+".unified", "%q is not a cgroup v2 file", key)
		}
		if request.HasControl(res.GetUnified()[key]) {
			return fielderror.Invalid(field+".unified", "the value of %q contains a control character", key)
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
		if err != nil || !request.OnlyOf(from, "0123456789") {
			return false
		}
		if !isRange {
			continue
		}
		if last, err := strconv.ParseUint(to, 10, 16); err != nil || !request.OnlyOf(to, "0123456789") || last < first {
			return false
		}
	}
	return true
}
