package sysfd

import (
	"fmt"
	"time"

	"golang.org/x/sys/unix"
)

// SendDatagram sends msg with copies of fds to the unix datagram socket at path
// ("@" begins an abstract one), waiting at most timeout for room in its queue.
func SendDatagram(path string, msg []byte, fds []int, timeout time.Duration) error {
	sock, err := unix.Socket(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("cannot make a datagram socket: %w", err)
	}
	defer unix.Close(sock)
	limit := unix.NsecToTimeval(int64(timeout))
	if err := unix.SetsockoptTimeval(sock, unix.SOL_SOCKET, unix.SO_SNDTIMEO, &limit); err != nil {
		return fmt.Errorf("cannot set the send timeout of a datagram socket: %w", err)
	}
	var rights []byte
	if len(fds) > 0 {
		rights = unix.UnixRights(fds...)
	}
	if err := unix.Sendmsg(sock, msg, rights, &unix.SockaddrUnix{Name: path}, 0); err != nil {
		return fmt.Errorf("cannot send a datagram to %s: %w", path, err)
	}
	return nil
}
