package finish

import (
	"fmt"
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// PrepareOutside does for the process pid, which is in a user namespace, what the kernel allows the host's
// root alone: it sets the OOM score, and raises hard limits so that Prepare can set all of them. The
// supervisor calls it before it sends p, which has no OOM score then.
func (p *Process) PrepareOutside(pid int) error {
	if p.OOMScoreAdj != nil {
		file := fmt.Sprintf("/proc/%d/oom_score_adj", pid)
		if err := os.WriteFile(file, []byte(strconv.Itoa(*p.OOMScoreAdj)), 0); err != nil {
			return fmt.Errorf("cannot set oom_score_adj: %w", err)
		}
		p.OOMScoreAdj = nil
	}
	for _, l := range p.Rlimits {
		var has unix.Rlimit
		if err := unix.Prlimit(pid, l.Kind, nil, &has); err != nil {
			return fmt.Errorf("cannot read rlimit %d: %w", l.Kind, err)
		}
		if l.Hard <= has.Max {
			continue
		}
		// Prepare reports what the kernel does not allow the host's root either.
		has.Max = l.Hard
		_ = unix.Prlimit(pid, l.Kind, &has, nil)
	}
	return nil
}
