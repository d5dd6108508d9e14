package hostport

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Probe returns an error of kind Exists, which names the program, when one listens on one of the
// sockets: rules for the port would silently take its traffic away. It looks in the network
// namespace of the calling thread.
func Probe(sockets []Socket) error {
	for _, s := range sockets {
		taken, err := bound(s)
		if err != nil {
			return fmt.Errorf("cannot find out whether host port %s is free: %w", s, err)
		}
		if !taken {
			continue
		}
		// A connection that happens to have the port as its source does no harm.
		if owner := listener(s); owner != "" {
			return Taken(s, owner)
		}
	}
	return nil
}

// bound reports whether a socket cannot be bound because its port is in use. It closes what it
// has bound at once.
func bound(s Socket) (bool, error) {
	domain, kind, proto := unix.AF_INET, unix.SOCK_STREAM, 0
	if s.Addr.Is6() {
		domain = unix.AF_INET6
	}
	switch s.Proto {
	case "udp":
		kind = unix.SOCK_DGRAM
	case "sctp":
		proto = unix.IPPROTO_SCTP
	}
	fd, err := unix.Socket(domain, kind|unix.SOCK_CLOEXEC, proto)
	if errors.Is(err, unix.EPROTONOSUPPORT) || errors.Is(err, unix.EAFNOSUPPORT) {
		return false, nil // then no program listens on it either
	}
	if err != nil {
		return false, err
	}
	defer unix.Close(fd)
	if s.Proto != "udp" {
		// Connections that are closing do not matter.
		if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEADDR, 1); err != nil {
			return false, err
		}
	}
	var addr unix.Sockaddr
	if s.Addr.Is4() {
		// The address may come to the host later.
		err = unix.SetsockoptInt(fd, unix.IPPROTO_IP, unix.IP_FREEBIND, 1)
		addr = &unix.SockaddrInet4{Port: int(s.Port), Addr: s.Addr.As4()}
	} else {
		err = errors.Join(unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_V6ONLY, 1),
			unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_FREEBIND, 1))
		addr = &unix.SockaddrInet6{Port: int(s.Port), Addr: s.Addr.As16()}
	}
	if err != nil {
		return false, err
	}
	err = unix.Bind(fd, addr)
	if errors.Is(err, unix.EADDRINUSE) {
		return true, nil
	}
	return false, err
}

// someProgram stands for a program that cannot be named.
const someProgram = "a program on the host"

// listener names the program that listens on a socket, "" when none does.
func listener(s Socket) string {
	if s.Proto == "sctp" {
		return someProgram // netlink has no list of these
	}
	found, err := listening(s)
	switch {
	case err != nil:
		return someProgram // a kernel without inet_diag
	case found == nil:
		return ""
	}
	return program(found.INode)
}

// Listens reports whether a program has a port open at any address, in the network namespace of
// the calling thread. The protocol is tcp or udp. False where the kernel has no inet_diag.
func Listens(proto string, port uint16) bool {
	for _, any := range []netip.Addr{netip.IPv4Unspecified(), netip.IPv6Unspecified()} {
		if found, err := listening(Socket{proto, port, any}); err == nil && found != nil {
			return true
		}
	}
	return false
}

// interruptedDumps is how often an interrupted list of sockets is read again.
const interruptedDumps = 3

// listening returns the socket of the kernel that keeps s from being bound, nil when none does.
func listening(s Socket) (*netlink.Socket, error) {
	list := netlink.SocketDiagTCP
	if s.Proto == "udp" {
		list = netlink.SocketDiagUDP
	}
	// A socket of IPv6 may serve IPv4 as well.
	for _, family := range []uint8{unix.AF_INET, unix.AF_INET6} {
		sockets, err := list(family)
		// The list changed while the kernel wrote it, and may lack a socket.
		for range interruptedDumps {
			if !errors.Is(err, netlink.ErrDumpInterrupted) {
				break
			}
			sockets, err = list(family)
		}
		if err != nil && !errors.Is(err, netlink.ErrDumpInterrupted) {
			return nil, fmt.Errorf("cannot list the host's %s sockets: %w", s.Proto, err)
		}
		if i := slices.IndexFunc(sockets, func(other *netlink.Socket) bool { return blocks(other, s) }); i >= 0 {
			return sockets[i], nil
		}
	}
	return nil, nil
}

// blocks reports whether a socket of the kernel listens where s would.
func blocks(other *netlink.Socket, s Socket) bool {
	// A UDP socket without a peer has the state TCP_CLOSE.
	if other.State != netlink.TCP_LISTEN && other.State != netlink.TCP_CLOSE || other.ID.SourcePort != s.Port {
		return false
	}
	addr, ok := netip.AddrFromSlice(other.ID.Source)
	if !ok {
		return false
	}
	addr = addr.Unmap()
	return addr.IsUnspecified() || s.Addr.IsUnspecified() && addr.Is4() == s.Addr.Is4() || addr == s.Addr
}

// program names the process that has the socket with an inode open.
func program(inode uint32) string {
	want := fmt.Sprintf("socket:[%d]", inode)
	fds, err := filepath.Glob("/proc/[0-9]*/fd/*")
	if err != nil {
		return someProgram
	}
	for _, fd := range fds {
		if target, err := os.Readlink(fd); err == nil && target == want {
			pid := strings.Split(fd, "/")[2]
			name, _ := os.ReadFile("/proc/" + pid + "/comm")
			return fmt.Sprintf("%s (pid %s)", strings.TrimSpace(string(name)), pid)
		}
	}
	return someProgram
}
