package sysfile

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/berthrun/berth/internal/errs"
)

// A layer says what it deletes of the layers below in one of two forms. In the form of overlay mounts a deleted name is a
// character device 0:0, and a directory that hides those below it has an attribute. In the form of archives a deleted name is
// an empty file with WhiteoutPrefix before it, beside what the layer has under the name itself, and a directory that hides
// those below has a file OpaqueName. Only such files are regular ones with that prefix.
const (
	WhiteoutPrefix = ".wh."
	OpaqueName     = ".wh..wh..opq"
	// OverlayOpaque is the attribute of overlay mounts, with the value "y".
	OverlayOpaque = "trusted.overlay.opaque"
)

// maxOpenLayers bounds the directories of all layers together that are open at a time.
const maxOpenLayers = 8192

// maxHeldNames bounds the names that a copy holds in memory at a time: of the directories that it is in, in all layers, and of
// files with several names.
const maxHeldNames = 4 << 20

// LayersCopy says how CopyLayers copies.
type LayersCopy struct {
	// Label is the SELinux label of all copies, "" for none.
	Label string
	// Directories copies directories and symbolic links alone.
	Directories bool
	// Progress, if not nil, is called with how far it is.
	Progress func(Copied)

	maxHeld int // 0 for maxHeldNames
}

// CopyLayers copies what an overlay of layers shows, the topmost first, onto the directory to, which is there, is empty, and
// keeps its owner and mode. Each file is copied once, as with CopyTree: the layers may have untrusted content, nobody
// changes them meanwhile, and it ends soon after ctx does. A layer may be a link to its directory. Kind Invalid for layers that
// are too deep, or have too many names to hold.
func CopyLayers(ctx context.Context, layers []string, to string, how LayersCopy) (err error) {
	target, err := os.OpenFile(to, unix.O_DIRECTORY|unix.O_NOFOLLOW, 0)
	if err != nil {
		return err
	}
	defer target.Close()
	c := &layersCopy{treeCopy: newTreeCopy(target, how.Progress), directories: how.Directories, maxHeld: cmp.Or(how.maxHeld, maxHeldNames)}
	c.label = how.Label
	sources := make([]*os.File, 0, len(layers))
	defer func() { err = errors.Join(err, c.close(sources)) }()
	for _, layer := range layers {
		source, err := os.OpenFile(layer, unix.O_DIRECTORY, 0)
		if err != nil {
			return err
		}
		sources = append(sources, source)
	}
	c.open = len(sources)
	if err := c.merge(ctx, sources, target, "", 0); err != nil {
		return err
	}
	return pathError("label", to, c.relabel(throughProc(target)+"/."))
}

type layersCopy struct {
	*treeCopy
	directories bool
	// open is how many directories of layers are open, held how many names these have.
	open          int
	held, maxHeld int
}

func (c *layersCopy) close(dirs []*os.File) (err error) {
	for _, dir := range dirs {
		err = errors.Join(err, dir.Close())
	}
	c.open -= len(dirs)
	return err
}

// level is a directory as one layer has it.
type level struct {
	dir *os.File
	// names are those that it has in the layer, deleted those that it hides of the layers below. opaque hides all.
	names   []string
	has     map[string]bool
	deleted map[string]bool
	opaque  bool
}

func (l *level) hides(name string) bool { return l.opaque || l.deleted[name] }

// merge copies what a directory has in all layers together. at is target's path below root.
func (c *layersCopy) merge(ctx context.Context, sources []*os.File, target *os.File, at string, depth int) error {
	if depth > maxTreeDepth {
		return fmt.Errorf("%s: more than %d directories in one another: %w", sources[0].Name(), maxTreeDepth, errs.Invalid)
	}
	before := c.held
	defer func() { c.held = before }()
	levels := make([]level, 0, len(sources))
	for _, source := range sources {
		l, err := c.readLevel(source)
		if err != nil {
			return err
		}
		levels = append(levels, l)
		if l.opaque {
			break
		}
	}
	seen := map[string]bool{}
	for i, l := range levels {
		for _, name := range l.names {
			if seen[name] {
				continue
			}
			seen[name] = true
			if err := c.entryOf(ctx, levels[i:], target, name, at, depth); err != nil {
				return err
			}
		}
		for name := range l.deleted {
			seen[name] = true
		}
	}
	return nil
}

// entryOf copies name, which the first of the layers has.
func (c *layersCopy) entryOf(ctx context.Context, levels []level, target *os.File, name, at string, depth int) error {
	if err := context.Cause(ctx); err != nil {
		return err
	}
	top := levels[0]
	var st unix.Stat_t
	if err := unix.Fstatat(int(top.dir.Fd()), name, &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return pathError("stat", top.dir.Name()+"/"+name, err)
	}
	at = path.Join(at, name)
	switch {
	case isWhiteout(&st):
		return nil
	case st.Mode&unix.S_IFMT == unix.S_IFDIR:
		if err := c.mergeBelow(ctx, levels, target, name, at, depth); err != nil {
			return err
		}
		if err := c.attributes(top.dir, target, name, &st); err != nil { // at last: see directory
			return err
		}
	case c.directories && st.Mode&unix.S_IFMT != unix.S_IFLNK:
		return nil
	default:
		if linked, err := c.link(target, name, at, &st); err != nil {
			return err
		} else if !linked {
			if err := c.file(ctx, top.dir, target, name, &st); err != nil {
				return err
			}
		}
	}
	c.done.Files++
	c.progress(c.done)
	return nil
}

// mergeBelow copies the directory name of the first of the layers, with what those below have in it.
func (c *layersCopy) mergeBelow(ctx context.Context, levels []level, target *os.File, name, at string, depth int) (err error) {
	var sources []*os.File
	defer func() { err = errors.Join(err, c.close(sources)) }()
	for _, l := range levels {
		if l.has[name] {
			dir, err := OpenDirectory(l.dir, name)
			if errors.Is(err, unix.ENOTDIR) || errors.Is(err, unix.ELOOP) {
				break // a file, or a deletion
			}
			if err != nil {
				return err
			}
			sources = append(sources, dir)
			if c.open++; c.open > maxOpenLayers {
				return fmt.Errorf("%s: more than %d directories of layers in one another: %w", dir.Name(), maxOpenLayers, errs.Invalid)
			}
		}
		if l.hides(name) {
			break
		}
	}
	if err := unix.Mkdirat(int(target.Fd()), name, 0o700); err != nil {
		return pathError("mkdir", target.Name()+"/"+name, err)
	}
	to, err := OpenDirectory(target, name)
	if err != nil {
		return err
	}
	defer to.Close()
	return c.merge(ctx, sources, to, at, depth+1)
}

// isWhiteout reports whether a file deletes its name in the form of overlay mounts.
func isWhiteout(st *unix.Stat_t) bool { return st.Mode&unix.S_IFMT == unix.S_IFCHR && st.Rdev == 0 }

// readLevel reads a directory of a layer.
func (c *layersCopy) readLevel(dir *os.File) (level, error) {
	l := level{dir: dir, has: map[string]bool{}, deleted: map[string]bool{}}
	for {
		names, err := dir.Readdirnames(1024)
		if c.held += len(names); c.held+len(c.names) > c.maxHeld {
			return l, fmt.Errorf("%s: the directory and those above have more than %d names: %w", dir.Name(), c.maxHeld, errs.Invalid)
		}
		for _, name := range names {
			hidden, is := strings.CutPrefix(name, WhiteoutPrefix)
			if is {
				var statErr error
				if is, statErr = isRegular(dir, name); statErr != nil {
					return l, statErr
				}
			}
			switch {
			case is && name == OpaqueName:
				l.opaque = true
			case is:
				l.deleted[hidden] = true
			default:
				l.names = append(l.names, name)
				l.has[name] = true
			}
		}
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return l, err
		}
	}
	value, err := Xattr(dir, OverlayOpaque)
	switch {
	case err == nil:
		l.opaque = l.opaque || value == "y"
	case errors.Is(err, unix.ENODATA), errors.Is(err, unix.ENOTSUP):
		err = nil
	}
	return l, err
}

func isRegular(dir *os.File, name string) (bool, error) {
	var st unix.Stat_t
	if err := unix.Fstatat(int(dir.Fd()), name, &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return false, pathError("stat", dir.Name()+"/"+name, err)
	}
	return st.Mode&unix.S_IFMT == unix.S_IFREG, nil
}

// errFound ends the walk of HasWhiteoutFiles.
var errFound = errors.New("found")

// HasWhiteoutFiles reports whether a layer says in the form of archives what it deletes. It follows no link, and is false for
// a layer that is one.
func HasWhiteoutFiles(layer string) (bool, error) {
	top, err := os.OpenFile(layer, unix.O_DIRECTORY|unix.O_NOFOLLOW, 0)
	if errors.Is(err, unix.ELOOP) || errors.Is(err, unix.ENOTDIR) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	defer top.Close()
	t := tally{names: map[inode]struct{}{}, pace: context.Cause, named: func(name string, st *unix.Stat_t) error {
		if strings.HasPrefix(name, WhiteoutPrefix) && st.Mode&unix.S_IFMT == unix.S_IFREG {
			return errFound
		}
		return nil
	}}
	err = t.below(context.Background(), top, ".")
	if errors.Is(err, errFound) {
		return true, nil
	}
	return false, err
}

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
