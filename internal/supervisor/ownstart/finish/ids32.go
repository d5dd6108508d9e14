//go:build 386 || arm

package finish

import "golang.org/x/sys/unix"

// The calls that change the ids of one thread. Those without a number have ids of 16 bits here.
const (
	sysSetgroups = unix.SYS_SETGROUPS32
	sysSetgid    = unix.SYS_SETGID32
	sysSetuid    = unix.SYS_SETUID32
)
