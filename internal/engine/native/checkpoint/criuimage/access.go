package criuimage

import (
	"errors"
	"fmt"
	"os"
	"path"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/berthrun/berth/internal/sys/sysfile"
)

// errNotTheirs is why a file is not opened: CRIU would open it with all rights.
var errNotTheirs = errors.New("the user of the request may not open it")

// checkAccess reports whether a path of the root filesystem is a directory, and whether the user of the request may read that
// directory. It refuses what is neither a directory nor a regular file, what is behind a symbolic link, and what that user
// could not open. A working directory need not be readable.
func (f *fitting) checkAccess(at string, flags uint32) (directory, readable bool, err error) {
	current, err := os.OpenFile(f.Rootfs, unix.O_PATH|unix.O_DIRECTORY, 0)
	if err != nil {
		return false, false, err
	}
	defer func() { current.Close() }()
	var parts []string
	if at != "/" {
		parts = strings.Split(strings.TrimPrefix(path.Clean(at), "/"), "/")
	}
	st := &unix.Stat_t{}
	if err := unix.Fstat(int(current.Fd()), st); err != nil {
		return false, false, err
	}
	for _, part := range parts {
		if !f.allowed.may(st, unix.X_OK) {
			return false, false, errNotTheirs
		}
		next, err := sysfile.OpenEntry(current, part)
		if err != nil {
			return false, false, err
		}
		current.Close()
		current = next
		if err := unix.Fstat(int(current.Fd()), st); err != nil {
			return false, false, err
		}
	}
	need := map[uint32]uint32{unix.O_RDONLY: unix.R_OK, unix.O_WRONLY: unix.W_OK, unix.O_RDWR: unix.R_OK | unix.W_OK}[flags&unix.O_ACCMODE]
	switch kind := st.Mode & unix.S_IFMT; {
	case kind == unix.S_IFDIR:
		need = unix.X_OK
	case kind != unix.S_IFREG:
		return false, false, fmt.Errorf("it is neither a regular file nor a directory (mode %#o)", st.Mode)
	case flags&unix.O_PATH != 0:
		need = 0
	}
	if !f.allowed.may(st, need) {
		return false, false, errNotTheirs
	}
	return st.Mode&unix.S_IFMT == unix.S_IFDIR, f.allowed.may(st, unix.R_OK), nil
}

// may reports whether the user of the request may access a file, by its mode.
func (r *rights) may(st *unix.Stat_t, need uint32) bool {
	mode := st.Mode
	switch {
	case st.Uid == r.uid:
		mode >>= 6
	case slices.Contains(r.groups, st.Gid):
		mode >>= 3
	}
	missing := need &^ mode
	if r.readAny {
		missing &^= unix.R_OK
		if st.Mode&unix.S_IFMT == unix.S_IFDIR {
			missing &^= unix.X_OK
		}
	}
	if r.writeAny {
		missing &^= unix.W_OK
	}
	return missing == 0
}
