package failure

import (
	"fmt"
	"syscall"

	"github.com/berthrun/berth/internal/errs"
)

// Err returns the failure with its kind, and as an errs.Fault where it is about a part of the
// container.
func (f *Failure) Err() error {
	var err error = f
	if kind := f.kind(); kind != nil {
		err = fmt.Errorf("%w: %w", f, kind)
	}
	if cause := f.cause(); cause != "" {
		return &errs.Fault{Cause: cause, Path: f.Path, Err: err}
	}
	return err
}

// kind is nil when berth or the host is at fault.
func (f *Failure) kind() error {
	switch f.Errno {
	case syscall.EAGAIN, syscall.EMFILE, syscall.ENFILE, syscall.ENOSPC, syscall.EDQUOT:
		return errs.Exhausted
	}
	if f.Part == OfHost || f.Part == OfSeccomp {
		return nil
	}
	return errs.Invalid
}

func (f *Failure) cause() errs.Cause {
	switch f.Part {
	case OfMount:
		return errs.CauseMount
	case OfDevice:
		return errs.CauseDevice
	case OfDevNull:
		return errs.CauseDevNull
	case OfSeccomp:
		return errs.CauseSeccomp
	case OfLimit:
		return errs.CauseLimit
	}
	return ""
}
