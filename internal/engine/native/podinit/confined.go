package podinit

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/ocispec/request"
)

// OwnIDs returns how many users and groups this process's user namespace has. In a container
// they may be few.
func OwnIDs() (ids request.UserNamespace, err error) {
	for file, m := range map[string]*request.IDMapping{"/proc/self/uid_map": &ids.UIDs, "/proc/self/gid_map": &ids.GIDs} {
		data, err := os.ReadFile(file)
		if err != nil {
			return ids, fmt.Errorf("cannot read which ids there are: %w", err)
		}
		for line := range strings.Lines(string(data)) {
			var first, outside, count uint32
			if _, err := fmt.Sscan(line, &first, &outside, &count); err != nil {
				return ids, fmt.Errorf("cannot read which ids there are: %s: %w", file, err)
			}
			m.Length = max(m.Length, first+count)
		}
	}
	return ids, nil
}

// awaitConfined returns when the init has confined itself, which it must before a container
// sees it: it has no descriptors, and (where the kernel has filters) a filter beside the one
// that it was started with.
func (s Starter) awaitConfined(ctx context.Context, pid int) error {
	ctx, stop := context.WithTimeout(ctx, confineTimeout)
	defer stop()
	for {
		confined, err := s.confined(pid)
		if errors.Is(err, os.ErrNotExist) {
			return fmt.Errorf("cannot start the pod's init: process %d ended before it confined itself; where a security module refused its program, the kernel's audit log has the reason", pid)
		}
		if err != nil {
			return fmt.Errorf("cannot start the pod's init: %w", err)
		}
		if confined {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("cannot start the pod's init: process %d does not confine itself: %w", pid, errs.Unavailable)
		case <-time.After(time.Millisecond):
		}
	}
}

func (s Starter) confined(pid int) (bool, error) {
	proc := filepath.Join("/proc", strconv.Itoa(pid))
	files, err := os.ReadDir(filepath.Join(proc, "fd"))
	if err != nil {
		return false, err
	}
	status, err := os.ReadFile(filepath.Join(proc, "status"))
	if err != nil {
		return false, err
	}
	return len(files) == 0 && (!s.Seccomp || filters(string(status)) >= 2), nil
}

// filters is how many seccomp filters a process has, by its status. A kernel before 5.9
// does not count them.
func filters(status string) int {
	for line := range strings.Lines(status) {
		if count, ok := strings.CutPrefix(line, "Seccomp_filters:"); ok {
			n, err := strconv.Atoi(strings.TrimSpace(count))
			if err == nil {
				return n
			}
		}
	}
	return 2
}
