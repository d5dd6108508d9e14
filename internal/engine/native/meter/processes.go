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

// countProcesses counts processes and what they have open. Those that end meanwhile
// count for nothing.
func countProcesses(d *engine.Details, pids []int) {
	d.Processes = uint64(len(pids))
	if len(pids) > 0 {
		d.OpenFilesLimit = openFilesLimit(slices.Min(pids))
	}
	for _, pid := range pids {
		dir := filepath.Join("/proc", strconv.Itoa(pid), "fd")
		entries, err := os.ReadDir(dir)
		if err != nil {
			continue
		}
		d.FileDescriptors += uint64(len(entries))
		for _, entry := range entries {
			target, err := os.Readlink(filepath.Join(dir, entry.Name()))
			if err == nil && strings.HasPrefix(target, "socket:") {
				d.Sockets++
			}
		}
	}
}

// openFilesLimit is the soft limit of open files, 0 when it cannot be told.
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
