package sysproc

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime/debug"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// ReleaseMemory returns to the host what this process does not need while it is idle: free memory of
// Go's heap, and the pages of the program's own file. A start touches most of a large program once,
// and its pages would count as memory of the process until the host runs out of it. Those that are
// needed again come from the page cache, a few at a time. It collects garbage, so a process calls it
// after work, and not during it.
func ReleaseMemory() error {
	debug.FreeOSMemory()
	return releaseProgram()
}

// releaseProgram unmaps the pages of the program's file, except for mappings that could have pages
// of their own. Nil where the kernel reports no pages.
func releaseProgram() error {
	smaps, err := os.Open("/proc/self/smaps")
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("cannot read the mappings of this process: %w", err)
	}
	defer smaps.Close()
	var program unix.Stat_t
	if err := unix.Stat("/proc/self/exe", &program); err != nil {
		return fmt.Errorf("cannot look at the program of this process: %w", err)
	}
	unchanged, err := unchangedMappings(smaps, program.Ino)
	if err != nil {
		return fmt.Errorf("cannot read the mappings of this process: %w", err)
	}
	for _, m := range unchanged {
		if _, _, errno := unix.Syscall(unix.SYS_MADVISE, m.start, m.end-m.start, unix.MADV_DONTNEED); errno != 0 {
			return fmt.Errorf("cannot unmap pages of the program: %w", errno)
		}
	}
	return nil
}

// mapping is a range of addresses.
type mapping struct{ start, end uintptr }

// unchangedMappings returns the mappings of a file, by its inode, that are read-only and have no page
// of their own, in the text of /proc/PID/smaps:
//
//	00400000-026b1000 r-xp 00000000 08:01 1577      /usr/local/bin/berth
//	...
//	Anonymous:             0 kB
func unchangedMappings(smaps io.Reader, inode uint64) ([]mapping, error) {
	var all []mapping
	var current *mapping
	lines := bufio.NewScanner(smaps)
	for lines.Scan() {
		words := strings.Fields(lines.Text())
		switch {
		case len(words) >= 5 && strings.Contains(words[0], "-"):
			current = nil
			start, end, _ := strings.Cut(words[0], "-")
			from, err1 := strconv.ParseUint(start, 16, 64)
			to, err2 := strconv.ParseUint(end, 16, 64)
			if err := errors.Join(err1, err2); err != nil {
				return nil, err
			}
			if words[4] == strconv.FormatUint(inode, 10) && len(words[1]) == 4 && words[1][1] == '-' && words[1][3] == 'p' {
				current = &mapping{uintptr(from), uintptr(to)}
			}
		case len(words) >= 2 && words[0] == "Anonymous:" && current != nil:
			if words[1] == "0" {
				all = append(all, *current)
			}
			current = nil
		}
	}
	return all, lines.Err()
}
