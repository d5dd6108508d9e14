package engine

import (
	"math"
	"time"
)

// NoLimit is the value of a limit that is not set.
const NoLimit = math.MaxUint64

// Figures are what is counted of a cgroup and all below it: bytes, or nanoseconds,
// or counts. What a host does not count is 0 or nil.
type Figures struct {
	At time.Time
	// CPU is nanoseconds of all processors together.
	CPU    uint64
	Memory MemoryFigures
	// Swap is nil where swap is not accounted.
	Swap *SwapFigures
	// Tasks are processes and their threads.
	Tasks uint64
	// The pressure of each resource, nil where the kernel does not report it.
	CPUPressure, MemoryPressure, IOPressure *Pressure
	// Details are read for metrics only.
	Details *Details
	// Links are those of a sandbox's own network, without the loopback.
	Links []Link
	// Written is what a container wrote to its root filesystem, nil when it has not
	// been measured yet.
	Written *Written
}

// MemoryFigures are in bytes; faults are counts.
type MemoryFigures struct {
	// WorkingSet is Usage without the inactive file pages.
	Usage, WorkingSet, RSS, Limit uint64
	MinorFaults, MajorFaults      uint64

	Cache, MappedFile, ActiveFile, InactiveFile, Kernel uint64
}

// SwapFigures are in bytes.
type SwapFigures struct{ Usage, Limit uint64 }

// Pressure is time lost by waiting for a resource: by some tasks, or by all.
type Pressure struct{ Some, Full Stall }

// Stall is time lost, in percent over windows of seconds and in nanoseconds in all.
type Stall struct {
	Avg10, Avg60, Avg300 float64
	Total                uint64
}

// Link is a network interface and its counters.
type Link struct {
	Name                                    string
	RxBytes, RxPackets, RxErrors, RxDropped uint64
	TxBytes, TxPackets, TxErrors, TxDropped uint64
}

// Written is the size of a writable layer and of its filesystem.
type Written struct {
	At            time.Time
	Mountpoint    string
	Bytes, Inodes uint64
	// Device is the filesystem's, such as /dev/sda1.
	Device                            string
	Capacity, InodesTotal, InodesFree uint64
}

// Details are the figures that only metrics show.
type Details struct {
	// Cgroup is the path of the cgroup below its hierarchy's root.
	Cgroup string
	// CPU time in nanoseconds, and what its quota did, in periods and nanoseconds.
	CPUUser, CPUSystem                                        uint64
	Periods, ThrottledPeriods, Throttled, BurstPeriods, Burst uint64
	// CPUPeriod and CPUQuota are microseconds; a quota of 0 is none.
	CPUPeriod, CPUQuota, CPUShares uint64
	// MemoryPeak and MemoryFailures are the highest usage, and how often the limit was
	// hit.
	MemoryPeak, MemoryFailures uint64
	// MemorySwapLimit is of memory and swap together; NoLimit for none.
	MemoryReservation, MemorySwapLimit uint64
	// OOMKills counts processes that the kernel killed for memory.
	OOMKills  uint64
	HugePages []HugePages
	Devices   []DeviceIO
	// TasksLimit is NoLimit for none.
	TasksLimit uint64
	// Of a container with very many descriptors not all sockets are counted.
	Processes, FileDescriptors, Sockets uint64
	// OpenFilesLimit is the soft limit of the oldest process, NoLimit for none and 0
	// when there is no process.
	OpenFilesLimit uint64
}

// HugePages are those of one size ("2MB").
type HugePages struct {
	Size                  string
	Usage, Peak, Failures uint64
}

// DeviceIO is what went to and from a block device.
type DeviceIO struct {
	Major, Minor uint64
	// Device is its node, such as /dev/sda; "" when it has none.
	Device                               string
	ReadBytes, WriteBytes, Reads, Writes uint64
	DiscardBytes, Discards               uint64
}
