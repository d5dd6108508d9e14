package cgroup

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/berthrun/berth/internal/engine"
	"github.com/berthrun/berth/internal/errs"
)

// Figures reads the figures of a cgroup in one pass, without details. Kind NotFound
// when it is gone. What a missing controller would tell is 0.
func (t *Tree) Figures(paths Paths) (*engine.Figures, error) {
	f := &engine.Figures{At: time.Now()}
	r := &reader{}
	if t.V2 {
		readV2(r, f, paths[""])
	} else {
		readV1(r, f, paths)
	}
	return f, r.result(paths)
}

// CPU reads only how many nanoseconds of CPU a cgroup has used. Kind NotFound when
// it is gone.
func (t *Tree) CPU(paths Paths) (uint64, error) {
	r := &reader{}
	var used uint64
	if t.V2 {
		used = r.keyed(paths[""], "cpu.stat").get("usage_usec") * uint64(time.Microsecond)
	} else {
		used = r.number(paths["cpuacct"], "cpuacct.usage")
	}
	return used, r.result(paths)
}

func readV2(r *reader, f *engine.Figures, dir string) {
	cpu := r.keyed(dir, "cpu.stat")
	f.CPU = cpu.get("usage_usec") * uint64(time.Microsecond)
	m := &f.Memory
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
		f.Swap = &engine.SwapFigures{Usage: parseNumber(data)}
		f.Swap.Limit = r.limit(dir, "memory.swap.max")
	}
	f.Tasks = r.number(dir, "pids.current")
	f.CPUPressure = parsePressure(r.file(dir, "cpu.pressure"))
	f.MemoryPressure = parsePressure(r.file(dir, "memory.pressure"))
	f.IOPressure = parsePressure(r.file(dir, "io.pressure"))
}

func readV1(r *reader, f *engine.Figures, paths Paths) {
	f.CPU = r.number(paths["cpuacct"], "cpuacct.usage")
	dir := paths["memory"]
	m := &f.Memory
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
		f.Swap = &engine.SwapFigures{Usage: parseNumber(data) - min(parseNumber(data), m.Usage), Limit: engine.NoLimit}
		if both != engine.NoLimit && m.Limit != engine.NoLimit {
			f.Swap.Limit = both - min(both, m.Limit)
		}
	}
	f.Tasks = r.number(paths["pids"], "pids.current")
	// A hybrid host has the pressure beside its controllers.
	dir = paths[""]
	f.CPUPressure = parsePressure(r.file(dir, "cpu.pressure"))
	f.MemoryPressure = parsePressure(r.file(dir, "memory.pressure"))
	f.IOPressure = parsePressure(r.file(dir, "io.pressure"))
}

func workingSet(usage, inactive uint64) uint64 { return usage - min(usage, inactive) }

// limitV1 knows that v1 says "no limit" with a number near the largest.
func limitV1(stat keyed, key string) uint64 {
	if v, ok := stat.find(key); ok && v < math.MaxInt64/2 {
		return v
	}
	return engine.NoLimit
}

// reader reads files of cgroups. A file that is not there is empty; the first
// other error stays.
type reader struct {
	read   int
	err    error
	buffer []byte
}

// result is the first error, or that there was nothing to read.
func (r *reader) result(paths Paths) error {
	if r.err == nil && r.read == 0 {
		return fmt.Errorf("cgroup %v: %w", paths, errs.NotFound)
	}
	return r.err
}

// maxFile is more than any of these files holds; a longer one is cut.
const maxFile = 64 << 10

// file returns what is valid until the next call. A pass over a full node reads
// thousands of these files, so nothing but the three system calls is spent on each.
func (r *reader) file(dir, name string) []byte {
	if dir == "" || r.err != nil {
		return nil
	}
	fd, err := syscall.Open(dir+"/"+name, syscall.O_RDONLY|syscall.O_CLOEXEC, 0)
	if err == nil {
		defer func() { _ = syscall.Close(fd) }() // of a file that was only read
		err = r.fill(fd)
	}
	switch {
	case err == nil:
		r.read++
		return r.buffer
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, syscall.ENODEV), errors.Is(err, syscall.EOPNOTSUPP):
		return nil
	}
	r.err = fmt.Errorf("cannot read a cgroup's figures: %s/%s: %w", dir, name, err)
	return nil
}

// fill reads the descriptor to its end.
func (r *reader) fill(fd int) error {
	if r.buffer == nil {
		r.buffer = make([]byte, 0, 8<<10)
	}
	r.buffer = r.buffer[:0]
	for len(r.buffer) < maxFile {
		if len(r.buffer) == cap(r.buffer) {
			r.buffer = slices.Grow(r.buffer, len(r.buffer))
		}
		n, err := syscall.Read(fd, r.buffer[len(r.buffer):cap(r.buffer)])
		if errors.Is(err, syscall.EINTR) {
			continue
		}
		if err != nil || n == 0 {
			return err
		}
		r.buffer = r.buffer[:len(r.buffer)+n]
	}
	return nil
}

func (r *reader) number(dir, name string) uint64 { return parseNumber(r.file(dir, name)) }

func (r *reader) limit(dir, name string) uint64 {
	data := bytes.TrimSpace(r.file(dir, name))
	if len(data) == 0 || string(data) == "max" {
		return engine.NoLimit
	}
	return parseNumber(data)
}

func (r *reader) keyed(dir, name string) keyed { return keyed(r.file(dir, name)) }

// keyed is text of lines "KEY NUMBER". Few keys of many are wanted, so they are
// looked for.
type keyed []byte

func (k keyed) get(key string) uint64 {
	n, _ := k.find(key)
	return n
}

func (k keyed) find(key string) (value uint64, ok bool) {
	for rest := []byte(k); ; {
		i := bytes.Index(rest, []byte(key))
		if i < 0 {
			return 0, false
		}
		start := i == 0 || rest[i-1] == '\n'
		rest = rest[i+len(key):]
		if start && len(rest) > 0 && rest[0] == ' ' {
			line, _, _ := bytes.Cut(rest[1:], []byte("\n"))
			n, err := strconv.ParseUint(string(bytes.TrimSpace(line)), 10, 64)
			return n, err == nil
		}
	}
}

func parseNumber(data []byte) uint64 {
	n, err := strconv.ParseUint(string(bytes.TrimSpace(data)), 10, 64)
	if err != nil {
		return 0
	}
	return n
}

// parsePressure reads lines like
//
//	some avg10=0.00 avg60=0.00 avg300=0.00 total=0
func parsePressure(data []byte) *engine.Pressure {
	if len(data) == 0 {
		return nil
	}
	p := &engine.Pressure{}
	for line := range strings.Lines(string(data)) {
		fields := strings.Fields(line)
		if len(fields) == 0 {
			continue
		}
		stall := &p.Some
		if fields[0] == "full" {
			stall = &p.Full
		}
		for _, field := range fields[1:] {
			key, value, _ := strings.Cut(field, "=")
			if key == "total" {
				stall.Total = parseNumber([]byte(value)) * uint64(time.Microsecond)
				continue
			}
			average, err := strconv.ParseFloat(value, 64)
			if err != nil {
				continue
			}
			switch key {
			case "avg10":
				stall.Avg10 = average
			case "avg60":
				stall.Avg60 = average
			case "avg300":
				stall.Avg300 = average
			}
		}
	}
	return p
}
