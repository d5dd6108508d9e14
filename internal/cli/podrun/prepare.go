package podrun

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"syscall"

	"github.com/berthrun/berth/internal/cli/podyaml"
	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/sys/sysmount"
)

// unixStat is what the kernel says of a file.
type unixStat = syscall.Stat_t

// prepare makes what a container's configuration mounts: parts of volumes, and the file
// for its last words. What an earlier try left is replaced.
func (k *keeper) prepare(made *podyaml.Made) error {
	for i := range made.SubPaths {
		if err := sysmount.UnmountBelow(made.SubPaths[i].Target); err != nil {
			return err
		}
		if err := bindSubPath(&made.SubPaths[i]); err != nil {
			return err
		}
	}
	if made.Message == "" {
		return nil
	}
	if err := os.MkdirAll(filepath.Dir(made.Message), 0o755); err != nil {
		return fmt.Errorf("cannot make the file for last words: %w", err)
	}
	if err := os.WriteFile(made.Message, nil, 0o666); err != nil {
		return fmt.Errorf("cannot make the file for last words: %w", err)
	}
	return os.Chmod(made.Message, 0o666) // whatever the umask says, and the container's user is
}

// bindTo makes a target of the right kind and binds an open file to it.
func bindTo(f *os.File, isDir bool, target string) error {
	parent := target
	if !isDir {
		parent = filepath.Dir(target)
	}
	if err := os.MkdirAll(parent, 0o755); err != nil {
		return err
	}
	if !isDir {
		if err := errs.IgnoreNotExist(os.Remove(target)); err != nil {
			return err
		}
		if err := os.WriteFile(target, nil, 0o600); err != nil {
			return err
		}
	}
	return sysmount.BindFile(f, target)
}

// unprepare undoes prepare for an attempt that has gone.
func (k *keeper) unprepare(a *attempt) error {
	dir := filepath.Join(k.facts.Dir, "subpaths", a.spec.Name, strconv.FormatUint(uint64(a.n), 10))
	if err := sysmount.UnmountBelow(dir); err != nil {
		return err
	}
	return errors.Join(os.RemoveAll(dir), os.RemoveAll(podyaml.MessageFile(k.facts.Dir, a.spec.Name, a.n)))
}
