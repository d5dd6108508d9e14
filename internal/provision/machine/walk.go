package machine

import (
	"errors"
	"fmt"
	"os"
	"path"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/berthrun/berth/internal/errs"
)

// maxLinks is how many links a path may lead over, as in the kernel.
const maxLinks = 40

// walk opens a path from the root of this machine, one name after the other, without following a
// link that a user other than root (or the current user) created: that user would choose what root
// changes. The descriptor (O_PATH) stays where it is when names change.
func walk(p string) (*os.File, error) {
	at, err := open(unix.AT_FDCWD, "/", unix.O_DIRECTORY)
	if err != nil {
		return nil, err
	}
	names := strings.Split(p, "/")
	for links := 0; len(names) > 0; {
		name := names[0]
		names = names[1:]
		if name == "" || name == "." {
			continue
		}
		next, err := open(int(at.Fd()), name, 0)
		if err != nil {
			at.Close()
			return nil, fmt.Errorf("%s of %s: %w", name, p, err)
		}
		target, err := linkTarget(next, p, name)
		if err != nil || target == "" {
			at.Close()
			if at = next; err != nil {
				at.Close()
				return nil, err
			}
			continue
		}
		next.Close()
		if links++; links > maxLinks {
			at.Close()
			return nil, fmt.Errorf("%s: %w", p, unix.ELOOP)
		}
		names = append(strings.Split(target, "/"), names...)
		if path.IsAbs(target) {
			at.Close()
			if at, err = open(unix.AT_FDCWD, "/", unix.O_DIRECTORY); err != nil {
				return nil, err
			}
		}
	}
	return at, nil
}

// open opens one name, and not what a link points to.
func open(dir int, name string, flags int) (*os.File, error) {
	fd, err := unix.Openat(dir, name, unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC|flags, 0)
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(fd), name), nil
}

// linkTarget is where a link points; "" for what is no link.
func linkTarget(f *os.File, p, name string) (string, error) {
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil || st.Mode&unix.S_IFMT != unix.S_IFLNK {
		return "", err
	}
	if st.Uid != 0 && int(st.Uid) != os.Geteuid() {
		return "", fmt.Errorf("%s leads over the link %s, which belongs to user %d; root does not follow it: %w", p, name, st.Uid, errs.State)
	}
	target := make([]byte, unix.PathMax)
	n, err := unix.Readlinkat(int(f.Fd()), "", target)
	if err == nil && n == 0 {
		err = errors.New("the link is empty")
	}
	return string(target[:n]), err
}

// byFD is the name of what a descriptor has open.
func byFD(f *os.File) string { return "/proc/self/fd/" + strconv.Itoa(int(f.Fd())) }
