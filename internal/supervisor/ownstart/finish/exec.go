package finish

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/berthrun/berth/internal/supervisor/ownstart/failure"
)

// Exec executes the program that Become has found. It returns only on error. It closes the descriptors
// that Become has kept, also those that are close-on-exec: the program's path could name one of them,
// and lead to a file of the host. keep, when it is not negative, is the one to report the error on: a
// close-on-exec socket, which no path leads through.
func (p *Process) Exec(keep int) error {
	for _, fd := range p.kept {
		if fd != keep {
			unix.Close(fd)
		}
	}
	for {
		err := syscall.Exec(p.program, p.Args, p.Env)
		hint := ""
		switch {
		case errors.Is(err, syscall.EINTR):
			continue
		case errors.Is(err, syscall.ENOENT):
			hint = " (its interpreter or loader is missing)"
		case errors.Is(err, syscall.ENOEXEC):
			hint = " (it is for another machine, or a script without an interpreter)"
		}
		return failure.New(failure.OfProgram, p.Args[0], "exec: %q: %w%s", p.Args[0], err, hint)
	}
}

// keepOnly closes all descriptors but 0 to 2 and those to keep, in all threads. It is called before the
// filter is loaded, which may not allow it. Those on which Go's runtime waits in other threads stay: it
// crashes without them. Nothing leads through them, and the execve closes them.
func (p *Process) keepOnly(proc Procfs, keep []int) error {
	p.kept = append(keep, int(proc))
	dir, err := proc.open("self/fd", unix.O_RDONLY|unix.O_DIRECTORY)
	if err != nil {
		return err
	}
	defer unix.Close(dir)
	open, err := descriptors(dir)
	if err != nil {
		return fmt.Errorf("list /proc/self/fd: %w", err)
	}
	target := make([]byte, 64)
	for _, fd := range open {
		if fd < 3 || fd == dir || slices.Contains(p.kept, fd) {
			continue
		}
		n, err := unix.Readlinkat(dir, strconv.Itoa(fd), target)
		if err != nil {
			return fmt.Errorf("read /proc/self/fd/%d: %w", fd, err)
		}
		if kind := string(target[:n]); kind == "anon_inode:[eventpoll]" || kind == "anon_inode:[eventfd]" {
			unix.CloseOnExec(fd)
			continue
		}
		unix.Close(fd)
	}
	return nil
}

// descriptors returns the numbers in a directory of descriptors.
func descriptors(dir int) ([]int, error) {
	var open []int
	buf := make([]byte, 4096)
	for {
		n, err := unix.ReadDirent(dir, buf)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil || n == 0 {
			return open, err
		}
		_, _, names := unix.ParseDirent(buf[:n], -1, nil)
		for _, name := range names {
			fd, err := strconv.Atoi(strings.TrimSpace(name))
			if err != nil {
				return nil, err
			}
			open = append(open, fd)
		}
	}
}
