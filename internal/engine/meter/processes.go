package meter

import (
	"bytes"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/berthrun/berth/internal/engine"
)

// looksMax is how many descriptors of a container are looked at each time. A process
// has a million of them for the price of one, and they are looked at outside of its cgroup.
const looksMax = 10_000

// countProcesses counts processes and what they have open.
func countProcesses(d *engine.Details, pids []int) {
	d.Processes = uint64(len(pids))
	if len(pids) > 0 {
		d.OpenFilesLimit = openFilesLimit(slices.Min(pids))
	}
	countOpen(d, pids, looksMax)
}

// countOpen counts descriptors, with so many looks at what they are: beyond, sockets are
// not counted, and descriptors only where the kernel gives their number (6.2).
// Processes that end meanwhile count for nothing.
func countOpen(d *engine.Details, pids []int, looks int) {
	for _, pid := range pids {
		dir, err := os.Open(filepath.Join("/proc", strconv.Itoa(pid), "fd"))
		if err != nil {
			continue
		}
		names, sockets := lookAt(dir, looks)
		looks -= names
		d.Sockets += uint64(sockets)
		files := int64(names)
		if info, err := dir.Stat(); err == nil {
			files = max(files, info.Size())
		}
		d.FileDescriptors += uint64(files)
		dir.Close()
	}
}

// lookAt looks at some of the descriptors in a directory of procfs.
func lookAt(dir *os.File, looks int) (seen, sockets int) {
	const batch = 512
	for seen < looks {
		names, err := dir.Readdirnames(min(batch, looks-seen))
		for _, name := range names {
			target, err := os.Readlink(filepath.Join(dir.Name(), name))
			if err == nil && strings.HasPrefix(target, "socket:") {
				sockets++
			}
		}
		seen += len(names)
		if err != nil {
			break
		}
	}
	return seen, sockets
}

// openFilesLimit is the soft limit of open files, 0 when it is unknown.
func openFilesLimit(pid int) uint64 {
	data, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "limits"))
	if err != nil {
		return 0
	}
	for line := range bytes.Lines(data) {
		rest, ok := strings.CutPrefix(string(line), "Max open files")
		if !ok {
			continue
		}
		soft, _, _ := strings.Cut(strings.TrimSpace(rest), " ")
		if soft == "unlimited" {
			return engine.NoLimit
		}
		limit, err := strconv.ParseUint(soft, 10, 64)
		if err != nil {
			return 0
		}
		return limit
	}
	return 0
}
