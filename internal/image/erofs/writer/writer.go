// Package writer makes an EROFS image of a directory. It runs no program: mkfs.erofs would read the names and attributes of an
// image from outside as root, and only with CAP_SYS_ADMIN does it see the attributes with which overlays mark directories.
//
// Images have no compression. A regular file has whole blocks of its own, so that the kernel maps them without a copy, and so
// that a file system that shares blocks (XFS, Btrfs) shares those of the directory with the image:
//
//	block 0     the superblock
//	data        the regular files, in the order in which they were found
//	metadata    the inodes, each with its attributes, and with the content of a short directory or link
//	long        directories and links that do not fit behind their inodes
package writer

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/sys/sysfile"
)

const (
	blockBits = 12
	blockSize = 1 << blockBits
	// maxDepth bounds the directories in a directory: each is open meanwhile.
	maxDepth = 1024
	// smallFile is the size up to which a file is read and written with others, and not copied by the kernel.
	smallFile = 128 << 10
	// maxBlocks is what the format counts.
	maxBlocks = 1 << 32
	// maxAttributes bounds what the kernel has as the attributes of a file, their names and each value.
	maxAttributes = 64 << 10
	// maxMemory bounds what is in memory of all files: names, targets of links, attributes, and inodeMemory and entryMemory for
	// each file and each of its names. Layers are from outside, and their attributes are small where they are compressed.
	maxMemory                = 512 << 20
	inodeMemory, entryMemory = 192, 48
)

// inode is a file of the image, whatever its names.
type inode struct {
	mode, uid, gid, nlink, rdev uint32
	seconds                     int64
	nanoseconds                 uint32
	size                        int64
	attributes                  []byte
	// entries are those of a directory, but for itself and its parent, content the target of a link.
	entries []entry
	parent  *inode
	content []byte

	// block is where the content begins, offset where the inode is in the metadata. inline is set if the content follows it.
	block  int64
	offset int64
	inline bool
}

type entry struct {
	name string
	of   *inode
}

type fileID struct{ dev, ino uint64 }

type builder struct {
	to  *os.File
	out *bufio.Writer
	// at is where out writes next.
	at int64
	// all are the inodes, the root first. named are those with several names.
	all   []*inode
	named map[fileID]*inode
	// memory is how many bytes of maxMemory the writer may still use.
	memory      int64
	list, value []byte
	buffer      []byte
}

// Write writes an EROFS image of the directory dir into the empty file to. Nobody changes the directory meanwhile. Write opens
// only directories and regular files in it. It ends soon after ctx does. Kind Invalid for what an image cannot have.
func Write(ctx context.Context, to *os.File, dir string) error { return write(ctx, to, dir, maxMemory) }

// write is Write with another bound of the memory.
func write(ctx context.Context, to *os.File, dir string, memory int64) error {
	root, err := os.OpenFile(dir, unix.O_DIRECTORY|unix.O_NOFOLLOW, 0)
	if err != nil {
		return err
	}
	b := &builder{
		to: to, out: bufio.NewWriterSize(to, 1<<20), named: map[fileID]*inode{}, memory: memory,
		list: make([]byte, maxAttributes), value: make([]byte, maxAttributes), buffer: make([]byte, smallFile),
	}
	if err := b.skip(blockSize); err != nil {
		return errors.Join(err, root.Close())
	}
	top, err := b.directory(ctx, root, nil, 0)
	if err != nil {
		return fmt.Errorf("cannot make an EROFS image of %s: %w", dir, err)
	}
	top.parent = top
	if err := b.finish(top); err != nil {
		return fmt.Errorf("cannot write an EROFS image of %s: %w", dir, err)
	}
	return nil
}

// directory adds what dir is and what it holds, and closes it.
func (b *builder) directory(ctx context.Context, dir *os.File, parent *inode, depth int) (*inode, error) {
	defer dir.Close()
	if depth > maxDepth {
		return nil, fmt.Errorf("%s: more than %d directories in one another: %w", dir.Name(), maxDepth, errs.Invalid)
	}
	var st unix.Stat_t
	if err := unix.Fstat(int(dir.Fd()), &st); err != nil {
		return nil, &os.PathError{Op: "stat", Path: dir.Name(), Err: err}
	}
	node, err := b.add(dir, ".", &st)
	if err != nil {
		return nil, err
	}
	node.parent, node.nlink = parent, 2
	for {
		names, err := dir.Readdirnames(1024)
		for _, name := range names {
			of, err := b.entry(ctx, dir, name, node, depth)
			if err != nil {
				return nil, err
			}
			if err := b.take(entryMemory + len(name)); err != nil {
				return nil, err
			}
			node.entries = append(node.entries, entry{name, of})
			if of.mode&unix.S_IFMT == unix.S_IFDIR {
				node.nlink++
			}
		}
		if errors.Is(err, io.EOF) {
			node.size = int64(directorySize(node.sorted()))
			return node, nil
		}
		if err != nil {
			return nil, err
		}
	}
}

// entry adds a file of a directory, unless another name of it was found before.
func (b *builder) entry(ctx context.Context, dir *os.File, name string, parent *inode, depth int) (*inode, error) {
	if err := context.Cause(ctx); err != nil {
		return nil, err
	}
	var st unix.Stat_t
	if err := unix.Fstatat(int(dir.Fd()), name, &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return nil, &os.PathError{Op: "stat", Path: dir.Name() + "/" + name, Err: err}
	}
	if st.Mode&unix.S_IFMT == unix.S_IFDIR {
		below, err := sysfile.OpenDirectory(dir, name)
		if err != nil {
			return nil, err
		}
		return b.directory(ctx, below, parent, depth+1)
	}
	id := fileID{st.Dev, st.Ino}
	if known := b.named[id]; known != nil {
		known.nlink++
		return known, nil
	}
	node, err := b.add(dir, name, &st)
	if err != nil {
		return nil, err
	}
	node.nlink = 1
	if st.Nlink > 1 {
		b.named[id] = node
	}
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFREG:
		return node, b.regular(ctx, dir, name, node)
	case unix.S_IFLNK:
		n, err := unix.Readlinkat(int(dir.Fd()), name, b.buffer)
		if err != nil {
			return nil, &os.PathError{Op: "readlink", Path: dir.Name() + "/" + name, Err: err}
		}
		node.content, node.size = []byte(string(b.buffer[:n])), int64(n)
		return node, b.take(n)
	}
	return node, nil
}

// take counts memory that stays until the image is written.
func (b *builder) take(n int) error {
	if b.memory -= int64(n); b.memory < 0 {
		return fmt.Errorf("the names and attributes of its files need more than the %d MiB of memory that a layer may have; use a handler without this snapshotter: %w", maxMemory>>20, errs.Invalid)
	}
	return nil
}

// add adds an inode without content.
func (b *builder) add(dir *os.File, name string, st *unix.Stat_t) (*inode, error) {
	node := &inode{mode: st.Mode, uid: st.Uid, gid: st.Gid, seconds: st.Mtim.Sec, nanoseconds: uint32(st.Mtim.Nsec)}
	if kind := st.Mode & unix.S_IFMT; kind == unix.S_IFCHR || kind == unix.S_IFBLK {
		major, minor := unix.Major(st.Rdev), unix.Minor(st.Rdev)
		node.rdev = minor&0xff | major<<8 | minor&^0xff<<12
	}
	var err error
	if node.attributes, err = b.attributesOf(fmt.Sprintf("/proc/self/fd/%d/%s", dir.Fd(), name)); err != nil {
		return nil, fmt.Errorf("cannot read the attributes of %s/%s: %w", dir.Name(), name, err)
	}
	b.all = append(b.all, node)
	return node, b.take(inodeMemory + len(node.attributes))
}

// attributesOf returns the extended attributes of a file as they follow its inode, nil for none.
func (b *builder) attributesOf(path string) ([]byte, error) {
	n, err := unix.Llistxattr(path, b.list)
	if errors.Is(err, unix.ENOTSUP) || n == 0 && err == nil {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var encoded []byte
	for name := range strings.SplitSeq(strings.TrimSuffix(string(b.list[:n]), "\x00"), "\x00") {
		index, rest := indexOf(name)
		if index == 0 {
			continue // of the file system, or the network
		}
		n, err := unix.Lgetxattr(path, name, b.value)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		encoded = appendAttribute(encoded, index, rest, b.value[:n])
	}
	if len(encoded) > maxAttributes {
		return nil, fmt.Errorf("they have %d bytes, and may have %d: %w", len(encoded), maxAttributes, errs.Invalid)
	}
	if encoded == nil {
		return nil, nil
	}
	return append(make([]byte, attributesHeader), encoded...), nil
}

// regular writes the content of a regular file.
func (b *builder) regular(ctx context.Context, dir *os.File, name string, node *inode) error {
	fd, err := unix.Openat(int(dir.Fd()), name, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		return &os.PathError{Op: "open", Path: dir.Name() + "/" + name, Err: err}
	}
	file := os.NewFile(uintptr(fd), dir.Name()+"/"+name)
	defer file.Close()
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return &os.PathError{Op: "stat", Path: file.Name(), Err: err}
	}
	if node.size = st.Size; node.size == 0 {
		return nil
	}
	node.block = b.at >> blockBits
	if b.at+node.size > maxBlocks<<blockBits {
		return fmt.Errorf("%s: it would be at more than %d bytes of the image: %w", file.Name(), int64(maxBlocks)<<blockBits, errs.Invalid)
	}
	if node.size <= smallFile {
		content := b.buffer[:node.size]
		if _, err := io.ReadFull(file, content); err != nil {
			return err
		}
		if err := b.write(content); err != nil {
			return err
		}
		return b.align()
	}
	if err := b.out.Flush(); err != nil {
		return err
	}
	if err := sysfile.CopyContentAt(ctx, b.to, b.at, file); err != nil {
		return err
	}
	b.at += (node.size + blockSize - 1) &^ (blockSize - 1)
	_, err = b.to.Seek(b.at, io.SeekStart)
	return err
}

func (b *builder) write(data []byte) error {
	b.at += int64(len(data))
	_, err := b.out.Write(data)
	return err
}

// skip writes zeros up to an offset.
func (b *builder) skip(to int64) error {
	var zeros [blockSize]byte
	for b.at < to {
		if err := b.write(zeros[:min(to-b.at, blockSize)]); err != nil {
			return err
		}
	}
	return nil
}

// align writes zeros up to the next block.
func (b *builder) align() error { return b.skip((b.at + blockSize - 1) &^ (blockSize - 1)) }
