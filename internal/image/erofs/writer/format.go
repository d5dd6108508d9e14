package writer

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/berthrun/berth/internal/errs"
)

// The numbers of the format, as fs/erofs/erofs_fs.h of the kernel has them.
const (
	magic             = 0xe0f5e1e2
	superOffset       = 1024
	inodeSize         = 64
	slotSize          = 32 // what the number of an inode counts
	entrySize         = 12
	attributesHeader  = 12
	firstInode        = 2 * slotSize // no inode has the number 0
	extendedInode     = 1
	layoutPlain       = 0 << 1
	layoutInline      = 2 << 1
	compatHasChecksum = 1 << 0
	compatModified    = 1 << 1
)

// indexOf returns the number of the prefix of an attribute's name, and what follows it; 0 for one that images do not have.
func indexOf(name string) (index byte, rest string) {
	switch name {
	case "system.posix_acl_access":
		return 2, ""
	case "system.posix_acl_default":
		return 3, ""
	}
	for prefix, index := range map[string]byte{"user.": 1, "trusted.": 4, "security.": 6} {
		if rest, ok := strings.CutPrefix(name, prefix); ok {
			return index, rest
		}
	}
	return 0, ""
}

func appendAttribute(to []byte, index byte, name string, value []byte) []byte {
	to = append(to, byte(len(name)), index)
	to = binary.LittleEndian.AppendUint16(to, uint16(len(value)))
	to = append(append(to, name...), value...)
	return append(to, make([]byte, -len(to)&3)...)
}

// listed is an entry of a directory as it is written.
type listed struct {
	name string
	of   *inode
}

// sorted returns the entries of a directory in the order in which the kernel looks for them.
func (n *inode) sorted() []listed {
	all := []listed{{".", n}, {"..", n.parent}}
	for _, e := range n.entries {
		all = append(all, listed(e))
	}
	slices.SortFunc(all, func(a, b listed) int { return cmp.Compare(a.name, b.name) })
	return all
}

// blocksOf cuts the entries of a directory into those of each block.
func blocksOf(all []listed) [][]listed {
	var blocks [][]listed
	begin, used := 0, 0
	for i, e := range all {
		if need := entrySize + len(e.name); used+need > blockSize {
			blocks = append(blocks, all[begin:i])
			begin, used = i, need
		} else {
			used += need
		}
	}
	return append(blocks, all[begin:])
}

func sizeOfBlock(block []listed) (size int) {
	for _, e := range block {
		size += entrySize + len(e.name)
	}
	return size
}

func directorySize(all []listed) int {
	blocks := blocksOf(all)
	return (len(blocks)-1)*blockSize + sizeOfBlock(blocks[len(blocks)-1])
}

// directoryContent is the content of a directory, once all inodes have their numbers.
func directoryContent(all []listed) []byte {
	var content []byte
	for _, block := range blocksOf(all) {
		content = append(content, make([]byte, -len(content)&(blockSize-1))...)
		nameAt := entrySize * len(block)
		for _, e := range block {
			content = binary.LittleEndian.AppendUint64(content, uint64(e.of.number()))
			content = binary.LittleEndian.AppendUint16(content, uint16(nameAt))
			content = append(content, typeOf(e.of.mode), 0)
			nameAt += len(e.name)
		}
		for _, e := range block {
			content = append(content, e.name...)
		}
	}
	return content
}

func typeOf(mode uint32) byte {
	return map[uint32]byte{
		unix.S_IFREG: 1, unix.S_IFDIR: 2, unix.S_IFCHR: 3, unix.S_IFBLK: 4, unix.S_IFIFO: 5, unix.S_IFSOCK: 6, unix.S_IFLNK: 7,
	}[mode&unix.S_IFMT]
}

func (n *inode) number() int64 { return n.offset / slotSize }

// kept reports whether the content is with the metadata.
func (n *inode) kept() bool {
	kind := n.mode & unix.S_IFMT
	return kind == unix.S_IFDIR || kind == unix.S_IFLNK
}

func (n *inode) contentOf() []byte {
	if n.mode&unix.S_IFMT == unix.S_IFDIR {
		return directoryContent(n.sorted())
	}
	return n.content
}

// place chooses where an inode is in the metadata, from an offset on, and returns the offset behind it.
func (n *inode) place(at int64) int64 {
	at = (at + slotSize - 1) &^ (slotSize - 1)
	head := int64(inodeSize + len(n.attributes))
	nextBlock := (at + blockSize - 1) &^ (blockSize - 1)
	if at%blockSize > blockSize-inodeSize {
		at = nextBlock
	}
	// In the block of the inode: kernels before Linux 6.12 look for the content of a link there alone.
	fits := func(at int64) bool { return at%blockSize+head+n.size <= blockSize }
	switch {
	case !n.kept() || n.size == 0:
	case fits(at):
		n.inline = true
	case fits(nextBlock):
		n.inline, at = true, nextBlock
	}
	n.offset = at
	if n.inline {
		return at + head + n.size
	}
	return at + head
}

// finish writes what follows the data, and the superblock.
func (b *builder) finish(top *inode) error {
	metadata := b.at
	end := int64(firstInode)
	for _, node := range b.all {
		end = node.place(end)
	}
	long := (metadata + end + blockSize - 1) &^ (blockSize - 1)
	for _, node := range b.all {
		if node.kept() && !node.inline {
			node.block = long >> blockBits
			long += (node.size + blockSize - 1) &^ (blockSize - 1)
		}
	}
	if long > maxBlocks<<blockBits {
		return fmt.Errorf("the image would have more than %d bytes: %w", int64(maxBlocks)<<blockBits, errs.Invalid)
	}
	for i, node := range b.all {
		if err := b.skip(metadata + node.offset); err != nil {
			return err
		}
		if err := b.write(append(node.encode(i), node.attributes...)); err != nil {
			return err
		}
		if node.inline {
			if err := b.write(node.contentOf()); err != nil {
				return err
			}
		}
	}
	for _, node := range b.all {
		if !node.kept() || node.inline {
			continue
		}
		if err := b.skip(node.block << blockBits); err != nil {
			return err
		}
		if err := b.write(node.contentOf()); err != nil {
			return err
		}
	}
	if err := b.align(); err != nil {
		return err
	}
	if err := b.out.Flush(); err != nil {
		return err
	}
	_, err := b.to.WriteAt(b.superblock(top, metadata), 0)
	return err
}

// encode returns the inode of a number.
func (n *inode) encode(i int) []byte {
	le := binary.LittleEndian
	data := make([]byte, inodeSize)
	layout := uint16(layoutPlain)
	if n.inline {
		layout = layoutInline
	}
	le.PutUint16(data[0:], extendedInode|layout)
	if n.attributes != nil {
		le.PutUint16(data[2:], uint16((len(n.attributes)-attributesHeader)/4+1))
	}
	le.PutUint16(data[4:], uint16(n.mode))
	le.PutUint64(data[8:], uint64(n.size))
	place := uint32(n.block)
	if kind := n.mode & unix.S_IFMT; kind == unix.S_IFCHR || kind == unix.S_IFBLK {
		place = n.rdev
	}
	le.PutUint32(data[16:], place)
	le.PutUint32(data[20:], uint32(i+1))
	le.PutUint32(data[24:], n.uid)
	le.PutUint32(data[28:], n.gid)
	le.PutUint64(data[32:], uint64(n.seconds))
	le.PutUint32(data[40:], n.nanoseconds)
	le.PutUint32(data[44:], n.nlink)
	return data
}

// superblock returns the first block. It has nothing of this host, so that a directory always makes the same image.
func (b *builder) superblock(top *inode, metadata int64) []byte {
	le := binary.LittleEndian
	block := make([]byte, blockSize)
	super := block[superOffset:]
	le.PutUint32(super[0:], magic)
	le.PutUint32(super[8:], compatHasChecksum|compatModified)
	super[12] = blockBits
	le.PutUint16(super[14:], uint16(top.number()))
	le.PutUint64(super[16:], uint64(len(b.all)))
	le.PutUint32(super[36:], uint32(b.at>>blockBits))
	le.PutUint32(super[40:], uint32(metadata>>blockBits))
	// The kernel does not invert the sum at its end.
	le.PutUint32(super[4:], ^crc32.Checksum(super, crc32.MakeTable(crc32.Castagnoli)))
	return block
}
