package cgroup

import (
	"math"
	"os"
	"path"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/berthrun/berth/internal/engine"
)

// Details reads what only metrics show. Kind NotFound when the cgroup is gone.
func (t *Tree) Details(paths Paths) (*engine.Details, error) {
	d := &engine.Details{MemorySwapLimit: engine.NoLimit}
	r := &reader{}
	key := ""
	if t.V2 {
		detailsV2(r, d, paths[""])
	} else {
		key = "memory"
		detailsV1(r, d, paths)
	}
	d.Cgroup = path.Join("/", strings.TrimPrefix(paths[key], t.mounts[key]))
	return d, r.result(paths)
}

func detailsV2(r *reader, d *engine.Details, dir string) {
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
	if high := r.limit(dir, "memory.high"); high != engine.NoLimit {
		d.MemoryReservation = high
	}
	memory, swap := r.limit(dir, "memory.max"), r.limit(dir, "memory.swap.max")
	if memory != engine.NoLimit && swap != engine.NoLimit {
		d.MemorySwapLimit = memory + swap
	}
	d.TasksLimit = r.limit(dir, "pids.max")
	d.Devices = parseIOStat(r.text(dir, "io.stat"))
	for _, size := range hugePageSizes(dir, ".current") {
		d.HugePages = append(d.HugePages, engine.HugePages{
			Size: size, Usage: r.number(dir, "hugetlb."+size+".current"),
			Failures: r.keyed(dir, "hugetlb."+size+".events").get("max"),
		})
	}
}

func detailsV1(r *reader, d *engine.Details, paths Paths) {
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
		d.HugePages = append(d.HugePages, engine.HugePages{
			Size: size, Usage: r.number(paths["hugetlb"], prefix+".usage_in_bytes"),
			Peak: r.number(paths["hugetlb"], prefix+".max_usage_in_bytes"), Failures: r.number(paths["hugetlb"], prefix+".failcnt"),
		})
	}
}

func (r *reader) text(dir, name string) string { return strings.TrimSpace(string(r.file(dir, name))) }

func micro(usec uint64) uint64 { return usec * uint64(time.Microsecond) }

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
func parseIOStat(text string) []engine.DeviceIO {
	var all []engine.DeviceIO
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
func parseBlkio(bytes, requests string) []engine.DeviceIO {
	var all []engine.DeviceIO
	index := map[string]int{}
	read := func(text string, fields map[string]func(*engine.DeviceIO) *uint64) {
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
	read(bytes, map[string]func(*engine.DeviceIO) *uint64{
		"Read":    func(d *engine.DeviceIO) *uint64 { return &d.ReadBytes },
		"Write":   func(d *engine.DeviceIO) *uint64 { return &d.WriteBytes },
		"Discard": func(d *engine.DeviceIO) *uint64 { return &d.DiscardBytes },
	})
	read(requests, map[string]func(*engine.DeviceIO) *uint64{
		"Read":    func(d *engine.DeviceIO) *uint64 { return &d.Reads },
		"Write":   func(d *engine.DeviceIO) *uint64 { return &d.Writes },
		"Discard": func(d *engine.DeviceIO) *uint64 { return &d.Discards },
	})
	return all
}

// parseDevice reads "MAJOR:MINOR" and finds the device's node.
func parseDevice(text string) (engine.DeviceIO, bool) {
	major, minor, _ := strings.Cut(text, ":")
	var d engine.DeviceIO
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

// Processes returns the processes in the cgroup and below it.
func (t *Tree) Processes(paths Paths) []int {
	key := ""
	if !t.V2 {
		key = "pids"
		if paths[key] == "" {
			key = "memory"
		}
	}
	var pids []int
	_ = filepath.WalkDir(paths[key], func(dir string, entry os.DirEntry, err error) error {
		if err != nil || !entry.IsDir() {
			return nil //nolint:nilerr // what has gone meanwhile has no processes
		}
		r := &reader{}
		for word := range strings.FieldsSeq(string(r.file(dir, "cgroup.procs"))) {
			if pid, err := strconv.Atoi(word); err == nil {
				pids = append(pids, pid)
			}
		}
		return nil
	})
	return pids
}
