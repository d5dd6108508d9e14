//go:build integration

package server_test

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/berthrun/berth/internal/errs"
)

// What needs descriptors of the supervisor's is refused when few are left for what runs:
// an exec as a create.
func TestFewDescriptorsRefuseCreateAndExec(t *testing.T) {
	h := newHost(t).serve()
	h.run("busy", "while :; do sleep 1; done")
	pid := h.pid()
	open, err := os.ReadDir(filepath.Join("/proc", strconv.Itoa(pid), "fd"))
	if err != nil {
		t.Fatal(err)
	}
	var before unix.Rlimit
	if err := unix.Prlimit(pid, unix.RLIMIT_NOFILE, nil, &before); err != nil {
		t.Fatal(err)
	}
	few := unix.Rlimit{Cur: uint64(len(open)) * 100 / 92, Max: before.Max} // what is left is for what runs
	if err := unix.Prlimit(pid, unix.RLIMIT_NOFILE, &few, nil); err != nil {
		t.Fatal(err)
	}
	_, _, _, execErr := h.exec("busy", "exit 3")
	_, createErr := h.client.Create(h.ctx(), h.bundle("late", []string{"true"}))
	for _, err := range []error{execErr, createErr} {
		wantKind(t, err, errs.Exhausted)
		// Before anything was begun, not by what then failed.
		if err != nil && !strings.Contains(err.Error(), "descriptors are in use") {
			t.Errorf("it was begun: %v", err)
		}
	}
	if err := unix.Prlimit(pid, unix.RLIMIT_NOFILE, &before, nil); err != nil {
		t.Fatal(err)
	}
	if _, _, code, err := h.exec("busy", "exit 3"); err != nil || code != 3 {
		t.Errorf("with descriptors again: code %d, %v", code, err)
	}
}
