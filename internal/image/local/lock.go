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
	f, err := os.OpenFile(filepath.Join(s.cfg.Root, "lock"), os.O_RDWR|os.O_CREATE|unix.O_CLOEXEC, 0o600)
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
		err = fmt.Errorf("cannot open the image store: another process has %s: %w", f.Name(), errs.Unavailable)
	}
	return errors.Join(err, f.Close())
}
