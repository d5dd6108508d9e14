package sysnet

import (
	"fmt"
	"syscall"

	"golang.org/x/sys/unix"
)

// States of a TCP connection, as TCP_INFO has them (include/net/tcp_states.h).
const (
	tcpEstablished = 1
	tcpFinWait1    = 4
	tcpFinWait2    = 5
)

// PeerClosed reports whether the other end of a TCP connection has closed its side or is gone, also
// when data from it is still unread.
func PeerClosed(conn syscall.Conn) (bool, error) {
	raw, err := conn.SyscallConn()
	if err != nil {
		return false, fmt.Errorf("cannot read the state of the connection: %w", err)
	}
	var info *unix.TCPInfo
	var infoErr error
	if err := raw.Control(func(fd uintptr) {
		info, infoErr = unix.GetsockoptTCPInfo(int(fd), unix.IPPROTO_TCP, unix.TCP_INFO)
	}); err != nil {
		return false, fmt.Errorf("cannot read the state of the connection: %w", err)
	}
	if infoErr != nil {
		return false, fmt.Errorf("cannot read the state of the connection: %w", infoErr)
	}
	switch info.State {
	case tcpEstablished, tcpFinWait1, tcpFinWait2:
		return false, nil
	}
	return true, nil
}
