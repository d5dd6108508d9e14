package hostport

import (
	"bufio"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// Probe is kind Exists, naming the program, when one listens on one of the sockets:
// rules for the port would silently take its traffic away. It looks in the network
// namespace of the calling thread.
func Probe(sockets []Socket) error {
	for _, s := range sockets {
		taken, err := bound(s)
		if err != nil {
			return fmt.Errorf("cannot tell whether host port %s is free: %w", s, err)
		}
		if !taken {
			continue
		}
		// A connection that happens to have the port as its source end is in
		// nobody's way.
		if owner := listener(s); owner != "" {
			return Taken(s, owner)
		}
	}
	return nil
}

// bound tries to bind a socket and gives it up at once.
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
		return false, nil // then nobody listens on it either
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

// listener names the program that listens on a socket, "" when none does.
func listener(s Socket) string {
	if s.Proto == "sctp" {
		return "a program on the host" // the kernel's list has another form
	}
	if inode := inodeOf(s); inode != "" {
		return program(inode)
	}
	return ""
}

// Listens reports whether somebody has a port open at any address, in the network
// namespace of the calling thread. The protocol is tcp or udp.
func Listens(proto string, port uint16) bool {
	return inodeOf(Socket{proto, port, netip.IPv4Unspecified()}) != "" ||
		inodeOf(Socket{proto, port, netip.IPv6Unspecified()}) != ""
}

// inodeOf returns the inode of the socket that stands in the way of s, "" when none
// does.
func inodeOf(s Socket) string {
	// A socket of IPv6 may serve IPv4 as well.
	for _, file := range []string{s.Proto, s.Proto + "6"} {
		f, err := os.Open(filepath.Join("/proc/thread-self/net", file))
		if err != nil {
			continue
		}
		inode := findListener(f, s)
		f.Close()
		if inode != "" {
			return inode
		}
	}
	return ""
}

// findListener returns the inode of the socket in a list such as /proc/net/tcp
// that stands in the way of s.
func findListener(list *os.File, s Socket) (inode string) {
	const tcpListen, unconnected = "0A", "07"
	lines := bufio.NewScanner(list)
	for lines.Scan() {
		fields := strings.Fields(lines.Text())
		if len(fields) < 10 || (fields[3] != tcpListen && fields[3] != unconnected) {
			continue
		}
		addr, port, ok := parseProcAddr(fields[1])
		if !ok || port != s.Port {
			continue
		}
		if addr.IsUnspecified() || s.Addr.IsUnspecified() && addr.Is4() == s.Addr.Is4() || addr == s.Addr {
			return fields[9]
		}
	}
	return ""
}

// parseProcAddr reads ADDRESS:PORT as the kernel prints them: the address in
// 32-bit words of the machine's byte order, in hexadecimal.
func parseProcAddr(text string) (netip.Addr, uint16, bool) {
	hexAddr, hexPort, ok := strings.Cut(text, ":")
	port, err := strconv.ParseUint(hexPort, 16, 16)
	raw, hexErr := hex.DecodeString(hexAddr)
	if !ok || err != nil || hexErr != nil || len(raw)%4 != 0 {
		return netip.Addr{}, 0, false
	}
	for word := range slices.Chunk(raw, 4) {
		binary.BigEndian.PutUint32(word, binary.NativeEndian.Uint32(word))
	}
	addr, ok := netip.AddrFromSlice(raw)
	return addr.Unmap(), uint16(port), ok
}

// program names the process that has a socket open.
func program(inode string) string {
	want := "socket:[" + inode + "]"
	fds, err := filepath.Glob("/proc/[0-9]*/fd/*")
	if err != nil {
		return "a program on the host"
	}
	for _, fd := range fds {
		if target, err := os.Readlink(fd); err == nil && target == want {
			pid := strings.Split(fd, "/")[2]
			name, _ := os.ReadFile("/proc/" + pid + "/comm")
			return fmt.Sprintf("%s (pid %s)", strings.TrimSpace(string(name)), pid)
		}
	}
	return "a program on the host"
}
