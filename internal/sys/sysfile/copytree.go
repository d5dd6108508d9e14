package sysfile

import (
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

const (
	// maxTreeDepth bounds the directories in a directory: each is open meanwhile.
	maxTreeDepth = 1024
	// maxXattrs bounds the names of a file's attributes, and the value of each, as the
	// kernel does.
	maxXattrs = 64 << 10
)

// Copied is how far CopyTree is.
type Copied struct{ Files, Bytes int64 }

// CopyTree copies the directory from onto the directory to, which is there and is
// empty: all that is in it, and its own owner, mode, attributes and times. Copies of
// links are links, two names of one file stay two names of one file, and CopyTree opens
// only directories and regular files, so that from may have untrusted content. No process
// may change either tree meanwhile. Attributes that belong to the host (security labels)
// are not copied.
//
// It ends soon after ctx does, with what it has copied so far. progress, if not nil, is called with
// how far it is. Kind Invalid for a tree that is too deep.
func CopyTree(ctx context.Context, from, to string, progress func(Copied)) error {
	source, err := os.OpenFile(from, unix.O_DIRECTORY|unix.O_NOFOLLOW, 0)
	if err != nil {
		return err
	}
	target, err := os.OpenFile(to, unix.O_DIRECTORY|unix.O_NOFOLLOW, 0)
	if err != nil {
		return errors.Join(err, source.Close())
	}
	defer target.Close()
	c := newTreeCopy(target, progress)
	// Closed by it, as every directory below.
	return c.directory(ctx, source, target, "", 0)
}

// inode is a file of the source, whatever its name.
type inode struct{ dev, ino uint64 }

type treeCopy struct {
	root     *os.File
	progress func(Copied)
	done     Copied
	// names are the copies of files with several names, by the path below root.
	names map[inode]string
	// label is the SELinux label of all copies, "" for none.
	label string
	// list and value are for attributes.
	list, value [maxXattrs]byte
}

func newTreeCopy(root *os.File, progress func(Copied)) *treeCopy {
	if progress == nil {
		progress = func(Copied) {}
	}
	return &treeCopy{root: root, progress: progress, names: map[inode]string{}}
}

// directory copies what source holds, and at last what source is, and closes it.
// at is target's path below root.
func (c *treeCopy) directory(ctx context.Context, source, target *os.File, at string, depth int) error {
	defer source.Close()
	if depth > maxTreeDepth {
		return fmt.Errorf("%s: more than %d directories in one another: %w", source.Name(), maxTreeDepth, errs.Invalid)
	}
	var st unix.Stat_t
	if err := unix.Fstat(int(source.Fd()), &st); err != nil {
		return pathError("stat", source.Name(), err)
	}
	for {
		entries, err := source.ReadDir(1024)
		for _, entry := range entries {
			if err := c.entry(ctx, source, target, entry.Name(), at, depth); err != nil {
				return err
			}
		}
		if errors.Is(err, io.EOF) {
			// Last: entries change a directory's times, and would inherit its ACL.
			return c.attributes(source, target, ".", &st)
		}
		if err != nil {
			return err
		}
	}
}

func (c *treeCopy) entry(ctx context.Context, source, target *os.File, name, at string, depth int) error {
	if err := context.Cause(ctx); err != nil {
		return err
	}
	var st unix.Stat_t
	if err := unix.Fstatat(int(source.Fd()), name, &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return pathError("stat", source.Name()+"/"+name, err)
	}
	at = path.Join(at, name)
	var linked bool
	var err error
	if st.Mode&unix.S_IFMT == unix.S_IFDIR {
		err = c.subdirectory(ctx, source, target, name, at, depth)
	} else if linked, err = c.link(target, name, at, &st); err == nil && !linked {
		err = c.file(ctx, source, target, name, &st)
	}
	if err != nil {
		return err
	}
	c.done.Files++
	c.progress(c.done)
	return nil
}

func (c *treeCopy) subdirectory(ctx context.Context, source, target *os.File, name, at string, depth int) error {
	if err := unix.Mkdirat(int(target.Fd()), name, 0o700); err != nil {
		return pathError("mkdir", target.Name()+"/"+name, err)
	}
	from, err := OpenDirectory(source, name)
	if err != nil {
		return err
	}
	to, err := OpenDirectory(target, name)
	if err != nil {
		return errors.Join(err, from.Close())
	}
	defer to.Close()
	return c.directory(ctx, from, to, at, depth+1)
}

// link makes name another name of a file that was copied under an earlier one.
func (c *treeCopy) link(target *os.File, name, at string, st *unix.Stat_t) (linked bool, err error) {
	if st.Nlink < 2 {
		return false, nil
	}
	id := inode{uint64(st.Dev), st.Ino} //nolint:unconvert // the type differs by architecture
	first, ok := c.names[id]
	if !ok {
		c.names[id] = at
		return false, nil
	}
	if err := unix.Linkat(int(c.root.Fd()), first, int(target.Fd()), name, 0); err != nil {
		return false, pathError("link", target.Name()+"/"+name, err)
	}
	return true, nil
}

// file copies what is no directory.
func (c *treeCopy) file(ctx context.Context, source, target *os.File, name string, st *unix.Stat_t) error {
	var err error
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFREG:
		err = c.content(ctx, source, target, name)
	case unix.S_IFLNK:
		err = copyLink(source, target, name)
	default: // a device, a FIFO, a socket
		err = pathError("mknod", target.Name()+"/"+name, unix.Mknodat(int(target.Fd()), name, st.Mode&unix.S_IFMT|0o600, int(st.Rdev)))
	}
	if err != nil {
		return err
	}
	return c.attributes(source, target, name, st)
}

func (c *treeCopy) content(ctx context.Context, source, target *os.File, name string) (err error) {
	from, err := openEntryAt(source, name, unix.O_RDONLY)
	if err != nil {
		return err
	}
	defer from.Close()
	to, err := openEntryAt(target, name, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, to.Close()) }()
	return CopyContent(ctx, to, from, func(n int64) {
		c.done.Bytes += n
		c.progress(c.done)
	})
}

func openEntryAt(dir *os.File, name string, flags int) (*os.File, error) {
	full := dir.Name() + "/" + name
	fd, err := unix.Openat(int(dir.Fd()), name, flags|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return nil, pathError("open", full, err)
	}
	return os.NewFile(uintptr(fd), full), nil
}

func copyLink(source, target *os.File, name string) error {
	to := make([]byte, unix.PathMax)
	n, err := unix.Readlinkat(int(source.Fd()), name, to)
	if err != nil {
		return pathError("readlink", source.Name()+"/"+name, err)
	}
	return pathError("symlink", target.Name()+"/"+name, unix.Symlinkat(string(to[:n]), int(target.Fd()), name))
}

// attributes gives the copy its owner, mode, extended attributes and times, in this
// order: a new owner takes setuid bits and capabilities away, and a mode belongs to
// an ACL.
func (c *treeCopy) attributes(source, target *os.File, name string, st *unix.Stat_t) error {
	at, full := int(target.Fd()), path.Join(target.Name(), name)
	if err := unix.Fchownat(at, name, int(st.Uid), int(st.Gid), unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return pathError("chown", full, err)
	}
	if st.Mode&unix.S_IFMT != unix.S_IFLNK {
		if err := unix.Fchmodat(at, name, st.Mode&0o7777, 0); err != nil {
			return pathError("chmod", full, err)
		}
	}
	if err := c.xattrs(throughProc(source)+"/"+name, throughProc(target)+"/"+name, full); err != nil {
		return err
	}
	if err := c.relabel(throughProc(target) + "/" + name); err != nil {
		return pathError("label", full, err)
	}
	times := []unix.Timespec{st.Atim, st.Mtim}
	return pathError("change the times of", full, unix.UtimesNanoAt(at, name, times, unix.AT_SYMLINK_NOFOLLOW))
}

// CopyAttributes gives a directory the owner, mode, extended attributes and times of another. A path may be a link to one.
func CopyAttributes(from, to string) error {
	source, err := os.OpenFile(from, unix.O_DIRECTORY, 0)
	if err != nil {
		return err
	}
	defer source.Close()
	target, err := os.OpenFile(to, unix.O_DIRECTORY, 0)
	if err != nil {
		return err
	}
	defer target.Close()
	var st unix.Stat_t
	if err := unix.Fstat(int(source.Fd()), &st); err != nil {
		return pathError("stat", from, err)
	}
	return newTreeCopy(target, nil).attributes(source, target, ".", &st)
}

// xattrs follows no link. full is for messages.
func (c *treeCopy) xattrs(from, to, full string) error {
	n, err := unix.Llistxattr(from, c.list[:])
	if errors.Is(err, unix.ENOTSUP) {
		return nil
	}
	if err != nil {
		return pathError("listxattr", full, err)
	}
	for attr := range strings.SplitSeq(string(c.list[:n]), "\x00") {
		if !isContent(attr) {
			continue
		}
		n, err := unix.Lgetxattr(from, attr, c.value[:])
		if err == nil {
			err = unix.Lsetxattr(to, attr, c.value[:n], 0)
		}
		if err != nil {
			return pathError("copy the attribute "+attr+" to", full, err)
		}
	}
	return nil
}

// relabel gives the copy at a path the label.
func (c *treeCopy) relabel(path string) error {
	if c.label == "" {
		return nil
	}
	return unix.Lsetxattr(path, "security.selinux", []byte(c.label), 0)
}

// isContent reports whether an attribute belongs to a file as its bytes do. Others are
// what this host's kernel and file systems remember of it.
func isContent(attr string) bool {
	return attr == "security.capability" || strings.HasPrefix(attr, "user.") || strings.HasPrefix(attr, "system.posix_acl_")
}

func pathError(op, path string, err error) error {
	if err == nil {
		return nil
	}
	return &os.PathError{Op: op, Path: path, Err: err}
}
