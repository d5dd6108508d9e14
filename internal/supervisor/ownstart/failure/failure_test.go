package failure

import (
	"errors"
	"fmt"
	"io/fs"
	"syscall"
	"testing"

	"github.com/berthrun/berth/internal/errs"
)

func TestFailuresKeepPartReasonAndKind(t *testing.T) {
	for name, test := range map[string]struct {
		err   error
		part  Part
		kind  error
		cause errs.Cause
		is    error
	}{
		"program":            {New(OfProgram, "x", "exec: %q: %w", "x", &fs.PathError{Op: "stat", Path: "x", Err: syscall.ENOENT}), OfProgram, errs.Invalid, "", fs.ErrNotExist},
		"directory":          {fmt.Errorf("finish: %w", New(OfDirectory, "/d", "chdir: %w", syscall.ENOTDIR)), OfDirectory, errs.Invalid, "", syscall.ENOTDIR},
		"mount":              {New(OfMount, "/m", "no"), OfMount, errs.Invalid, errs.CauseMount, nil},
		"host":               {New(OfHost, "", "no"), OfHost, nil, "", nil},
		"seccomp":            {New(OfSeccomp, "", "load: %w", syscall.EINVAL), OfSeccomp, nil, errs.CauseSeccomp, syscall.EINVAL},
		"too many processes": {New(OfHost, "", "fork: %w", syscall.EAGAIN), OfHost, errs.Exhausted, "", syscall.EAGAIN},
		"another error":      {fmt.Errorf("open: %w", syscall.EACCES), OfHost, nil, "", fs.ErrPermission},
	} {
		f, err := Decode(From(test.err).Encode())
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if f.Part != test.part || f.Error() != test.err.Error() || !errors.Is(f, test.is) && test.is != nil {
			t.Errorf("%s: %+v of %v", name, f, test.err)
		}
		var fault *errs.Fault
		cause := errs.Cause("")
		if errors.As(f.Err(), &fault) {
			cause = fault.Cause
		}
		if kind := errs.Kind(f.Err()); !errors.Is(kind, test.kind) || (kind == nil) != (test.kind == nil) || cause != test.cause {
			t.Errorf("%s: kind %v, cause %q", name, kind, cause)
		}
	}
}

func FuzzDecode(f *testing.F) {
	f.Add(New(OfMount, "/m", "no: %w", syscall.EINVAL).Encode())
	f.Add([]byte{1})
	f.Fuzz(func(t *testing.T, b []byte) {
		if decoded, err := Decode(b); err == nil && len(decoded.Path)+len(decoded.Text) > len(b) {
			t.Errorf("%d bytes became %+v", len(b), decoded)
		}
	})
}
