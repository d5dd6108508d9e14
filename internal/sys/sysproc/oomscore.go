package sysproc

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strconv"
	"strings"
	"syscall"

	"github.com/moby/sys/capability"

	"github.com/berthrun/berth/internal/errs"
)

// initialUserNS is the inode of the user namespace that the kernel has started with
// (PROC_USER_INIT_INO). Only a process in it can use CAP_SYS_RESOURCE for OOM scores.
const initialUserNS = 0xEFFFFFFD

// OOMScoreLimit is what a process, and the programs that it starts, can set as oom_score_adj.
type OOMScoreLimit struct {
	// Own is the process's own score, -1000 to 1000. Without Lowers it can set no lower one, unless
	// a process with the capability gave it a lower one before: the kernel does not show that.
	Own int
	// Lowers is true if the process can set any score. Why is why it cannot, "" if it can.
	Lowers bool
	Why    string
}

// OOMScoreLimitOf reads the limit of a process. Kind NotFound: it has ended.
func OOMScoreLimitOf(pid int) (OOMScoreLimit, error) {
	limit, err := oomScoreLimitOf(pid)
	switch {
	case errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ESRCH):
		return OOMScoreLimit{}, fmt.Errorf("process %d: %w", pid, errs.NotFound)
	case err != nil:
		return OOMScoreLimit{}, fmt.Errorf("cannot find out which oom_score_adj process %d can set: %w", pid, err)
	}
	return limit, nil
}

func oomScoreLimitOf(pid int) (OOMScoreLimit, error) {
	dir := "/proc/" + strconv.Itoa(pid)
	data, err := os.ReadFile(dir + "/oom_score_adj")
	if err != nil {
		return OOMScoreLimit{}, err
	}
	own, err := strconv.Atoi(strings.TrimSpace(string(data)))
	if err != nil {
		return OOMScoreLimit{}, err
	}
	caps, err := load(pid)
	if err != nil {
		return OOMScoreLimit{}, err
	}
	user, err := os.Stat(dir + "/ns/user")
	if err != nil {
		return OOMScoreLimit{}, err
	}
	limit := OOMScoreLimit{Own: own}
	stat, ok := user.Sys().(*syscall.Stat_t)
	switch {
	// A program that the process executes has what is in the bounding set alone.
	case !caps.Get(capability.EFFECTIVE, capability.CAP_SYS_RESOURCE) || !caps.Get(capability.BOUNDING, capability.CAP_SYS_RESOURCE):
		limit.Why = "has no CAP_SYS_RESOURCE"
	case ok && stat.Ino != initialUserNS:
		limit.Why = "is in a user namespace"
	default:
		limit.Lowers = true
	}
	return limit, nil
}
