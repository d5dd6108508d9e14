package cgroup

import (
	"errors"
	"fmt"
	"io/fs"
	"syscall"
	"testing"

	"github.com/berthrun/berth/internal/errs"
)

func TestRefusedLimitsNameTheirFile(t *testing.T) {
	write := func(errno syscall.Errno) error {
		return fmt.Errorf("failed to write \"5\": %w", &fs.PathError{Op: "write", Path: "/sys/fs/cgroup/x/cpu.max", Err: errno})
	}
	for _, c := range []struct {
		err  error
		kind error
		file string
	}{
		{write(syscall.EINVAL), errs.Invalid, "cpu.max"},
		{write(syscall.ERANGE), errs.Invalid, "cpu.max"},
		{write(syscall.EBUSY), errs.State, "cpu.max"},
		{errors.New("unable to set memory limit to 5 (current usage: 9, peak usage: 9)"), errs.State, "memory.limit_in_bytes"},
		{syscall.EINVAL, errs.Invalid, ""},
	} {
		err := refused(c.err)
		var fault *errs.Fault
		if !errors.Is(err, c.kind) || !errors.As(err, &fault) || fault.Cause != errs.CauseLimit || fault.Path != c.file {
			t.Errorf("%v: %#v, want %v of %q", c.err, err, c.kind, c.file)
		}
		if err.Error() != c.err.Error()+": "+c.kind.Error() {
			t.Errorf("%v became %v", c.err, err)
		}
	}
	if err := write(syscall.EIO); refused(err) != err { //nolint:errorlint // the same one
		t.Errorf("a fault of the host's became %v", refused(err))
	}
}
