package ociruntime

import (
	"maps"

	"github.com/opencontainers/cgroups"
	"github.com/opencontainers/runtime-spec/specs-go"
)

// Update changes limits of a container's cgroup. Limits that are nil or empty in res stay
// as they are. On error it restores the old limits; the error has an errs.Fault where the
// kernel refuses a limit. No two calls for one id may run at a time.
func (r *Runtime) Update(id string, res *specs.LinuxResources) error {
	c, err := r.load(id)
	if err != nil {
		return err
	}
	config := c.Config()
	group := *config.Cgroups
	limits := *group.Resources
	merge(&limits, res)
	// Set cannot change device rules, and must not undo changes of others.
	limits.SkipDevices = true
	group.Resources = &limits
	config.Cgroups = &group
	return classify(c.Set(config), "")
}

// merge applies what a kubelet changes in place.
func merge(limits *cgroups.Resources, res *specs.LinuxResources) {
	if m := res.Memory; m != nil {
		set(&limits.Memory, m.Limit)
		set(&limits.MemorySwap, m.Swap)
		set(&limits.MemoryReservation, m.Reservation)
		if m.Limit != nil && *m.Limit == -1 && m.Swap == nil {
			limits.MemorySwap = 0 // a swap limit needs a memory limit
		}
		if m.CheckBeforeUpdate != nil {
			limits.MemoryCheckBeforeUpdate = *m.CheckBeforeUpdate
		}
	}
	if c := res.CPU; c != nil {
		set(&limits.CpuPeriod, c.Period)
		set(&limits.CpuQuota, c.Quota)
		if c.Shares != nil {
			limits.CpuShares = *c.Shares
			limits.CpuWeight = cgroups.ConvertCPUSharesToCgroupV2Value(*c.Shares)
		}
		if c.Cpus != "" {
			limits.CpusetCpus = c.Cpus
		}
		if c.Mems != "" {
			limits.CpusetMems = c.Mems
		}
		if c.Burst != nil {
			limits.CpuBurst = c.Burst
		}
		if c.Idle != nil {
			limits.CPUIdle = c.Idle
		}
	}
	if res.Pids != nil && res.Pids.Limit != nil {
		limits.PidsLimit = res.Pids.Limit
	}
	if res.BlockIO != nil {
		set(&limits.BlkioWeight, res.BlockIO.Weight)
	}
	if len(res.HugepageLimits) > 0 {
		limits.HugetlbLimit = nil
		for _, l := range res.HugepageLimits {
			limits.HugetlbLimit = append(limits.HugetlbLimit, &cgroups.HugepageLimit{Pagesize: l.Pagesize, Limit: l.Limit})
		}
	}
	if len(res.Unified) > 0 {
		unified := maps.Clone(limits.Unified)
		if unified == nil {
			unified = make(map[string]string)
		}
		maps.Copy(unified, res.Unified)
		limits.Unified = unified
	}
}

func set[T any](to *T, from *T) {
	if from != nil {
		*to = *from
	}
}
