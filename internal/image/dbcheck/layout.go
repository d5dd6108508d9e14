package dbcheck

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"syscall"

	"go.etcd.io/bbolt"
)

// bbolt has checksums only for its two meta pages. But it writes all other pages in one way: the keys and values of a page
// follow its list of elements without gaps, in the order of the list, and a page is as long as its elements need. A changed
// number in the header of a page or of an element breaks this, so that bbolt would silently leave out entries, read
// garbage, or panic when it writes. What is left are changed bits in keys and values, and in the flag that an element is a
// bucket: a start compares these with what it knows from elsewhere, such as package crosscheck.

const (
	headerSize  = 16 // of a page: id, flags, count, overflow
	elementSize = 16 // of a leaf: flags, position, sizes of key and value; of a branch: position, size of the key, page
	bucketSize  = 16 // of a bucket in front of its page: root page, sequence

	branchFlag = 1
	leafFlag   = 2
	bucketFlag = 1
)

// maxDepth bounds the pages and buckets above a page.
const maxDepth = 64

// layout follows the pages of a database.
type layout struct {
	data []byte
	size uint64 // of a page
	seen map[uint64]bool
}

// checkLayout returns an error if a page is not as bbolt writes it. path is the file of the transaction's database.
func checkLayout(path string, tx *bbolt.Tx) (err error) {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	// A mapping does not count as memory of this process.
	data, err := syscall.Mmap(int(f.Fd()), 0, int(tx.Size()), syscall.PROT_READ, syscall.MAP_SHARED)
	if err != nil {
		return fmt.Errorf("cannot map %s: %w", path, err)
	}
	defer func() { err = errors.Join(err, syscall.Munmap(data)) }()
	l := &layout{data: data, size: uint64(tx.DB().Info().PageSize), seen: map[uint64]bool{}}
	return l.follow(uint64(tx.Cursor().Bucket().Root()), 0)
}

// follow checks a page and all below it.
func (l *layout) follow(id uint64, depth int) error {
	pages := uint64(len(l.data)) / l.size
	if id < 2 || id >= pages || l.seen[id] || depth > maxDepth {
		return fmt.Errorf("page %d is out of range, or used twice", id)
	}
	l.seen[id] = true
	head := l.data[id*l.size:]
	span := uint64(binary.NativeEndian.Uint32(head[12:])) + 1
	if binary.NativeEndian.Uint64(head) != id || span > pages-id {
		return fmt.Errorf("page %d has a wrong number or length", id)
	}
	used, err := l.node(head[:span*l.size], depth)
	if err != nil {
		return fmt.Errorf("page %d: %w", id, err)
	}
	if used == headerSize && depth > 0 {
		return fmt.Errorf("page %d has no elements", id)
	}
	if need := (uint64(used) + l.size - 1) / l.size; need != span {
		return fmt.Errorf("page %d is %d pages long, its elements need %d", id, span, need)
	}
	return nil
}

// node checks the elements of a page, and all below it. used is how many bytes the page needs.
func (l *layout) node(page []byte, depth int) (used int, err error) {
	if len(page) < headerSize {
		return 0, errors.New("it has no room for its header")
	}
	flags, count := binary.NativeEndian.Uint16(page[8:]), int(binary.NativeEndian.Uint16(page[10:]))
	if flags != leafFlag && flags != branchFlag || flags == branchFlag && count == 0 {
		return 0, fmt.Errorf("it has the flags %#x and %d elements", flags, count)
	}
	next := headerSize + count*elementSize
	if next > len(page) {
		return 0, fmt.Errorf("it has no room for its %d elements", count)
	}
	var last []byte
	for i := range count {
		at := headerSize + i*elementSize
		e := element{page[at : at+elementSize : at+elementSize], flags == leafFlag}
		key, value, err := e.data(page, at, next)
		if err == nil && bytes.Compare(last, key) >= 0 {
			err = errors.New("its key is not greater than the one before")
		}
		if err == nil {
			err = l.below(e, value, depth)
		}
		if err != nil {
			return 0, fmt.Errorf("element %d: %w", i, err)
		}
		last, next = key, next+len(key)+len(value)
	}
	return next, nil
}

// below checks what an element leads to: the page of a branch, or the pages of a bucket.
func (l *layout) below(e element, value []byte, depth int) error {
	if !e.leaf {
		return l.follow(e.page(), depth+1)
	}
	switch e.flags() {
	case 0:
		return nil
	case bucketFlag:
	default:
		return fmt.Errorf("it has the flags %#x", e.flags())
	}
	if len(value) < bucketSize {
		return errors.New("it is a bucket of a few bytes")
	}
	if root := binary.NativeEndian.Uint64(value); root != 0 {
		if len(value) != bucketSize {
			return errors.New("it is a bucket with a page of its own and one in place")
		}
		return l.follow(root, depth+1)
	}
	if depth > maxDepth {
		return errors.New("it has too many buckets above it")
	}
	inPlace := value[bucketSize:]
	used, err := l.node(inPlace, depth+1)
	if err == nil && used != len(inPlace) {
		err = fmt.Errorf("its bucket has %d bytes, its elements need %d", len(inPlace), used)
	}
	return err
}

// element is an entry in the list of a page.
type element struct {
	raw  []byte
	leaf bool
}

func (e element) number(i int) uint32 { return binary.NativeEndian.Uint32(e.raw[4*i:]) }

func (e element) flags() uint32 { return e.number(0) }

func (e element) page() uint64 { return binary.NativeEndian.Uint64(e.raw[8:]) }

// data returns key and value of an element, which is at a position of a page. They must begin at next.
func (e element) data(page []byte, at, next int) (key, value []byte, err error) {
	pos, keySize, valueSize := e.number(0), e.number(1), uint32(0)
	if e.leaf {
		pos, keySize, valueSize = e.number(1), e.number(2), e.number(3)
	}
	end := uint64(next) + uint64(keySize) + uint64(valueSize)
	if uint64(at)+uint64(pos) != uint64(next) || keySize == 0 || end > uint64(len(page)) {
		return nil, nil, errors.New("its key or value is not where bbolt writes it")
	}
	return page[next : next+int(keySize)], page[next+int(keySize) : end], nil
}
