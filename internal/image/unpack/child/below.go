package child

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/berthrun/berth/internal/errs"
)

// maxLinks bounds the links on the way to one name.
const maxLinks = 255

// Names of this file are relative to the root of the image, "" for the root itself, and lead through no links.

// resolve returns the directory that a name leads to in this layer and those below, which may not be there.
func (l *layer) resolve(name string) (string, error) {
	at, links := "", 0
	for rest := name; rest != ""; {
		var next string
		next, rest, _ = strings.Cut(rest, "/")
		switch next {
		case "", ".":
			continue
		case "..":
			at = parent(at)
			continue
		}
		next = filepath.Join(at, next)
		path, fi := l.lookup(next)
		if fi == nil || fi.Mode()&os.ModeSymlink == 0 {
			at = next
			continue
		}
		if links++; links > maxLinks {
			return "", fmt.Errorf("%s leads through more than %d links: %w", name, maxLinks, errs.Invalid)
		}
		target, err := os.Readlink(path)
		if err != nil {
			return "", err
		}
		if filepath.IsAbs(target) {
			at = ""
		}
		rest = target + "/" + rest
	}
	return at, nil
}

// parent is the directory that a name is in. That of the root is the root.
func parent(name string) string {
	return strings.TrimPrefix(filepath.Dir("/"+name), "/")
}

// lookup finds a name in this layer, or else in those below. fi is nil when it is in none.
func (l *layer) lookup(name string) (path string, fi os.FileInfo) {
	path = filepath.Join(l.upper, name)
	if fi, err := os.Lstat(path); err == nil {
		if isDeletion(fi) {
			return path, nil
		}
		return path, fi
	}
	return l.lookupBelow(name)
}

// lookupBelow finds a name in the layers below.
func (l *layer) lookupBelow(name string) (path string, fi os.FileInfo) {
	if l.lower == "" || l.hides(name) {
		return "", nil
	}
	path = filepath.Join(l.lower, name)
	fi, err := os.Lstat(path)
	if err != nil {
		return "", nil
	}
	return path, fi
}

// hides reports whether this layer has deleted a name of the layers below, or has something else in the place of a directory
// above it.
func (l *layer) hides(name string) bool {
	for ; name != ""; name = parent(name) {
		path := filepath.Join(l.upper, name)
		if l.whiteouts[path] || l.opaque[filepath.Dir(path)] {
			return true
		}
		above := filepath.Dir(path)
		if fi, err := os.Lstat(above); err == nil && !fi.IsDir() {
			return true
		}
		if fi, err := os.Lstat(filepath.Join(l.lower, parent(name))); err != nil || !fi.IsDir() {
			return true // the layers below have a link there: the overlay merges directories alone
		}
	}
	return false
}

// isDeletion reports whether a file of a layer deletes a name.
func isDeletion(fi os.FileInfo) bool {
	return fi.Mode()&os.ModeCharDevice != 0 && fi.Sys().(*syscall.Stat_t).Rdev == 0
}

// has reports whether a directory is in this layer or in those below.
func (l *layer) has(dir string) bool {
	if dir == "" {
		return true
	}
	_, fi := l.lookup(dir)
	return fi != nil && fi.IsDir()
}

// makeDirectories makes a directory and those above it, with the attributes that they have in the layers below. implied
// says that they are for a deletion.
func (l *layer) makeDirectories(dir string, implied bool) error {
	if dir == "" {
		return nil
	}
	path := filepath.Join(l.upper, dir)
	fi, err := os.Lstat(path)
	switch {
	case err == nil && fi.IsDir():
		return nil
	case err == nil && !isDeletion(fi):
		return &os.PathError{Op: "mkdir", Path: path, Err: unix.ENOTDIR}
	case err == nil:
		l.counter.unknown = true
		if err := os.Remove(path); err != nil {
			return err
		}
	case !errors.Is(err, os.ErrNotExist):
		return err
	}
	if err := l.makeDirectories(parent(dir), implied); err != nil {
		return err
	}
	if err := os.Mkdir(path, 0o755); err != nil {
		return err
	}
	l.counter.made = append(l.counter.made, path)
	if implied {
		l.implied[path] = true
	}
	if below, fi := l.lookupBelow(dir); fi != nil && fi.IsDir() {
		return l.copyAttributes(below, path)
	}
	return nil
}

// needs notes that a name, and the directories above it, are there for more than deletions.
func (l *layer) needs(name string) {
	for ; len(l.implied) > 0 && name != ""; name = parent(name) {
		delete(l.implied, filepath.Join(l.upper, name))
	}
}

// copyUp makes a file of a layer below one of this layer.
func (l *layer) copyUp(dir, base string) error {
	name := filepath.Join(dir, base)
	if l.files && !l.whole && l.lower != "" {
		return errNeedsFiles
	}
	below, fi := l.lookupBelow(name)
	if fi == nil || fi.IsDir() {
		return fmt.Errorf("neither this layer nor those below have the file %q: %w", name, errs.Invalid)
	}
	if err := l.makeDirectories(dir, false); err != nil {
		return err
	}
	l.needs(name)
	l.counter.unknown = true
	path, st := filepath.Join(l.upper, name), fi.Sys().(*syscall.Stat_t)
	var err error
	switch {
	case fi.Mode().IsRegular():
		err = l.copyFile(below, path, fi.Size())
	case fi.Mode()&os.ModeSymlink != 0:
		var target string
		if target, err = os.Readlink(below); err == nil {
			err = os.Symlink(target, path)
		}
	default:
		err = mknod(path, st.Mode, st.Rdev)
	}
	if err != nil {
		return err
	}
	return l.copyAttributes(below, path)
}

// copyFile copies a regular file.
func (l *layer) copyFile(from, to string, size int64) (err error) {
	if l.size += size; l.size > l.maxBytes {
		return fmt.Errorf("a copy of %s needs more than the %d bytes that the disk has left: %w", from, l.maxBytes, errs.Exhausted)
	}
	file, err := os.Open(from)
	if err != nil {
		return err
	}
	defer file.Close()
	copied, err := newFile(to, 0o600)
	if err != nil {
		return err
	}
	return l.fill(copied, file, size, true)
}
