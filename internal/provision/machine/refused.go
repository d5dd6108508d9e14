package machine

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"
)

// refused says why the machine did not allow an operation, by what it finds at the paths: a flag of
// the file or of its directory, a mount, a missing capability, or a security module. err is the
// operation's error, at the paths that it worked on and err does not name.
func refused(err error, at ...string) string {
	places := placesOf(err, at)
	for _, p := range places {
		if flag := flagOf(p); flag != "" {
			return flag
		}
	}
	for _, p := range places {
		if mount := readOnlyMount(p); mount != "" {
			return mount
		}
	}
	caps, _ := os.ReadFile("/proc/self/status")
	label, _ := os.ReadFile("/proc/self/attr/current")
	return refusedBy(os.Geteuid(), string(caps), string(label))
}

// placesOf lists the paths of an error and those of at, each with its directory.
func placesOf(err error, at []string) []string {
	var list []string
	add := func(p string) {
		for _, p := range []string{p, filepath.Dir(p)} {
			if p != "" && !slices.Contains(list, p) {
				list = append(list, p)
			}
		}
	}
	var one *fs.PathError
	if errors.As(err, &one) {
		add(one.Path)
	}
	var two *os.LinkError
	if errors.As(err, &two) {
		add(two.New)
		add(two.Old)
	}
	for _, p := range at {
		add(p)
	}
	return list
}

// flagOf names a flag of a file or directory that forbids changes; empty for none, or if the file
// system has no flags.
func flagOf(p string) string {
	var st unix.Statx_t
	err := unix.Statx(unix.AT_FDCWD, p, 0, 0, &st)
	switch {
	case err != nil:
		return ""
	case st.Attributes&unix.STATX_ATTR_IMMUTABLE != 0:
		return fmt.Sprintf("%s is immutable (lsattr -d shows it, chattr -i takes it back)", shown(p))
	case st.Attributes&unix.STATX_ATTR_APPEND != 0:
		return fmt.Sprintf("%s is append-only (lsattr -d shows it, chattr -a takes it back)", shown(p))
	}
	return ""
}

// readOnlyMount names the read-only mount that a path lies on; empty for none.
func readOnlyMount(p string) string {
	var st unix.Statfs_t
	if err := unix.Statfs(p, &st); err != nil || st.Flags&unix.ST_RDONLY == 0 {
		return ""
	}
	var on unix.Statx_t
	err := unix.Statx(unix.AT_FDCWD, p, 0, unix.STATX_MNT_ID, &on)
	var mounts []*mountinfo.Info
	if err == nil && on.Mask&unix.STATX_MNT_ID != 0 { // from Linux 5.8 on
		mounts, err = mountinfo.GetMounts(func(m *mountinfo.Info) (skip, stop bool) { return on.Mnt_id != uint64(m.ID), false })
	}
	if err != nil || len(mounts) == 0 {
		return fmt.Sprintf("%s lies on a read-only mount", shown(p))
	}
	return fmt.Sprintf("%s lies on %s, which is mounted read-only", shown(p), mounts[0].Mountpoint)
}

// fileCapabilities are what root changes files with: CHOWN, DAC_OVERRIDE and FOWNER.
const fileCapabilities = 1<<0 | 1<<1 | 1<<3

// refusedBy says what else may refuse: this process's capabilities and security label, from
// /proc/self/status and /proc/self/attr/current.
func refusedBy(uid int, status, label string) string {
	if uid != 0 {
		return fmt.Sprintf("user %d may not", uid)
	}
	for line := range strings.Lines(status) {
		text, ok := strings.CutPrefix(line, "CapEff:")
		if !ok {
			continue
		}
		have, err := strconv.ParseUint(strings.TrimSpace(text), 16, 64)
		if err == nil && have&fileCapabilities != fileCapabilities {
			return "this process is root without all of root's capabilities (CapEff " + strings.TrimSpace(text) + ")"
		}
	}
	if label = strings.TrimRight(label, "\n\x00"); label != "" && label != "unconfined" {
		return fmt.Sprintf("no flag and no read-only mount forbids it; the security module may, to which this process is %s (dmesg or the audit log shows it)", label)
	}
	return "no flag, no read-only mount and no security module that shows itself forbids it; the file system or its server does"
}

// shown is a path for messages, without the descriptor that it was reached through.
func shown(p string) string {
	const fds = "/proc/self/fd/"
	rest, ok := strings.CutPrefix(p, fds)
	if !ok {
		return p
	}
	fd, below, _ := strings.Cut(rest, "/")
	dir, err := os.Readlink(fds + fd)
	if err != nil {
		return p
	}
	return filepath.Join(dir, below)
}
