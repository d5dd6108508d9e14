package sysfile

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"os"

	"golang.org/x/sys/unix"
)

// maxDescent is how deep RemoveTree goes: each directory on the way is open.
const maxDescent = 64

// RemoveTree removes path and all that is in it, and is nil when it is absent. Unlike
// os.RemoveAll it holds few descriptors however deep the tree is. The tree may have untrusted
// content, but no process may change it any more. It ends soon after ctx does, with the
// context's cause; a later call continues.
func RemoveTree(ctx context.Context, path string) error {
	err := os.Remove(path)
	if err == nil || errors.Is(err, os.ErrNotExist) {
		return nil
	}
	top, openErr := os.OpenFile(path, unix.O_DIRECTORY|unix.O_NOFOLLOW, 0)
	if openErr != nil {
		return err
	}
	err = empty(ctx, top, top, 0)
	if err := errors.Join(err, top.Close()); err != nil {
		return fmt.Errorf("cannot remove what is in %s: %w", path, err)
	}
	return os.Remove(path)
}

// empty removes all that is in dir. Directories that are too deep are moved up into top,
// where they are found again.
func empty(ctx context.Context, top, dir *os.File, depth int) error {
	for {
		names, err := dir.Readdirnames(readBatch)
		for _, name := range names {
			if err := context.Cause(ctx); err != nil {
				return err
			}
			if err := removeEntry(ctx, top, dir, name, depth); err != nil {
				return err
			}
		}
		if len(names) == 0 {
			if errors.Is(err, io.EOF) {
				return nil
			}
			return err
		}
		// What was moved or removed meanwhile may have hidden others from the reading.
		if _, err := dir.Seek(0, io.SeekStart); err != nil {
			return err
		}
	}
}

func removeEntry(ctx context.Context, top, dir *os.File, name string, depth int) error {
	at := int(dir.Fd())
	err := unix.Unlinkat(at, name, 0)
	if errors.Is(err, unix.EISDIR) || errors.Is(err, unix.EPERM) {
		err = unix.Unlinkat(at, name, unix.AT_REMOVEDIR)
	}
	switch {
	case err == nil, errors.Is(err, unix.ENOENT):
		return nil
	case !errors.Is(err, unix.ENOTEMPTY) && !errors.Is(err, unix.EEXIST):
		return pathError("unlink", name, err)
	case depth == maxDescent:
		if err := unix.Renameat(at, name, int(top.Fd()), "deep-"+rand.Text()); err != nil {
			return pathError("rename", name, err)
		}
		return nil
	}
	below, err := OpenBeneath(dir, name, unix.O_RDONLY|unix.O_DIRECTORY, 0)
	if err != nil {
		return err
	}
	if err := errors.Join(empty(ctx, top, below, depth+1), below.Close()); err != nil {
		return err
	}
	if err := unix.Unlinkat(at, name, unix.AT_REMOVEDIR); err != nil {
		return pathError("unlink", name, err)
	}
	return nil
}
