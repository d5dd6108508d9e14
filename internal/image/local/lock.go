package local

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/image/database"
)

// lockStore keeps a second process away, before anything is looked at.
func (s *Images) lockStore() error {
	path := filepath.Join(s.cfg.Root, "lock")
	if fi, err := os.Lstat(path); err == nil && !fi.Mode().IsRegular() {
		// No daemon makes such a thing, so none holds it.
		s.log.Warn("removing what is in the place of the image store's lock", "path", path, "type", database.TypeOf(fi.Mode()))
		if err := os.RemoveAll(path); err != nil {
			return err
		}
	}
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|unix.O_CLOEXEC|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return err
	}
	deadline := time.Now().Add(database.OpenTimeout)
	for {
		err = unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if err == nil {
			s.lock = f
			return nil
		}
		if !errors.Is(err, unix.EWOULDBLOCK) && !errors.Is(err, unix.EINTR) || time.Now().After(deadline) {
			break
		}
		time.Sleep(50 * time.Millisecond)
	}
	if errors.Is(err, unix.EWOULDBLOCK) {
		err = fmt.Errorf("%s: %w", database.HeldBy(f.Name()), errs.Unavailable)
	}
	return errors.Join(err, f.Close())
}
