package meter

import (
	"github.com/berthrun/berth/internal/engine"
	"github.com/berthrun/berth/internal/sys/cgroup"
)

// figuresOf turns what the kernel counts of a cgroup into the engine's words.
func figuresOf(s *cgroup.Stats) *engine.Figures {
	return &engine.Figures{
		At: s.At, CPU: s.CPU, Tasks: s.Tasks,
		Memory:         engine.MemoryFigures(s.Memory),
		Swap:           (*engine.SwapFigures)(s.Swap),
		CPUPressure:    pressureOf(s.CPUPressure),
		MemoryPressure: pressureOf(s.MemoryPressure),
		IOPressure:     pressureOf(s.IOPressure),
	}
}

func pressureOf(p *cgroup.Pressure) *engine.Pressure {
	if p == nil {
		return nil
	}
	return &engine.Pressure{Some: engine.Stall(p.Some), Full: engine.Stall(p.Full)}
}

// detailsOf leaves out what is not counted by the cgroup: its path and what its
// processes have open.
func detailsOf(c *cgroup.Details) *engine.Details {
	d := &engine.Details{
		CPUUser: c.CPUUser, CPUSystem: c.CPUSystem,
		Periods: c.Periods, ThrottledPeriods: c.ThrottledPeriods, Throttled: c.Throttled,
		BurstPeriods: c.BurstPeriods, Burst: c.Burst,
		CPUPeriod: c.CPUPeriod, CPUQuota: c.CPUQuota, CPUShares: c.CPUShares,
		MemoryPeak: c.MemoryPeak, MemoryFailures: c.MemoryFailures,
		MemoryReservation: c.MemoryReservation, MemorySwapLimit: c.MemorySwapLimit,
		OOMKills: c.OOMKills, TasksLimit: c.TasksLimit,
	}
	for _, pages := range c.HugePages {
		d.HugePages = append(d.HugePages, engine.HugePages(pages))
	}
	for _, device := range c.Devices {
		d.Devices = append(d.Devices, engine.DeviceIO(device))
	}
	return d
}
