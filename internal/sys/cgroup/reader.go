package cgroup

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/berthrun/berth/internal/errs"
)

// reader reads files of cgroups. A file that is not there is empty; the first
// other error stays.
type reader struct {
	read   int
	err    error
	buffer []byte
}

// result returns the first error, or kind NotFound when there was nothing to read.
func (r *reader) result(paths Paths) error {
	if r.err != nil {
		return fmt.Errorf("cannot read a cgroup's figures: %w", r.err)
	}
	if r.read == 0 {
		return fmt.Errorf("cgroup %v: %w", paths, errs.NotFound)
	}
	return nil
}

// roomForFile is enough for most of these files, roomForNumbers for the smaller ones.
const (
	roomForFile    = 4 << 10
	roomForNumbers = 512
)

// maxFile is more than any of these files holds; a longer one is cut.
const maxFile = 64 << 10

// file returns what is valid until the next call. A pass over a full node reads
// thousands of these files, so nothing but the three system calls is spent on each.
func (r *reader) file(dir, name string) []byte {
	if dir == "" || r.err != nil {
		return nil
	}
	fd, err := syscall.Open(dir+"/"+name, syscall.O_RDONLY|syscall.O_CLOEXEC, 0)
	if err == nil {
		defer func() { _ = syscall.Close(fd) }() // of a file that was only read
		err = r.fill(fd)
	}
	switch {
	case err == nil:
		r.read++
		return r.buffer
	case absent(err):
		return nil
	}
	r.err = fmt.Errorf("%s/%s: %w", dir, name, err)
	return nil
}

// surelyWhole is the size below which an answer that left room is the whole file: the kernel writes these
// files by pages, and stops early only before a part that has no room on the page.
const surelyWhole = 2 << 10

// fill reads the descriptor to its end.
func (r *reader) fill(fd int) error {
	if r.buffer == nil {
		r.buffer = make([]byte, 0, roomForFile)
	}
	r.buffer = r.buffer[:0]
	for len(r.buffer) < maxFile {
		if len(r.buffer) == cap(r.buffer) {
			r.buffer = slices.Grow(r.buffer, len(r.buffer))
		}
		n, err := syscall.Read(fd, r.buffer[len(r.buffer):cap(r.buffer)])
		if errors.Is(err, syscall.EINTR) {
			continue
		}
		if err != nil || n == 0 {
			return err
		}
		r.buffer = r.buffer[:len(r.buffer)+n]
		if n < surelyWhole && len(r.buffer) < cap(r.buffer) {
			return nil
		}
	}
	return nil
}

// absent reports whether err says that a cgroup, or a file in it, is not there: it was
// removed, or this cgroup has no such file.
func absent(err error) bool {
	return errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENODEV) || errors.Is(err, syscall.EOPNOTSUPP)
}

func (r *reader) number(dir, name string) uint64 { return parseNumber(r.file(dir, name)) }

func (r *reader) text(dir, name string) string { return strings.TrimSpace(string(r.file(dir, name))) }

func (r *reader) limit(dir, name string) uint64 {
	data := bytes.TrimSpace(r.file(dir, name))
	if len(data) == 0 || string(data) == "max" {
		return NoLimit
	}
	return parseNumber(data)
}

func (r *reader) keyed(dir, name string) keyed { return keyed(r.file(dir, name)) }

// keyed is text of lines "KEY NUMBER". Few keys of many are wanted, so they are
// looked for.
type keyed []byte

func (k keyed) get(key string) uint64 {
	n, _ := k.find(key)
	return n
}

func (k keyed) find(key string) (value uint64, ok bool) {
	for rest := []byte(k); ; {
		i := bytes.Index(rest, []byte(key))
		if i < 0 {
			return 0, false
		}
		start := i == 0 || rest[i-1] == '\n'
		rest = rest[i+len(key):]
		if start && len(rest) > 0 && rest[0] == ' ' {
			line, _, _ := bytes.Cut(rest[1:], []byte("\n"))
			n, err := strconv.ParseUint(string(bytes.TrimSpace(line)), 10, 64)
			return n, err == nil
		}
	}
}

func parseNumber(data []byte) uint64 {
	n, err := strconv.ParseUint(string(bytes.TrimSpace(data)), 10, 64)
	if err != nil {
		return 0
	}
	return n
}

// micro turns microseconds into nanoseconds.
func micro(usec uint64) uint64 { return usec * uint64(time.Microsecond) }
