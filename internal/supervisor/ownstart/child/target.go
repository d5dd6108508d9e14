package child

import (
	"errors"
	"fmt"
	"path"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/berthrun/berth/internal/supervisor/ownstart/order"
)

// Access of what is made on the way to a mount point.
const (
	directoryMode = 0o755
	fileMode      = 0o644
)

// open opens a path below the root as a path. Links lead to places below the root; those of procfs to
// descriptors, and so out of it, are refused.
func (c *container) open(name string, flags uint64) (int, error) {
	return openBelow(c.root, strings.TrimPrefix(clean(name), "/"), flags)
}

// openBelow is open for a path below another root.
func openBelow(root int, name string, flags uint64) (int, error) {
	how := &unix.OpenHow{
		Flags:   unix.O_PATH | unix.O_CLOEXEC | flags,
		Resolve: unix.RESOLVE_IN_ROOT | unix.RESOLVE_NO_MAGICLINKS,
	}
	for {
		fd, err := unix.Openat2(root, name, how)
		// EAGAIN: something was renamed meanwhile, and the kernel cannot say that the path stays
		// below the root.
		if err == unix.EINTR || err == unix.EAGAIN {
			continue
		}
		return fd, err
	}
}

// openProtected opens a path that is to be masked or made read-only. One in procfs or sysfs is looked up
// from the root of that mount. A process that renames files in the root filesystem could make the path
// lead elsewhere, and nothing would be protected.
func (c *container) openProtected(name string) (int, error) {
	name = clean(name)
	for place, tree := range c.kernel {
		rest, below := strings.CutPrefix(name, place)
		if below && (rest == "" || rest[0] == '/') {
			return openBelow(tree, "."+rest, 0)
		}
	}
	return c.open(name, 0)
}

// clean returns a path from the root, without "..".
func clean(name string) string {
	if name = path.Clean("/" + name); name != "/" {
		return name
	}
	return "/."
}

// makeDir returns a directory below the root, as a path. It makes what is missing.
func (c *container) makeDir(name string) (int, error) {
	fd, err := c.open(name, unix.O_DIRECTORY)
	if !isAbsent(err) {
		return fd, err
	}
	if name, err = c.expand(name); err != nil {
		return -1, err
	}
	parts := strings.Split(strings.TrimPrefix(clean(name), "/"), "/")
	// The longest path that exists.
	made := 0
	for i := len(parts) - 1; i >= 0; i-- {
		fd, err = c.open(strings.Join(parts[:i], "/"), unix.O_DIRECTORY)
		if err == nil {
			made = i
			break
		}
		if !isAbsent(err) {
			return -1, err
		}
	}
	for _, part := range parts[made:] {
		if err := unix.Mkdirat(fd, part, directoryMode); err != nil && err != unix.EEXIST {
			unix.Close(fd)
			return -1, fmt.Errorf("mkdir %s: %w", part, err)
		}
		// A link was not there before.
		next, err := unix.Openat(fd, part, unix.O_PATH|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
		unix.Close(fd)
		if err != nil {
			return -1, fmt.Errorf("open %s: %w", part, err)
		}
		fd = next
	}
	return fd, nil
}

// maxLinks is how many links a path may have, as for the kernel.
const maxLinks = 40

// expand replaces the links of a path, also those that lead to what is not there: many images have a link
// /var/run to /run, and no /run.
func (c *container) expand(name string) (string, error) {
	rest := strings.Split(clean(name), "/")
	var done []string
	for links := 0; len(rest) > 0; {
		part := rest[0]
		rest = rest[1:]
		switch part {
		case "", ".":
			continue
		case "..":
			done = done[:max(0, len(done)-1)]
			continue
		}
		target, err := c.readLink(strings.Join(append(done, part), "/"))
		if err != nil {
			return "", err
		}
		if target == "" {
			done = append(done, part)
			continue
		}
		if links++; links > maxLinks {
			return "", unix.ELOOP
		}
		if target[0] == '/' {
			done = nil
		}
		rest = append(strings.Split(target, "/"), rest...)
	}
	return "/" + strings.Join(done, "/"), nil
}

// readLink returns what a link says, "" for what is no link or is not there.
func (c *container) readLink(name string) (string, error) {
	fd, err := c.open(name, unix.O_NOFOLLOW)
	if isAbsent(err) {
		return "", nil
	}
	if err != nil {
		return "", err
	}
	defer unix.Close(fd)
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil || st.Mode&unix.S_IFMT != unix.S_IFLNK {
		return "", err
	}
	buf := make([]byte, unix.PathMax)
	n, err := unix.Readlinkat(fd, "", buf)
	return string(buf[:max(0, n)]), err
}

// makeParent returns the directory of name, as makeDir does, and the last element of name.
func (c *container) makeParent(name string) (dir int, base string, err error) {
	parent, base := path.Split(clean(name))
	dir, err = c.makeDir(parent)
	return dir, base, err
}

// mountPoint returns the mount point name, as a path. It makes what is missing, and reports that: a file
// when asFile.
func (c *container) mountPoint(name string, asFile bool) (fd int, made bool, err error) {
	fd, err = c.open(name, 0)
	if !isAbsent(err) {
		return fd, false, err
	}
	if !asFile {
		fd, err = c.makeDir(name)
		return fd, true, err
	}
	if name, err = c.expand(name); err != nil {
		return -1, false, err
	}
	dir, base, err := c.makeParent(name)
	if err != nil {
		return -1, false, err
	}
	defer unix.Close(dir)
	fd, err = unix.Openat(dir, base, unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW|unix.O_CLOEXEC, fileMode)
	if err != nil {
		return -1, false, fmt.Errorf("create %s: %w", base, err)
	}
	return fd, true, nil
}

// ordinaryDir returns a directory for procfs or sysfs, which must be at the place that the spec names:
// a link would lead elsewhere.
func (c *container) ordinaryDir(name string) (int, error) {
	fd, err := c.open(name, unix.O_NOFOLLOW)
	if isAbsent(err) {
		return c.makeDir(name)
	}
	if err != nil {
		return -1, err
	}
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		unix.Close(fd)
		return -1, err
	}
	if st.Mode&unix.S_IFMT != unix.S_IFDIR {
		unix.Close(fd)
		return -1, errNotDirectory
	}
	return fd, nil
}

var errNotDirectory = errors.New("it must be mounted on an ordinary directory")

// place returns where fd is, as a path from the container's root.
func (c *container) place(fd int) (string, error) {
	buf := make([]byte, unix.PathMax)
	n, err := unix.Readlinkat(int(c.proc), "thread-self/fd/"+strconv.Itoa(fd), buf)
	if err != nil {
		return "", fmt.Errorf("cannot find out where a mount point is: %w", err)
	}
	rest, inside := strings.CutPrefix(string(buf[:n]), "/"+order.RootName)
	if !inside || rest != "" && rest[0] != '/' {
		return "", errOutside
	}
	return clean(rest), nil
}

var errOutside = errors.New("it is outside of the container's root")

// emulated are the files in /proc that may be replaced: lxcfs emulates them.
func emulated() []string {
	return []string{
		"/proc/cpuinfo", "/proc/diskstats", "/proc/meminfo", "/proc/stat", "/proc/swaps", "/proc/uptime",
		"/proc/loadavg", "/proc/slabinfo", "/proc/sys/kernel/ns_last_pid", "/proc/sys/crypto/fips_enabled",
	}
}

// checkPlace refuses a mount on /proc, or below it, that would replace what the kernel shows there.
// ofProcfs is true for a procfs.
func checkPlace(place string, ofProcfs bool) error {
	switch {
	case place == "/.":
		return errors.New("it is the container's root")
	case place == "/proc":
		if !ofProcfs {
			return errors.New("it cannot be mounted because it is not a procfs")
		}
	case strings.HasPrefix(place, "/proc/"):
		if !slices.Contains(emulated(), place) {
			return errors.New("it cannot be mounted because it is inside of /proc")
		}
	}
	return nil
}
