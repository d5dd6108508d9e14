//go:build !386 && !arm

package finish

import "golang.org/x/sys/unix"

// The calls that change the ids of one thread.
const (
	sysSetgroups = unix.SYS_SETGROUPS
	sysSetgid    = unix.SYS_SETGID
	sysSetuid    = unix.SYS_SETUID
)
