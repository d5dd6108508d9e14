package frozen

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/berthrun/berth/internal/engine/native/checkpoint/criuimage"
)

// checkThread compares a thread with the request. zombie is true for one that has ended.
func (r *Restored) checkThread(pid int, dir string) (zombie bool, err error) {
	data, err := os.ReadFile(dir + "/status")
	if err != nil {
		return false, differs(pid, "%v", err)
	}
	status := map[string]string{}
	for line := range strings.Lines(string(data)) {
		if name, value, ok := strings.Cut(line, ":"); ok {
			status[name] = strings.TrimSpace(value)
		}
	}
	switch {
	case strings.HasPrefix(status["State"], "Z"):
		return true, nil
	case !strings.HasPrefix(status["State"], "T"):
		return false, differs(pid, "it is not stopped (state %q): the OCI runtime lets it go on before it is started", status["State"])
	}
	t := criuimage.Thread{NoNewPrivs: status["NoNewPrivs"] == "1", Filters: status["Seccomp"] == "2" && status["Seccomp_filters"] != "0"}
	for _, each := range []struct {
		name string
		to   *[]uint32
	}{{"Uid", &t.UIDs}, {"Gid", &t.GIDs}, {"Groups", &t.Groups}} {
		for _, field := range strings.Fields(status[each.name]) {
			id, err := strconv.ParseUint(field, 10, 32)
			if err != nil {
				return false, differs(pid, "its %s is %q", each.name, status[each.name])
			}
			*each.to = append(*each.to, uint32(id))
		}
	}
	for _, each := range []struct {
		name string
		to   *uint64
	}{{"CapInh", &t.Inheritable}, {"CapPrm", &t.Permitted}, {"CapEff", &t.Effective}, {"CapBnd", &t.Bounding}, {"CapAmb", &t.Ambient}} {
		if *each.to, err = strconv.ParseUint(status[each.name], 16, 64); err != nil {
			return false, differs(pid, "its %s is %q", each.name, status[each.name])
		}
	}
	label, err := os.ReadFile(dir + "/attr/current")
	if err != nil && !errors.Is(err, unix.EINVAL) && !errors.Is(err, fs.ErrNotExist) { // without a security module
		return false, differs(pid, "cannot read its security label: %v", err)
	}
	t.Label = string(bytes.TrimRight(label, "\n\x00"))
	if err := t.Within(r.Spec); err != nil {
		return false, differs(pid, "%v", err)
	}
	return false, nil
}

// checkLimits compares the limits of a process, and its score.
func (r *Restored) checkLimits(pid int) error {
	for resource := range 16 {
		var limit unix.Rlimit
		if err := unix.Prlimit(pid, resource, nil, &limit); err != nil {
			return differs(pid, "cannot read its limits: %v", err)
		}
		if hard := criuimage.LimitOf(r.Spec, r.Limits, resource); limit.Max > hard {
			return differs(pid, "its limit %d is %d, more than %d", resource, limit.Max, hard)
		}
	}
	want := r.Spec.Process.OOMScoreAdj
	if want == nil {
		return nil
	}
	score, err := os.ReadFile(fmt.Sprintf("/proc/%d/oom_score_adj", pid))
	if err != nil {
		return differs(pid, "%v", err)
	}
	if got := strings.TrimSpace(string(score)); got != strconv.Itoa(*want) {
		return differs(pid, "its oom_score_adj is %s, not %d", got, *want)
	}
	return nil
}
