package errs

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"syscall"
	"testing"
)

func TestIgnore(t *testing.T) {
	other := errors.New("disk")
	_, missing := os.Open("/nonexistent/file")
	for name, test := range map[string]struct {
		ignore    func(error) error
		err, want error
	}{
		"success":                  {IgnoreNotExist, nil, nil},
		"a file that is not there": {IgnoreNotExist, missing, nil},
		"wrapped":                  {IgnoreNotExist, fmt.Errorf("cannot remove: %w", fs.ErrNotExist), nil},
		"the system's":             {IgnoreNotExist, syscall.ENOENT, nil},
		"another error":            {IgnoreNotExist, other, other},
		"another kind of absence":  {IgnoreNotExist, NotFound, NotFound},
		"an object that is gone":   {IgnoreNotFound, fmt.Errorf("pod: %w", NotFound), nil},
		"a file, not an object":    {IgnoreNotFound, fs.ErrNotExist, fs.ErrNotExist},
	} {
		if got := test.ignore(test.err); !errors.Is(got, test.want) || (got == nil) != (test.want == nil) {
			t.Errorf("%s: %v, want %v", name, got, test.want)
		}
	}
}
