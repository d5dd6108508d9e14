package images

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"syscall"

	"github.com/berthrun/berth/internal/errs"
)

// spool is a temporary file that a provider writes and several nodes read. It has no name, so that
// nothing is left behind, however this process ends.
type spool struct {
	file *os.File
	dir  string
	// failed is the error of the first write that failed. The provider's tool gets only EPIPE.
	failed error
}

// spoolDir returns TMPDIR, or else a directory on disk: /tmp is in memory on many machines, and
// images are larger than that.
func spoolDir() string { return cmp.Or(os.Getenv("TMPDIR"), "/var/tmp") }

func newSpool() (*spool, error) {
	s := &spool{dir: spoolDir()}
	file, err := os.CreateTemp(s.dir, "berth-cluster-load-*.tar")
	if err != nil {
		return nil, fmt.Errorf("cannot make a file for images; TMPDIR may name another directory: %w", err)
	}
	if err := os.Remove(file.Name()); err != nil {
		return nil, errors.Join(err, file.Close())
	}
	s.file = file
	return s, nil
}

// Write keeps the first failure.
func (s *spool) Write(p []byte) (int, error) {
	n, err := s.file.Write(p)
	s.failed = cmp.Or(s.failed, err)
	return n, err
}

// explain replaces the error of a writer by the error of the disk, where that is the cause.
func (s *spool) explain(err error) error {
	switch {
	case errors.Is(s.failed, syscall.ENOSPC), errors.Is(s.failed, syscall.EDQUOT):
		return fmt.Errorf("no space is left in %s; make TMPDIR name a directory on a larger disk: %w: %w", s.dir, errs.Exhausted, s.failed)
	case s.failed != nil:
		return s.failed
	}
	return err
}

// path is a path that opens the file from its beginning, as long as it is not closed.
func (s *spool) path() string { return fmt.Sprintf("/proc/self/fd/%d", s.file.Fd()) }

func (s *spool) Close() error { return s.file.Close() }
