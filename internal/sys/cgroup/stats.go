package cgroup

import (
	"bytes"
	"math"
	"strconv"
	"time"
)

// NoLimit is the value of a limit that is not set.
const NoLimit = math.MaxUint64

// Stats are the kernel's counters of a cgroup and all below it: bytes, or nanoseconds, or
// counts. A counter that the host does not have is 0 or nil.
type Stats struct {
	At time.Time
	// CPU is nanoseconds of all processors together.
	CPU    uint64
	Memory MemoryStats
	// Swap is nil where swap is not accounted.
	Swap *SwapStats
	// Tasks are processes and their threads.
	Tasks uint64
	// The pressure of each resource, nil where the kernel does not account it.
	CPUPressure, MemoryPressure, IOPressure *Pressure
}

// MemoryStats are in bytes; faults are counts.
type MemoryStats struct {
	// WorkingSet is Usage without the inactive file pages.
	Usage, WorkingSet, RSS, Limit uint64
	MinorFaults, MajorFaults      uint64

	Cache, MappedFile, ActiveFile, InactiveFile, Kernel uint64
}

// SwapStats are in bytes.
type SwapStats struct{ Usage, Limit uint64 }

// Pressure is the time that some tasks, or all of them, waited for a resource.
type Pressure struct{ Some, Full Stall }

// Stall is waiting time, in percent over windows of seconds and in nanoseconds in all.
type Stall struct {
	Avg10, Avg60, Avg300 float64
	Total                uint64
}

// Reader reads the figures of many cgroups, one after the other, into one buffer. The zero value is
// ready. It is not safe for concurrent use.
type Reader struct{ buffer []byte }

// Stats reads the figures of a cgroup in one pass, without Details. Kind NotFound when
// the cgroup is gone. Counters of a missing controller are 0.
func (b *Reader) Stats(p Paths) (Stats, error) {
	s := Stats{At: time.Now()}
	r := reader{buffer: b.buffer}
	if p.unified() {
		statsV2(&r, &s, p[""])
	} else {
		statsV1(&r, &s, p)
	}
	b.buffer = r.buffer
	return s, r.result(p)
}

// CPU reads only how many nanoseconds of CPU a cgroup has used. Kind NotFound when
// the cgroup is gone.
func (p Paths) CPU() (uint64, error) {
	r := reader{buffer: make([]byte, 0, roomForNumbers)}
	var used uint64
	if p.unified() {
		used = micro(r.keyed(p[""], "cpu.stat").get("usage_usec"))
	} else {
		used = r.number(p["cpuacct"], "cpuacct.usage")
	}
	return used, r.result(p)
}

func statsV2(r *reader, s *Stats, dir string) {
	cpu := r.keyed(dir, "cpu.stat")
	s.CPU = micro(cpu.get("usage_usec"))
	m := &s.Memory
	m.Usage = r.number(dir, "memory.current")
	m.Limit = r.limit(dir, "memory.max")
	memory := r.keyed(dir, "memory.stat")
	m.WorkingSet = workingSet(m.Usage, memory.get("inactive_file"))
	m.RSS = memory.get("anon")
	m.MajorFaults = memory.get("pgmajfault")
	m.MinorFaults = memory.get("pgfault") - min(memory.get("pgfault"), memory.get("pgmajfault"))
	m.Cache, m.MappedFile, m.Kernel = memory.get("file"), memory.get("file_mapped"), memory.get("kernel")
	m.ActiveFile, m.InactiveFile = memory.get("active_file"), memory.get("inactive_file")
	if data := r.file(dir, "memory.swap.current"); data != nil {
		s.Swap = &SwapStats{Usage: parseNumber(data)}
		s.Swap.Limit = r.limit(dir, "memory.swap.max")
	}
	s.Tasks = r.number(dir, "pids.current")
	s.CPUPressure = parsePressure(r.file(dir, "cpu.pressure"))
	s.MemoryPressure = parsePressure(r.file(dir, "memory.pressure"))
	s.IOPressure = parsePressure(r.file(dir, "io.pressure"))
}

func statsV1(r *reader, s *Stats, paths Paths) {
	s.CPU = r.number(paths["cpuacct"], "cpuacct.usage")
	dir := paths["memory"]
	m := &s.Memory
	m.Usage = r.number(dir, "memory.usage_in_bytes")
	memory := r.keyed(dir, "memory.stat")
	m.WorkingSet = workingSet(m.Usage, memory.get("total_inactive_file"))
	m.RSS = memory.get("total_rss")
	m.MajorFaults = memory.get("total_pgmajfault")
	m.MinorFaults = memory.get("total_pgfault") - min(memory.get("total_pgfault"), memory.get("total_pgmajfault"))
	m.Cache, m.MappedFile = memory.get("total_cache"), memory.get("total_mapped_file")
	m.ActiveFile, m.InactiveFile = memory.get("total_active_file"), memory.get("total_inactive_file")
	m.Limit = limitV1(memory, "hierarchical_memory_limit")
	both := limitV1(memory, "hierarchical_memsw_limit")
	if data := r.file(dir, "memory.memsw.usage_in_bytes"); data != nil {
		// v1 counts memory and swap together.
		s.Swap = &SwapStats{Usage: parseNumber(data) - min(parseNumber(data), m.Usage), Limit: NoLimit}
		if both != NoLimit && m.Limit != NoLimit {
			s.Swap.Limit = both - min(both, m.Limit)
		}
	}
	s.Tasks = r.number(paths["pids"], "pids.current")
	// A hybrid host has the pressure beside its controllers.
	dir = paths[""]
	s.CPUPressure = parsePressure(r.file(dir, "cpu.pressure"))
	s.MemoryPressure = parsePressure(r.file(dir, "memory.pressure"))
	s.IOPressure = parsePressure(r.file(dir, "io.pressure"))
}

func workingSet(usage, inactive uint64) uint64 { return usage - min(usage, inactive) }

// limitV1 returns NoLimit for a number near the largest, which v1 reports for it.
func limitV1(stat keyed, key string) uint64 {
	if v, ok := stat.find(key); ok && v < math.MaxInt64/2 {
		return v
	}
	return NoLimit
}

// parsePressure reads lines like
//
//	some avg10=0.00 avg60=0.00 avg300=0.00 total=0
func parsePressure(data []byte) *Pressure {
	if len(data) == 0 {
		return nil
	}
	p := &Pressure{}
	for line := range bytes.Lines(data) {
		stall := &p.Some
		for i := 0; ; i++ {
			line = bytes.TrimSpace(line)
			field, rest, _ := bytes.Cut(line, []byte(" "))
			if len(field) == 0 {
				break
			}
			if i == 0 && string(field) == "full" {
				stall = &p.Full
			}
			stall.set(field)
			line = rest
		}
	}
	return p
}

// set reads one field of a line, such as "avg10=0.00".
func (s *Stall) set(field []byte) {
	key, value, _ := bytes.Cut(field, []byte("="))
	if string(key) == "total" {
		s.Total = micro(parseNumber(value))
		return
	}
	var at *float64
	switch string(key) {
	case "avg10":
		at = &s.Avg10
	case "avg60":
		at = &s.Avg60
	case "avg300":
		at = &s.Avg300
	default:
		return
	}
	if average, err := strconv.ParseFloat(string(value), 64); err == nil {
		*at = average
	}
}
