// Package figures has what parts count of their own work, as plain data. The parts know nothing of
// those who show it.
package figures

import "time"

// Pool is what is kept ready for use.
type Pool struct {
	// Name says what is in the pool, in lower case: "network_namespaces".
	Name string `json:"name"`
	// Size is how many objects the pool keeps ready, Ready how many are ready now.
	Size  int `json:"size"`
	Ready int `json:"ready"`
	// Hits counts objects that were ready when they were needed, Misses those that had to be made then.
	Hits   uint64 `json:"hits"`
	Misses uint64 `json:"misses"`
}

// Supervisor is what the supervisor counts. What it counts up begins at its start.
type Supervisor struct {
	// Pid and KeeperPid are processes; 0 for a keeper that is not there.
	Pid, KeeperPid int
	// Descriptors are in use, of DescriptorLimit.
	Descriptors, DescriptorLimit int
	// Starts counts the creates of containers by what created them, StartReasons those that
	// berth's own init could not do, by the reason.
	Starts, StartReasons map[string]uint64
	Logs                 Logs
}

// Logs is what containers write to their logs. What it counts up includes removed containers.
type Logs struct {
	// ReadBytes is what containers have written.
	ReadBytes uint64 `json:"readBytes"`
	// WrittenBytes is what has reached log files, with the head of each line, in WrittenLines.
	WrittenBytes uint64 `json:"writtenBytes"`
	WrittenLines uint64 `json:"writtenLines"`
	// DiscardedBytes had no file to go to, because it was deleted.
	DiscardedBytes uint64 `json:"discardedBytes"`
	// Throttled is how long containers have waited, all together, because they wrote more than their rate. In JSON it is
	// in nanoseconds; an older supervisor has none.
	Throttled time.Duration `json:"throttled"`
	// PendingBytes are read and not yet in a file. Faults are logs that cannot be written now.
	PendingBytes uint64 `json:"pendingBytes"`
	Faults       uint64 `json:"faults"`
}

// Stage is how long one stage of the jobs of one kind took since the daemon's start.
type Stage struct {
	Job  string `json:"job"`
	Name string `json:"name"`
	// Count is how often it ended. The others are seconds; Median and Most (of 95 of 100) are estimates from buckets.
	Count  uint64  `json:"count"`
	Mean   float64 `json:"mean"`
	Median float64 `json:"median"`
	Most   float64 `json:"most"`
}
