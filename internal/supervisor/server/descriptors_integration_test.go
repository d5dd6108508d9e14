//go:build integration

package server_test

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berthrun/berth/internal/errs"
)

// A create and an exec need descriptors of the supervisor. They are refused when only the reserve
// for running containers is left.
func TestFewDescriptorsRefuseCreateAndExec(t *testing.T) {
	h := newHost(t).serve()
	// Enough containers that a few descriptors more or less do not change the percentage.
	for i := range 8 {
		h.run("busy"+strconv.Itoa(i), "while :; do sleep 1; done")
	}
	pid := h.pid()
	open := h.steadyDescriptors(pid)
	var before unix.Rlimit
	if err := unix.Prlimit(pid, unix.RLIMIT_NOFILE, nil, &before); err != nil {
		t.Fatal(err)
	}
	few := unix.Rlimit{Cur: uint64(open) * 100 / 94, Max: before.Max} // the rest is reserved
	if err := unix.Prlimit(pid, unix.RLIMIT_NOFILE, &few, nil); err != nil {
		t.Fatal(err)
	}
	_, _, _, execErr := h.exec("busy0", "exit 3")
	_, createErr := h.client.Create(h.ctx(), h.bundle("late", []string{"true"}))
	for _, err := range []error{execErr, createErr} {
		wantKind(t, err, errs.Exhausted)
		// The request is refused before it begins, and not by a later failure.
		if err != nil && !strings.Contains(err.Error(), "descriptors are in use") {
			t.Errorf("it was begun: %v", err)
		}
	}
	if err := unix.Prlimit(pid, unix.RLIMIT_NOFILE, &before, nil); err != nil {
		t.Fatal(err)
	}
	if _, _, code, err := h.exec("busy0", "exit 3"); err != nil || code != 3 {
		t.Errorf("with descriptors again: code %d, %v", code, err)
	}
}

// steadyDescriptors returns how many descriptors a process has open, once the number is stable: a
// start closes its descriptors after its answer.
func (h *host) steadyDescriptors(pid int) int {
	h.t.Helper()
	last, same := 0, 0
	for deadline := time.Now().Add(patience); same < 10; time.Sleep(20 * time.Millisecond) {
		open, err := os.ReadDir(filepath.Join("/proc", strconv.Itoa(pid), "fd"))
		if err != nil {
			h.t.Fatal(err)
		}
		if same++; len(open) != last {
			last, same = len(open), 0
		}
		if time.Now().After(deadline) {
			h.t.Fatalf("the descriptors of process %d do not come to rest: %d", pid, last)
		}
	}
	return last
}
