package fork

import (
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strconv"

	"golang.org/x/sys/unix"
)

// A new process gets a copy of its parent's table of descriptors, and closes the copies at its execve. The
// supervisor's table has several descriptors of each container, so that a start would take longer with each
// of them. The thread that starts a child therefore has a table of its own first.

// table is the table of descriptors of a thread.
type table struct {
	// numbers are those of files in it.
	numbers map[*os.File]int
	// process is a pidfd of this process in it, -1 when the thread uses the table of the process.
	process int
}

// ownTable gives the calling thread a table of its own, with these files. The thread ends afterwards, and
// makes nothing but system calls until then: other files are not open in it, or have other numbers. On a
// kernel that cannot do it (before 5.9) the thread keeps the table of the process.
func (p *Program) ownTable(files []*os.File) (*table, error) {
	t := &table{numbers: make(map[*os.File]int, len(files)), process: -1}
	for _, f := range files {
		if f != nil {
			t.numbers[f] = int(f.Fd())
		}
	}
	if p.kept == 0 || unix.CloseRange(uint(p.kept), math.MaxUint32, unix.CLOSE_RANGE_UNSHARE) != nil {
		return t, nil
	}
	var err error
	if t.process, err = unix.PidfdOpen(os.Getpid(), 0); err != nil {
		return nil, fmt.Errorf("cannot open this process: %w", err)
	}
	for f, number := range t.numbers {
		if t.numbers[f], err = t.take(number); err != nil {
			return nil, err
		}
	}
	return t, nil
}

// take returns the number in the table of a descriptor that has another one in the table of the process.
func (t *table) take(fd int) (int, error) {
	if t.process < 0 {
		return fd, nil
	}
	taken, err := unix.PidfdGetfd(t.process, fd, 0)
	if err != nil {
		return -1, fmt.Errorf("cannot take descriptor %d of this process: %w", fd, err)
	}
	return taken, nil
}

// of returns the number of a file.
func (t *table) of(f *os.File) int { return t.numbers[f] }

// keptDescriptors returns the number above the descriptors that Go's scheduler uses on every thread: without
// them, Go ends the process. It is 0 when the kernel refuses what a table of its own needs.
func keptDescriptors() (int, error) {
	// Go makes them for the first file that it can wait for.
	reader, writer, err := os.Pipe()
	if err != nil {
		return 0, err
	}
	defer reader.Close()
	defer writer.Close()
	self, err := unix.PidfdOpen(os.Getpid(), 0)
	if err != nil {
		return 0, nil //nolint:nilerr // see above
	}
	defer unix.Close(self)
	taken, err := unix.PidfdGetfd(self, int(reader.Fd()), 0)
	if err != nil {
		return 0, nil //nolint:nilerr // see above
	}
	unix.Close(taken)

	const list = "/proc/self/fd"
	entries, err := os.ReadDir(list)
	if err != nil {
		return 0, err
	}
	kept := 0
	for _, entry := range entries {
		number, err := strconv.Atoi(entry.Name())
		if err != nil {
			continue
		}
		switch link, _ := os.Readlink(filepath.Join(list, entry.Name())); link {
		case "anon_inode:[eventpoll]", "anon_inode:[eventfd]":
			kept = max(kept, number+1)
		}
	}
	return kept, nil
}
