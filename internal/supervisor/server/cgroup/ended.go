package cgroup

import (
	"errors"
	"fmt"
	"os"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/sys/sysproc"
)

// ended reports whether pid is gone or a zombie. A process whose first thread has
// ended while others run looks like a zombie and is none.
func ended(pid int) bool {
	proc, err := sysproc.ReadProc(pid)
	if errors.Is(err, errs.NotFound) {
		return true
	}
	if err != nil || !proc.Zombie() {
		return false
	}
	threads, err := os.ReadDir(fmt.Sprintf("/proc/%d/task", pid))
	return err != nil || len(threads) <= 1
}
