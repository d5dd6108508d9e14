package cadvisor

import (
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berthrun/berth/internal/engine"
)

func generalMetrics() []metric {
	return []metric{
		gauge("container_last_seen", "When its figures were read, in seconds since 1970.", func(s *subject) uint64 { return uint64(s.At.Unix()) }),
		gauge("container_start_time_seconds", "When it was made, in seconds since 1970.", func(s *subject) uint64 {
			return uint64(s.createdAt / int64(time.Second))
		}),
		counter("container_oom_events_total", "Processes in it that the kernel killed for memory.", func(s *subject) uint64 { return s.Details.OOMKills }),
	}
}

func cpuMetrics() []metric {
	hasQuota := func(s *subject) bool { return s.Details.CPUQuota != 0 }
	return []metric{
		counter("container_cpu_user_seconds_total", "CPU time in user mode, in seconds.", func(s *subject) uint64 { return seconds(s.Details.CPUUser) }),
		counter("container_cpu_system_seconds_total", "CPU time in the kernel, in seconds.", func(s *subject) uint64 { return seconds(s.Details.CPUSystem) }),
		{
			"container_cpu_usage_seconds_total", "CPU time, in seconds.", runtimeapi.MetricType_COUNTER,
			[]string{"cpu"},
			func(s *subject) []sample { return []sample{{value: seconds(s.CPU), labels: []string{"total"}}} },
		},
		when(hasQuota, counter("container_cpu_cfs_periods_total", "Periods of the CPU quota.", func(s *subject) uint64 { return s.Details.Periods })),
		when(hasQuota, counter("container_cpu_cfs_throttled_periods_total", "Periods in which the CPU quota was used up.", func(s *subject) uint64 { return s.Details.ThrottledPeriods })),
		when(hasQuota, counter("container_cpu_cfs_throttled_seconds_total", "Time spent waiting for the CPU quota, in seconds.", func(s *subject) uint64 { return seconds(s.Details.Throttled) })),
		when(hasQuota, counter("container_cpu_cfs_burst_periods_total", "Periods in which the CPU quota was exceeded by a burst.", func(s *subject) uint64 { return s.Details.BurstPeriods })),
		when(hasQuota, counter("container_cpu_cfs_burst_seconds_total", "CPU time above the quota in bursts, in seconds.", func(s *subject) uint64 { return seconds(s.Details.Burst) })),
	}
}

func memoryMetrics() []metric {
	return []metric{
		gauge("container_memory_cache", "Page cache, in bytes.", func(s *subject) uint64 { return s.Memory.Cache }),
		gauge("container_memory_rss", "Anonymous memory, in bytes.", func(s *subject) uint64 { return s.Memory.RSS }),
		gauge("container_memory_kernel_usage", "Memory of the kernel on its behalf, in bytes.", func(s *subject) uint64 { return s.Memory.Kernel }),
		gauge("container_memory_mapped_file", "Mapped files, in bytes.", func(s *subject) uint64 { return s.Memory.MappedFile }),
		gauge("container_memory_swap", "Swap, in bytes.", func(s *subject) uint64 {
			if s.Swap == nil {
				return 0
			}
			return s.Swap.Usage
		}),
		counter("container_memory_failcnt", "How often the memory limit was met.", func(s *subject) uint64 { return s.Details.MemoryFailures }),
		gauge("container_memory_usage_bytes", "All memory that it uses, in bytes.", func(s *subject) uint64 { return s.Memory.Usage }),
		gauge("container_memory_max_usage_bytes", "The most memory that it ever used, in bytes.", func(s *subject) uint64 { return s.Details.MemoryPeak }),
		gauge("container_memory_working_set_bytes", "Memory without file pages that could go first, in bytes.", func(s *subject) uint64 { return s.Memory.WorkingSet }),
		gauge("container_memory_total_active_file_bytes", "File pages in recent use, in bytes.", func(s *subject) uint64 { return s.Memory.ActiveFile }),
		gauge("container_memory_total_inactive_file_bytes", "File pages not in recent use, in bytes.", func(s *subject) uint64 { return s.Memory.InactiveFile }),
		{
			"container_memory_failures_total", "Page faults.", runtimeapi.MetricType_COUNTER,
			[]string{"failure_type", "scope"},
			func(s *subject) []sample {
				faults, major := s.Memory.MinorFaults+s.Memory.MajorFaults, s.Memory.MajorFaults
				return []sample{
					{value: faults, labels: []string{"pgfault", "container"}},
					{value: major, labels: []string{"pgmajfault", "container"}},
					{value: faults, labels: []string{"pgfault", "hierarchy"}},
					{value: major, labels: []string{"pgmajfault", "hierarchy"}},
				}
			},
		},
	}
}

func hugePageMetrics() []metric {
	return []metric{
		hugePages("container_hugetlb_usage_bytes", "Huge pages in use, in bytes.", runtimeapi.MetricType_GAUGE, func(h *engine.HugePages) uint64 { return h.Usage }),
		hugePages("container_hugetlb_max_usage_bytes", "The most huge pages that were ever in use, in bytes.", runtimeapi.MetricType_GAUGE, func(h *engine.HugePages) uint64 { return h.Peak }),
		hugePages("container_hugetlb_failcnt", "How often the limit of huge pages was met.", runtimeapi.MetricType_COUNTER, func(h *engine.HugePages) uint64 { return h.Failures }),
	}
}

func hugePages(name, help string, kind runtimeapi.MetricType, value func(*engine.HugePages) uint64) metric {
	return metric{name, help, kind, []string{"pagesize"}, func(s *subject) []sample {
		var all []sample
		for i := range s.Details.HugePages {
			h := &s.Details.HugePages[i]
			all = append(all, sample{value: value(h), labels: []string{h.Size}})
		}
		return all
	}}
}

func processMetrics() []metric {
	return []metric{
		gauge("container_processes", "Processes in it.", func(s *subject) uint64 { return s.Details.Processes }),
		gauge("container_threads", "Threads in it.", func(s *subject) uint64 { return s.Tasks }),
		gauge("container_threads_max", "The most threads that it may have, 0 for no limit.", func(s *subject) uint64 { return limit(s.Details.TasksLimit) }),
		gauge("container_file_descriptors", "Open file descriptors of its processes.", func(s *subject) uint64 { return s.Details.FileDescriptors }),
		gauge("container_sockets", "Open sockets of its processes.", func(s *subject) uint64 { return s.Details.Sockets }),
		{
			"container_ulimits_soft", "Soft limits of its oldest process.", runtimeapi.MetricType_GAUGE,
			[]string{"ulimit"},
			func(s *subject) []sample {
				if s.Details.OpenFilesLimit == 0 {
					return nil
				}
				return []sample{{value: s.Details.OpenFilesLimit, labels: []string{"max_open_files"}}}
			},
		},
	}
}

func pressureMetrics() []metric {
	pressure := func(name, help string, of func(*subject) *engine.Pressure, total func(*engine.Pressure) uint64) metric {
		return when(func(s *subject) bool { return of(s) != nil },
			counter(name, help, func(s *subject) uint64 { return seconds(total(of(s))) }))
	}
	cpu := func(s *subject) *engine.Pressure { return s.CPUPressure }
	memory := func(s *subject) *engine.Pressure { return s.MemoryPressure }
	io := func(s *subject) *engine.Pressure { return s.IOPressure }
	some := func(p *engine.Pressure) uint64 { return p.Some.Total }
	full := func(p *engine.Pressure) uint64 { return p.Full.Total }
	return []metric{
		pressure("container_pressure_cpu_stalled_seconds_total", "Time in which no task got CPU, in seconds.", cpu, full),
		pressure("container_pressure_cpu_waiting_seconds_total", "Time in which some task waited for CPU, in seconds.", cpu, some),
		pressure("container_pressure_memory_stalled_seconds_total", "Time in which every task waited for memory, in seconds.", memory, full),
		pressure("container_pressure_memory_waiting_seconds_total", "Time in which some task waited for memory, in seconds.", memory, some),
		pressure("container_pressure_io_stalled_seconds_total", "Time in which every task waited for I/O, in seconds.", io, full),
		pressure("container_pressure_io_waiting_seconds_total", "Time in which some task waited for I/O, in seconds.", io, some),
	}
}

func specMetrics() []metric {
	return []metric{
		gauge("container_spec_cpu_period", "Period of the CPU quota, in microseconds.", func(s *subject) uint64 { return s.Details.CPUPeriod }),
		when(func(s *subject) bool { return s.Details.CPUQuota != 0 },
			gauge("container_spec_cpu_quota", "CPU quota, in microseconds a period.", func(s *subject) uint64 { return s.Details.CPUQuota })),
		gauge("container_spec_cpu_shares", "CPU shares.", func(s *subject) uint64 { return s.Details.CPUShares }),
		gauge("container_spec_memory_limit_bytes", "Memory limit, in bytes, 0 for none.", func(s *subject) uint64 { return limit(s.Memory.Limit) }),
		gauge("container_spec_memory_reservation_limit_bytes", "Memory above which it is reclaimed first, in bytes, 0 for none.", func(s *subject) uint64 { return s.Details.MemoryReservation }),
		gauge("container_spec_memory_swap_limit_bytes", "Limit of memory and swap together, in bytes, 0 for none.", func(s *subject) uint64 { return limit(s.Details.MemorySwapLimit) }),
	}
}
