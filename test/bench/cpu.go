package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// cpu returns the CPU time, user and system, of a runtime since its start: of its daemons, of the processes that they
// have started, and of those that they have started and waited for, such as an unpacker or unpigz. A cgroup would not do:
// a helper of berth has one of its own, and cgroup v1 and v2 differ in which controllers come with it.
func (p *peer) cpu() (time.Duration, error) {
	all, err := readProcesses()
	if err != nil {
		return 0, err
	}
	roots := []int{p.process.Process.Pid}
	if p.engine != nil {
		roots = append(roots, p.engine.process.Process.Pid)
	}
	return cpuOf(all, roots)
}

// processTime is what /proc/PID/stat says of a process.
type processTime struct {
	parent int
	// ticks are its own, and those of the children that it has waited for.
	ticks int64
}

// tick is the unit of /proc/PID/stat.
const tick = 10 * time.Millisecond

// cpuOf sums up the time of processes and their descendants.
func cpuOf(all map[int]processTime, roots []int) (time.Duration, error) {
	children := map[int][]int{}
	for pid, process := range all {
		children[process.parent] = append(children[process.parent], pid)
	}
	var ticks int64
	for _, root := range roots {
		if _, ok := all[root]; !ok {
			return 0, fmt.Errorf("process %d has ended", root)
		}
		for queue := []int{root}; len(queue) > 0; queue = queue[1:] {
			ticks += all[queue[0]].ticks
			queue = append(queue, children[queue[0]]...)
		}
	}
	return time.Duration(ticks) * tick, nil
}

func readProcesses() (map[int]processTime, error) {
	files, err := filepath.Glob("/proc/[0-9]*/stat")
	if err != nil {
		return nil, err
	}
	all := map[int]processTime{}
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err != nil {
			continue // it has ended meanwhile
		}
		pid, err := strconv.Atoi(filepath.Base(filepath.Dir(file)))
		if err != nil {
			return nil, err
		}
		if all[pid], err = parseStat(string(data)); err != nil {
			return nil, fmt.Errorf("%s: %w", file, err)
		}
	}
	return all, nil
}

// parseStat reads the line of /proc/PID/stat. The name of the program is in parentheses, and may have any characters.
func parseStat(line string) (p processTime, err error) {
	fields := strings.Fields(line[strings.LastIndexByte(line, ')')+1:])
	if len(fields) < 15 {
		return p, fmt.Errorf("%q has too few fields", line)
	}
	if p.parent, err = strconv.Atoi(fields[1]); err != nil {
		return p, err
	}
	for _, field := range fields[11:15] { // utime, stime, cutime, cstime
		ticks, err := strconv.ParseInt(field, 10, 64)
		if err != nil {
			return p, err
		}
		p.ticks += ticks
	}
	return p, nil
}
