package sysfile

import (
	"errors"
	"os"
	"path"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/berthrun/berth/internal/errs"
)

// LayersHave reports whether an overlay of layers, the topmost first, shows a name. It follows no link but a layer that is one.
func LayersHave(layers []string, name string) (has bool, err error) {
	var dirs []*os.File
	defer func() { err = errors.Join(err, closeAll(dirs)) }()
	for _, layer := range layers {
		dir, err := os.OpenFile(layer, unix.O_DIRECTORY, 0)
		if err != nil {
			return false, err
		}
		dirs = append(dirs, dir)
	}
	elements := strings.Split(name, "/")
	for i, element := range elements {
		next, found, err := stepDown(dirs, element, i < len(elements)-1)
		if err = errors.Join(err, closeAll(dirs)); err != nil || !found {
			dirs = next
			return false, err
		}
		dirs = next
	}
	return true, nil
}

func closeAll(dirs []*os.File) (err error) {
	for _, dir := range dirs {
		err = errors.Join(err, dir.Close())
	}
	return err
}

// stepDown returns the directories that are merged under a name, and whether the name is there. With open false it opens none.
func stepDown(dirs []*os.File, name string, open bool) (next []*os.File, found bool, err error) {
	for _, dir := range dirs {
		var st unix.Stat_t
		err := unix.Fstatat(int(dir.Fd()), name, &st, unix.AT_SYMLINK_NOFOLLOW)
		if err != nil && !errors.Is(err, unix.ENOENT) {
			return next, false, pathError("stat", dir.Name()+"/"+name, err)
		}
		if err == nil {
			if isWhiteout(&st) {
				break
			}
			if !open {
				return next, true, nil
			}
			if st.Mode&unix.S_IFMT != unix.S_IFDIR {
				break
			}
			below, err := OpenDirectory(dir, name)
			if err != nil {
				return next, false, err
			}
			next = append(next, below)
		}
		if opaque, err := isOpaque(dir); err != nil || opaque {
			return next, len(next) > 0, err
		}
	}
	return next, len(next) > 0, nil
}

// isOpaque reports whether a directory of a layer hides those below.
func isOpaque(dir *os.File) (bool, error) {
	value, err := Xattr(dir, OverlayOpaque)
	if errors.Is(err, unix.ENODATA) || errors.Is(err, unix.ENOTSUP) {
		return false, nil
	}
	return value == "y", err
}

// RemoveWhiteout removes a deletion in the form of overlay mounts beneath root, as if it had never been there. It
// follows no link, and does nothing where there is no deletion.
func RemoveWhiteout(root *os.File, name string) error {
	dir, err := OpenBeneath(root, path.Dir(name), unix.O_RDONLY|unix.O_DIRECTORY, 0)
	if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENOTDIR) || errors.Is(err, errs.Invalid) {
		return nil // something else is in the place of the directory
	}
	if err != nil {
		return err
	}
	defer dir.Close()
	var before, st unix.Stat_t
	if err := unix.Fstat(int(dir.Fd()), &before); err != nil {
		return pathError("stat", dir.Name(), err)
	}
	base := path.Base(name)
	err = unix.Fstatat(int(dir.Fd()), base, &st, unix.AT_SYMLINK_NOFOLLOW)
	if errors.Is(err, unix.ENOENT) || err == nil && !isWhiteout(&st) {
		return nil
	}
	if err == nil {
		err = unix.Unlinkat(int(dir.Fd()), base, 0)
	}
	if err == nil {
		err = unix.UtimesNanoAt(int(dir.Fd()), ".", []unix.Timespec{before.Atim, before.Mtim}, 0)
	}
	return pathError("remove", dir.Name()+"/"+base, err)
}
