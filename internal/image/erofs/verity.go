package erofs

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/berthrun/berth/internal/errs"
)

// fs-verity makes a file read-only, and compares all that is read of it with a tree of digests. The digest of a file is the one
// of this tree and the size, so that user space can compute it where the file system has no fs-verity.

const (
	verityBlock      = 4096
	verityDescriptor = 256
	veritySHA256     = 1
)

// changedError says how the file of a layer is not what berth has written.
type changedError struct{ path, how string }

func (e *changedError) Error() string {
	return fmt.Sprintf("its file %s was changed: %s; pull the image again", e.path, e.how)
}

// imageStat is what is known of a file without reading it.
type imageStat struct{ size, modified, bytes int64 }

func statImage(path string) (imageStat, error) {
	var st unix.Stat_t
	if err := unix.Lstat(path, &st); err != nil {
		return imageStat{}, &os.PathError{Op: "stat", Path: path, Err: err}
	}
	if st.Mode&unix.S_IFMT != unix.S_IFREG {
		return imageStat{}, fmt.Errorf("%s is not a regular file: %w", path, errs.Invalid)
	}
	return imageStat{st.Size, st.Mtim.Nano(), st.Blocks * 512}, nil
}

// seal enables fs-verity for the file of a layer, where the file system has it, and records by what to know the file again.
func seal(ctx context.Context, path string, r *record) error {
	file, err := os.Open(path)
	if err != nil {
		return err
	}
	defer file.Close()
	if err := whileBusy(ctx, func() error { return enableVerity(file) }); err != nil && !isWithoutVerity(err) {
		return fmt.Errorf("cannot enable fs-verity for %s: %w", path, err)
	} else if err == nil {
		r.Verity = true
	}
	st, err := statImage(path)
	if err != nil {
		return err
	}
	r.Size, r.Modified = st.size, st.modified
	if r.Verity {
		r.Digest, err = measureVerity(file)
	} else {
		r.Digest, err = verityDigest(ctx, file, r.Size)
	}
	return err
}

// verify compares the file of a layer with its record. It returns a changedError if they differ. It reads the content, if the
// kernel does not know its digest, and if size and time are not those of the record or whole is set.
func verify(ctx context.Context, path string, r record, whole bool) error {
	st, err := statImage(path)
	if errors.Is(err, os.ErrNotExist) || errors.Is(err, errs.Invalid) {
		return &changedError{path, "it is not there any more"}
	}
	if err != nil {
		return err
	}
	if st.size != r.Size {
		return &changedError{path, fmt.Sprintf("it has %d bytes, and had %d", st.size, r.Size)}
	}
	file, err := os.OpenFile(path, os.O_RDONLY|unix.O_NOFOLLOW, 0)
	if err != nil {
		return err
	}
	defer file.Close()
	digest, err := measureVerity(file)
	switch {
	case isWithoutVerity(err) && !r.Verity && !whole && st.modified == r.Modified:
		return nil
	case isWithoutVerity(err): // a copy of the store is on another file system
		digest, err = verityDigest(ctx, file, r.Size)
	}
	if err != nil {
		return fmt.Errorf("cannot compare %s with its digest: %w", path, err)
	}
	if digest != r.Digest {
		return &changedError{path, fmt.Sprintf("its fs-verity digest is %s, and was %s when berth wrote it", digest, r.Digest)}
	}
	return nil
}

// compare reads the file of a layer, also if the kernel knows its digest: the kernel compares what it reads, and has not read it.
func compare(ctx context.Context, path string, r record) error {
	if err := verify(ctx, path, r, true); err != nil {
		return err
	}
	file, err := os.Open(path)
	if err != nil {
		return err
	}
	defer file.Close()
	digest, err := verityDigest(ctx, file, r.Size)
	switch {
	case errors.Is(err, unix.EIO):
		return &changedError{path, "it cannot be read: " + err.Error()}
	case err == nil && digest != r.Digest:
		return &changedError{path, fmt.Sprintf("its fs-verity digest is %s, and was %s when berth wrote it", digest, r.Digest)}
	}
	return err
}

// verityEnable and verityMeasured are arguments of the kernel.
type verityEnable struct {
	version, algorithm, block, saltSize uint32
	salt                                uint64
	signatureSize, _                    uint32
	signature                           uint64
	_                                   [11]uint64
}

type verityMeasured struct {
	algorithm, size uint16
	digest          [64]byte
}

func enableVerity(file *os.File) error {
	arg := verityEnable{version: 1, algorithm: veritySHA256, block: verityBlock}
	_, _, errno := unix.Syscall(unix.SYS_IOCTL, file.Fd(), unix.FS_IOC_ENABLE_VERITY, uintptr(unsafe.Pointer(&arg)))
	if errno != 0 && errno != unix.EEXIST {
		return errno
	}
	return nil
}

// busyPause is between two calls for a file that a process may write to, busyTries bounds them.
const (
	busyPause = 5 * time.Millisecond
	busyTries = 2000
)

// whileBusy calls enable again while it fails because a process may write to the file: one that berth has just forked has its
// descriptors until it runs its program.
func whileBusy(ctx context.Context, enable func() error) (err error) {
	for range busyTries {
		if err = enable(); !errors.Is(err, unix.ETXTBSY) {
			return err
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(busyPause):
		}
	}
	return err
}

// isWithoutVerity reports whether an error of these calls says that the kernel, the file system or the file has no fs-verity.
func isWithoutVerity(err error) bool {
	// EINVAL: the kernel has no blocks of this size with its pages.
	for _, errno := range []error{unix.ENOTTY, unix.EOPNOTSUPP, unix.ENODATA, unix.EINVAL, unix.ENOSYS} {
		if errors.Is(err, errno) {
			return true
		}
	}
	return false
}

// measureVerity asks the kernel for the digest of a file.
func measureVerity(file *os.File) (string, error) {
	arg := verityMeasured{size: 64}
	_, _, errno := unix.Syscall(unix.SYS_IOCTL, file.Fd(), unix.FS_IOC_MEASURE_VERITY, uintptr(unsafe.Pointer(&arg)))
	switch {
	case errno != 0:
		return "", errno
	case arg.algorithm != veritySHA256 || arg.size != sha256.Size:
		return fmt.Sprintf("of algorithm %d", arg.algorithm), nil
	}
	return fmt.Sprintf("sha256:%x", arg.digest[:arg.size]), nil
}

// verityDigest computes what measureVerity returns.
func verityDigest(ctx context.Context, file *os.File, size int64) (string, error) {
	if _, err := file.Seek(0, io.SeekStart); err != nil {
		return "", err
	}
	root, err := rootOf(ctx, file)
	if err != nil {
		return "", err
	}
	var descriptor [verityDescriptor]byte
	descriptor[0], descriptor[1], descriptor[2] = 1, veritySHA256, 12
	binary.LittleEndian.PutUint64(descriptor[8:], uint64(size))
	copy(descriptor[16:], root)
	return fmt.Sprintf("sha256:%x", sha256.Sum256(descriptor[:])), nil
}

// digestTree has of each level of the tree the block that is not full yet, so that its size does not depend on that of the file.
type digestTree [][]byte

// add adds the digest of a block to a level, and that of the level's own block to the next one once it is full.
func (t *digestTree) add(level int, block []byte) {
	if level == len(*t) {
		*t = append(*t, make([]byte, 0, verityBlock))
	}
	sum := sha256.Sum256(block)
	at := append((*t)[level], sum[:]...)
	if len(at) == verityBlock {
		t.add(level+1, at)
		at = at[:0]
	}
	(*t)[level] = at
}

// root ends the tree, and returns its root: the one digest of the topmost level; nil if the file is empty.
func (t *digestTree) root() []byte {
	for level := 0; level < len(*t); level++ {
		at := (*t)[level]
		if level == len(*t)-1 && len(at) == sha256.Size {
			return at
		}
		if len(at) > 0 {
			clear(at[len(at):verityBlock])
			t.add(level+1, at[:verityBlock])
		}
	}
	return nil
}

// rootOf returns the root of the tree over the blocks of r, of which the last one is filled up with zeros.
func rootOf(ctx context.Context, r io.Reader) ([]byte, error) {
	var tree digestTree
	buffer := make([]byte, 256*verityBlock)
	for {
		n, err := io.ReadFull(r, buffer)
		if last := n % verityBlock; last > 0 {
			clear(buffer[n : n-last+verityBlock])
			n += verityBlock - last
		}
		for at := 0; at < n; at += verityBlock {
			tree.add(0, buffer[at:at+verityBlock])
		}
		switch {
		case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
			return tree.root(), nil
		case err != nil:
			return nil, err
		}
		if err := context.Cause(ctx); err != nil {
			return nil, err
		}
	}
}
