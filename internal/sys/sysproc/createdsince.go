package sysproc

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berthrun/berth/internal/errs"

	"github.com/berthrun/berth/internal/sys/sysfile"
)

// coarse is how far file systems' clocks may lag behind time.Now.
const coarse = 20 * time.Millisecond

// RemoveCreatedSince removes the regular file at path beneath dir if it was created at
// or after a moment. It keeps everything else, and returns nil: an older file, a file
// that is not regular, a path that leaves dir or passes through a symbolic link, a file
// system without creation times.
func RemoveCreatedSince(dir *os.File, path string, moment time.Time) error {
	parent, err := sysfile.OpenBeneath(dir, filepath.Dir(path), unix.O_PATH|unix.O_DIRECTORY, 0)
	if errors.Is(err, os.ErrNotExist) || errors.Is(err, unix.ENOTDIR) || errors.Is(err, errs.Invalid) {
		return nil
	}
	if err != nil {
		return err
	}
	defer parent.Close()
	name := filepath.Base(path)
	var st unix.Statx_t
	err = unix.Statx(int(parent.Fd()), name, unix.AT_SYMLINK_NOFOLLOW, unix.STATX_TYPE|unix.STATX_BTIME, &st)
	if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENAMETOOLONG) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("cannot stat %q beneath %q: %w", path, dir.Name(), err)
	}
	born := time.Unix(st.Btime.Sec, int64(st.Btime.Nsec))
	if st.Mask&unix.STATX_BTIME == 0 || st.Mode&unix.S_IFMT != unix.S_IFREG || born.Before(moment.Add(-coarse)) {
		return nil
	}
	if err := unix.Unlinkat(int(parent.Fd()), name, 0); err != nil && !errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("cannot remove %q beneath %q: %w", path, dir.Name(), err)
	}
	return nil
}
