package writer

import (
	"testing"

	"golang.org/x/sys/unix"
)

// TestInlineContentIsInTheBlockOfItsInode: kernels before Linux 6.12 read a link that is inline from the block in which its inode is,
// and fail with EUCLEAN if it is not there.
func TestInlineContentIsInTheBlockOfItsInode(t *testing.T) {
	for _, attributes := range []int64{0, 16, 100, 3000, 5000} {
		for _, size := range []int64{1, 20, 59, 2000, 4000, 4032, 4095} {
			for at := int64(0); at < 2*blockSize; at += 4 {
				n := &inode{mode: unix.S_IFLNK, size: size, attributes: make([]byte, attributes)}
				end := n.place(at)
				if n.offset < at || n.offset%slotSize != 0 || n.offset%blockSize > blockSize-inodeSize {
					t.Fatalf("from %d on, an inode is at %d", at, n.offset)
				}
				if !n.inline {
					continue
				}
				if first, last := n.offset/blockSize, (end-1)/blockSize; first != last {
					t.Fatalf("an inode with %d bytes of attributes at %d, and its content of %d bytes, end at %d", attributes, n.offset, size, end)
				}
			}
		}
	}
}
