package pause

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// setFilter sets the seccomp filter of the calling thread.
func setFilter(program *unix.SockFprog) error {
	_, _, errno := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, 0, uintptr(unsafe.Pointer(program)))
	if errno != 0 {
		return errno
	}
	return nil
}
