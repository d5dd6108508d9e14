package sysfile

import (
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/berthrun/berth/internal/errs"
)

const (
	// readBatch is how many names of a directory are read at a time.
	readBatch = 256
	// maxStride is how long a path may become from a directory that is open, before another
	// one is opened.
	maxStride = 1024
)

// Usage is the disk space and the inodes of files.
type Usage struct{ Bytes, Inodes int64 }

// UsageOf adds up the directories and all that is in them; a file with several names
// counts once. Programs may change the trees meanwhile, and make them as deep as they
// like: what has gone when it is looked at is left out, and few descriptors are held. No
// link is followed. The directories themselves must be there. pace, if not nil, is called
// first, and between some hundreds of entries: it may wait, and ends the walk by an error, which is
// returned with what was counted by then.
func UsageOf(ctx context.Context, pace Pace, dirs ...string) (Usage, error) {
	if pace == nil {
		pace = context.Cause
	}
	t := tally{names: map[inode]struct{}{}, pace: pace}
	if err := pace(ctx); err != nil {
		return Usage{}, err
	}
	for _, dir := range dirs {
		top, err := os.OpenFile(dir, unix.O_DIRECTORY|unix.O_NOFOLLOW, 0)
		if err != nil {
			return Usage{}, err
		}
		var st unix.Stat_t
		if err := unix.Fstat(int(top.Fd()), &st); err != nil {
			return Usage{}, errors.Join(pathError("stat", dir, err), top.Close())
		}
		t.add(&st)
		if err := errors.Join(t.below(ctx, top, "."), top.Close()); err != nil {
			return t.usage, err
		}
	}
	return t.usage, nil
}

// Pace slows a walk down, or ends it.
type Pace func(ctx context.Context) error

type tally struct {
	usage Usage
	pace  Pace
	// unpaced are the entries since pace was called.
	unpaced int
	// names are the files with several names that were counted.
	names map[inode]struct{}
	// named, if not nil, is called with each entry, and ends the walk by an error.
	named func(name string, st *unix.Stat_t) error
}

// blockSize is the unit of st_blocks.
const blockSize = 512

func (t *tally) add(st *unix.Stat_t) {
	if st.Nlink > 1 && st.Mode&unix.S_IFMT != unix.S_IFDIR {
		file := inode{uint64(st.Dev), st.Ino} //nolint:unconvert // 32 bits on some architectures
		if _, counted := t.names[file]; counted {
			return
		}
		t.names[file] = struct{}{}
	}
	t.usage.Inodes++
	t.usage.Bytes += st.Blocks * blockSize
}

// below counts what is in the directory at, which is beneath top.
func (t *tally) below(ctx context.Context, top *os.File, at string) error {
	dirs, err := t.directory(ctx, top, at)
	if err != nil {
		return err
	}
	for _, name := range dirs {
		next := filepath.Join(at, name)
		if len(next) <= maxStride {
			err = t.below(ctx, top, next)
		} else {
			err = t.from(ctx, top, next)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// step counts one entry of work, a directory without entries included.
func (t *tally) step(ctx context.Context) error {
	if t.unpaced++; t.unpaced < readBatch {
		return ctx.Err()
	}
	t.unpaced = 0
	return t.pace(ctx)
}

// from is below from a new top, so that paths stay short.
func (t *tally) from(ctx context.Context, top *os.File, at string) error {
	dir, err := openDirectory(top, at)
	if dir == nil {
		return err
	}
	defer dir.Close()
	return t.below(ctx, dir, ".")
}

// directory counts the entries of one directory and returns those that are directories.
func (t *tally) directory(ctx context.Context, top *os.File, at string) (dirs []string, err error) {
	dir, err := openDirectory(top, at)
	if dir == nil {
		return nil, err
	}
	defer dir.Close()
	for {
		names, err := dir.Readdirnames(readBatch)
		for _, name := range names {
			if err := t.step(ctx); err != nil {
				return nil, err
			}
			var st unix.Stat_t
			if err := unix.Fstatat(int(dir.Fd()), name, &st, unix.AT_SYMLINK_NOFOLLOW); errors.Is(err, unix.ENOENT) {
				continue
			} else if err != nil {
				return nil, pathError("stat", filepath.Join(dir.Name(), name), err)
			}
			t.add(&st)
			if t.named != nil {
				if err := t.named(name, &st); err != nil {
					return nil, err
				}
			}
			if st.Mode&unix.S_IFMT == unix.S_IFDIR {
				dirs = append(dirs, name)
			}
		}
		if errors.Is(err, io.EOF) || errors.Is(err, unix.ENOENT) {
			return dirs, nil
		}
		if err != nil {
			return nil, err
		}
	}
}

// openDirectory returns nil for what is no directory any more.
func openDirectory(top *os.File, at string) (*os.File, error) {
	dir, err := OpenBeneath(top, at, unix.O_RDONLY|unix.O_DIRECTORY, 0)
	if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENOTDIR) || errors.Is(err, errs.Invalid) {
		return nil, nil //nolint:nilnil // gone, or a link in its place
	}
	return dir, err
}
