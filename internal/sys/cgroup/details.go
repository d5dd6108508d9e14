package cgroup

import (
	"math"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// Details are the figures that only metrics show.
type Details struct {
	// CPU time in nanoseconds, and what its quota did, in periods and nanoseconds.
	CPUUser, CPUSystem                                        uint64
	Periods, ThrottledPeriods, Throttled, BurstPeriods, Burst uint64
	// CPUPeriod and CPUQuota are microseconds; a quota of 0 is none.
	CPUPeriod, CPUQuota, CPUShares uint64
	// MemoryPeak is the highest usage; MemoryFailures counts how often the limit was hit.
	MemoryPeak, MemoryFailures uint64
	// MemorySwapLimit is of memory and swap together; NoLimit for none.
	MemoryReservation, MemorySwapLimit uint64
	// OOMKills counts the processes that the OOM killer killed.
	OOMKills  uint64
	HugePages []HugePages
	Devices   []DeviceIO
	// TasksLimit is NoLimit for none.
	TasksLimit uint64
}

// HugePages are those of one size ("2MB").
type HugePages struct {
	Size                  string
	Usage, Peak, Failures uint64
}

// DeviceIO counts the I/O of a block device.
type DeviceIO struct {
	Major, Minor uint64
	// Device is its node, such as /dev/sda; "" when it has none.
	Device                               string
	ReadBytes, WriteBytes, Reads, Writes uint64
	DiscardBytes, Discards               uint64
}

// Details reads the figures that only metrics show. Kind NotFound when the cgroup is
// gone.
func (p Paths) Details() (Details, error) {
	d := Details{MemorySwapLimit: NoLimit}
	r := &reader{}
	if p.unified() {
		detailsV2(r, &d, p[""])
	} else {
		detailsV1(r, &d, p)
	}
	return d, r.result(p)
}

func detailsV2(r *reader, d *Details, dir string) {
	cpu := r.keyed(dir, "cpu.stat")
	d.CPUUser, d.CPUSystem = micro(cpu.get("user_usec")), micro(cpu.get("system_usec"))
	d.Periods, d.ThrottledPeriods, d.Throttled = cpu.get("nr_periods"), cpu.get("nr_throttled"), micro(cpu.get("throttled_usec"))
	d.BurstPeriods, d.Burst = cpu.get("nr_bursts"), micro(cpu.get("burst_usec"))
	quota, period, _ := strings.Cut(r.text(dir, "cpu.max"), " ")
	d.CPUQuota, d.CPUPeriod = parseNumber([]byte(quota)), parseNumber([]byte(period))
	d.CPUShares = sharesOf(r.number(dir, "cpu.weight"))
	d.MemoryPeak = r.number(dir, "memory.peak")
	events := r.keyed(dir, "memory.events")
	d.MemoryFailures, d.OOMKills = events.get("max"), events.get("oom_kill")
	if high := r.limit(dir, "memory.high"); high != NoLimit {
		d.MemoryReservation = high
	}
	memory, swap := r.limit(dir, "memory.max"), r.limit(dir, "memory.swap.max")
	if memory != NoLimit && swap != NoLimit {
		d.MemorySwapLimit = memory + swap
	}
	d.TasksLimit = r.limit(dir, "pids.max")
	d.Devices = parseIOStat(r.text(dir, "io.stat"))
	for _, size := range hugePageSizes(dir, ".current") {
		d.HugePages = append(d.HugePages, HugePages{
			Size: size, Usage: r.number(dir, "hugetlb."+size+".current"),
			Failures: r.keyed(dir, "hugetlb."+size+".events").get("max"),
		})
	}
}

func detailsV1(r *reader, d *Details, paths Paths) {
	d.CPUUser = r.number(paths["cpuacct"], "cpuacct.usage_user")
	d.CPUSystem = r.number(paths["cpuacct"], "cpuacct.usage_sys")
	dir := paths["cpu"]
	cpu := r.keyed(dir, "cpu.stat")
	d.Periods, d.ThrottledPeriods, d.Throttled = cpu.get("nr_periods"), cpu.get("nr_throttled"), cpu.get("throttled_time")
	d.BurstPeriods, d.Burst = cpu.get("nr_bursts"), cpu.get("burst_time")
	d.CPUPeriod, d.CPUShares = r.number(dir, "cpu.cfs_period_us"), r.number(dir, "cpu.shares")
	d.CPUQuota = r.number(dir, "cpu.cfs_quota_us") // -1 for none is no number
	dir = paths["memory"]
	d.MemoryPeak, d.MemoryFailures = r.number(dir, "memory.max_usage_in_bytes"), r.number(dir, "memory.failcnt")
	d.OOMKills = r.keyed(dir, "memory.oom_control").get("oom_kill")
	if soft := r.number(dir, "memory.soft_limit_in_bytes"); soft < math.MaxInt64/2 {
		d.MemoryReservation = soft
	}
	d.MemorySwapLimit = limitV1(r.keyed(dir, "memory.stat"), "hierarchical_memsw_limit")
	d.TasksLimit = r.limit(paths["pids"], "pids.max")
	d.Devices = parseBlkio(
		r.text(paths["blkio"], "blkio.throttle.io_service_bytes_recursive"),
		r.text(paths["blkio"], "blkio.throttle.io_serviced_recursive"))
	for _, size := range hugePageSizes(paths["hugetlb"], ".usage_in_bytes") {
		prefix := "hugetlb." + size
		d.HugePages = append(d.HugePages, HugePages{
			Size: size, Usage: r.number(paths["hugetlb"], prefix+".usage_in_bytes"),
			Peak: r.number(paths["hugetlb"], prefix+".max_usage_in_bytes"), Failures: r.number(paths["hugetlb"], prefix+".failcnt"),
		})
	}
}

// sharesOf turns a weight of v2 into the shares of v1 that make it.
func sharesOf(weight uint64) uint64 {
	if weight == 0 {
		return 0
	}
	return 2 + (weight-1)*262142/9999
}

// hugePageSizes lists the sizes of which the cgroup has a file with this ending,
// reservations left out.
func hugePageSizes(dir, ending string) []string {
	if dir == "" {
		return nil
	}
	files, err := filepath.Glob(filepath.Join(dir, "hugetlb.*"+ending))
	if err != nil {
		return nil
	}
	var sizes []string
	for _, file := range files {
		size := strings.TrimSuffix(strings.TrimPrefix(filepath.Base(file), "hugetlb."), ending)
		if !strings.Contains(size, ".") {
			sizes = append(sizes, size)
		}
	}
	return sizes
}

// parseIOStat reads lines like
//
//	8:0 rbytes=90112 wbytes=0 rios=22 wios=0 dbytes=0 dios=0
func parseIOStat(text string) []DeviceIO {
	var all []DeviceIO
	for line := range strings.Lines(text) {
		fields := strings.Fields(line)
		if len(fields) < 2 {
			continue
		}
		device, ok := parseDevice(fields[0])
		if !ok {
			continue
		}
		for _, field := range fields[1:] {
			key, value, _ := strings.Cut(field, "=")
			n := parseNumber([]byte(value))
			switch key {
			case "rbytes":
				device.ReadBytes = n
			case "wbytes":
				device.WriteBytes = n
			case "rios":
				device.Reads = n
			case "wios":
				device.Writes = n
			case "dbytes":
				device.DiscardBytes = n
			case "dios":
				device.Discards = n
			}
		}
		all = append(all, device)
	}
	return all
}

// parseBlkio reads lines like "8:0 Read 90112", of bytes and of requests.
func parseBlkio(bytes, requests string) []DeviceIO {
	var all []DeviceIO
	index := map[string]int{}
	read := func(text string, fields map[string]func(*DeviceIO) *uint64) {
		for line := range strings.Lines(text) {
			words := strings.Fields(line)
			if len(words) != 3 || fields[words[1]] == nil {
				continue
			}
			i, known := index[words[0]]
			if !known {
				device, ok := parseDevice(words[0])
				if !ok {
					continue
				}
				i = len(all)
				index[words[0]] = i
				all = append(all, device)
			}
			*fields[words[1]](&all[i]) = parseNumber([]byte(words[2]))
		}
	}
	read(bytes, map[string]func(*DeviceIO) *uint64{
		"Read":    func(d *DeviceIO) *uint64 { return &d.ReadBytes },
		"Write":   func(d *DeviceIO) *uint64 { return &d.WriteBytes },
		"Discard": func(d *DeviceIO) *uint64 { return &d.DiscardBytes },
	})
	read(requests, map[string]func(*DeviceIO) *uint64{
		"Read":    func(d *DeviceIO) *uint64 { return &d.Reads },
		"Write":   func(d *DeviceIO) *uint64 { return &d.Writes },
		"Discard": func(d *DeviceIO) *uint64 { return &d.Discards },
	})
	return all
}

// parseDevice reads "MAJOR:MINOR" and finds the device's node.
func parseDevice(text string) (DeviceIO, bool) {
	major, minor, _ := strings.Cut(text, ":")
	var d DeviceIO
	var err error
	if d.Major, err = strconv.ParseUint(major, 10, 32); err != nil {
		return d, false
	}
	if d.Minor, err = strconv.ParseUint(minor, 10, 32); err != nil {
		return d, false
	}
	uevent, err := os.ReadFile("/sys/dev/block/" + strconv.FormatUint(d.Major, 10) + ":" + strconv.FormatUint(d.Minor, 10) + "/uevent")
	if err != nil {
		return d, true
	}
	for line := range strings.Lines(string(uevent)) {
		if name, ok := strings.CutPrefix(strings.TrimSpace(line), "DEVNAME="); ok {
			d.Device = "/dev/" + name
		}
	}
	return d, true
}
