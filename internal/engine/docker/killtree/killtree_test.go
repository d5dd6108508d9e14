package killtree

import (
	"context"
	"errors"
	"slices"
	"testing"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/sys/cgroup"
	"github.com/berthrun/berth/internal/sys/sysproc"
)

// table is a list of processes as the kernel has it.
func table(procs ...sysproc.Proc) map[int]sysproc.Proc {
	byPid := map[int]sysproc.Proc{}
	for _, proc := range procs {
		byPid[proc.Pid] = proc
	}
	return byPid
}

func pidsOf(procs []sysproc.Proc) []int {
	var pids []int
	for _, proc := range procs {
		pids = append(pids, proc.Pid)
	}
	slices.Sort(pids)
	return pids
}

// TestProcessesOfACommand: the processes of a command are its descendants, those of its session, and
// those that have inherited its mark, and no others that have their pids later.
func TestProcessesOfACommand(t *testing.T) {
	none := func(int) bool { return false }
	command := func(own map[int]uint64) *command { return &command{session: 10, leader: 100, own: own} }
	for name, c := range map[string]struct {
		own       map[int]uint64
		procs     map[int]sysproc.Proc
		inherited func(int) bool
		want      []int
	}{
		"its first process": {map[int]uint64{10: 100}, table(sysproc.Proc{Pid: 10, PPid: 1, Start: 100}), none, []int{10}},
		"descendants": {map[int]uint64{10: 100}, table(
			sysproc.Proc{Pid: 10, PPid: 1, Start: 100}, sysproc.Proc{Pid: 13, PPid: 12, Start: 103}, sysproc.Proc{Pid: 12, PPid: 10, Start: 102},
			sysproc.Proc{Pid: 14, PPid: 1, Start: 104},
		), none, []int{10, 12, 13}},
		"its session": {nil, table(sysproc.Proc{Pid: 12, PPid: 1, Session: 10, Start: 102}, sysproc.Proc{Pid: 13, PPid: 1, Session: 9, Start: 103}), none, []int{12}},
		"its mark": {
			nil, table(sysproc.Proc{Pid: 12, PPid: 1, Start: 102}, sysproc.Proc{Pid: 13, PPid: 12, Start: 103}, sysproc.Proc{Pid: 14, PPid: 1, Start: 104}),
			func(pid int) bool { return pid == 12 },
			[]int{12, 13},
		},
		"another process with the pid": {map[int]uint64{10: 100}, table(
			sysproc.Proc{Pid: 10, PPid: 1, Start: 200}, sysproc.Proc{Pid: 12, PPid: 10, Start: 202},
		), none, nil},
		"all have ended": {map[int]uint64{10: 100, 12: 102}, table(), none, nil},
	} {
		own := c.own
		if own == nil {
			own = map[int]uint64{}
		}
		cmd := command(own)
		if got := pidsOf(cmd.among(c.procs, c.inherited)); !slices.Equal(got, c.want) || len(cmd.own) != len(c.want) {
			t.Errorf("%s: %v, and %v are kept; want %v", name, got, cmd.own, c.want)
		}
	}
}

// TestNoCgroup: a container without a known cgroup has no processes to kill, and the cgroup of
// another container is refused.
func TestNoCgroup(t *testing.T) {
	if err := Kill(t.Context(), "A=1", 1, nil); err != nil {
		t.Error(err)
	}
	if killed, err := Strays(context.Background(), "id", cgroup.Paths{"": "/sys/fs/cgroup/other"}); killed || !errors.Is(err, errs.Invalid) {
		t.Errorf("Strays = %v, %v, want Invalid", killed, err)
	}
}
