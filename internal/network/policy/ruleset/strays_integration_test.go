//go:build integration

package ruleset_test

import (
	"fmt"
	"net"
	"net/netip"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berthrun/berth/internal/network/policy"
	"github.com/berthrun/berth/internal/sys/sysns"
)

// linkIndex is the number of a pod's link, which is the zone of its link-local addresses.
func (l *lab) linkIndex(s *station) string {
	l.t.Helper()
	index, _, _ := strings.Cut(l.run(s.netns, "ip", "-o", "link", "show", "eth0"), ":")
	return index
}

// broadcaster is a socket that may send to broadcast addresses.
func (l *lab) broadcaster(netns string) net.PacketConn {
	l.t.Helper()
	var conn net.PacketConn
	err := sysns.InNetNS(netns, func() (err error) {
		config := net.ListenConfig{Control: func(_, _ string, c syscall.RawConn) error {
			var failed error
			err := c.Control(func(fd uintptr) { failed = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_BROADCAST, 1) })
			if err == nil {
				err = failed
			}
			return err
		}}
		conn, err = config.ListenPacket(l.t.Context(), "udp4", ":0")
		return err
	})
	if err != nil {
		l.t.Fatal(err)
	}
	l.t.Cleanup(func() { conn.Close() })
	return conn
}

// TestPathsBesideTheAddresses: an isolated pod is not reached by its link-local address, by a group or by
// a broadcast, and reaches none by them. The node's own packets, and neighbour discovery, pass.
func TestPathsBesideTheAddresses(t *testing.T) {
	l := newLab(t, 2)
	client, server := l.stations[0], l.stations[1]
	for i, s := range l.stations[:2] {
		l.ip(s.netns, fmt.Sprintf("addr add fe80::a:%d/64 dev eth0 nodad", i))
	}
	l.ip(l.node, "addr add fe80::a:ff/64 dev br0 nodad")
	zone := l.linkIndex(client)
	v6, v4 := l.packets(client.netns, 0), l.broadcaster(client.netns)
	send := func(text string) {
		for conn, tos := range map[net.PacketConn][]string{
			v6: {"[fe80::a:1%" + zone + "]:80", "[ff02::1%" + zone + "]:80"}, v4: {"10.1.0.255:80", "255.255.255.255:80"},
		} {
			for _, to := range tos {
				addr := net.UDPAddrFromAddrPort(netip.MustParseAddrPort(to))
				if _, err := conn.WriteTo([]byte(text+" "+addr.IP.String()), addr); err != nil {
					t.Fatal(to, err)
				}
			}
		}
	}
	heard := func(s *station, text string) (all []string) {
		s.mu.Lock()
		defer s.mu.Unlock()
		for what := range s.heard {
			if _, of, found := strings.Cut(what, " 80 "+text+" "); found {
				all = append(all, of)
			}
		}
		return all
	}
	await := func(s *station, text string, n int) {
		t.Helper()
		for deadline := time.Now().Add(10 * time.Second); len(heard(s, text)) < n; time.Sleep(10 * time.Millisecond) {
			if time.Now().After(deadline) {
				t.Fatalf("%s: only %q arrived", text, heard(s, text))
			}
		}
	}
	send("open")
	await(server, "open", 4)

	for d, want := range map[policy.Direction][]string{policy.Ingress: nil, policy.Egress: {"10.1.0.255", "255.255.255.255"}} {
		l.apply(model(server, map[policy.Direction][]policy.Rule{d: {{AnyPeer: true, AnyPort: true}}}))
		send(d.String())
		await(server, d.String(), len(want))
		time.Sleep(patience) // for what should not arrive
		if got := heard(server, d.String()); len(got) != len(want) {
			t.Errorf("%s: %q arrived, want %q\n%s", d, got, want, l.rules())
		}
	}

	// The node, and pods that discover each other.
	l.apply(model(server, map[policy.Direction][]policy.Rule{policy.Ingress: {{Pods: client.addrs, AnyPort: true}}}))
	bridge, _, _ := strings.Cut(l.run(l.node, "ip", "-o", "link", "show", "br0"), ":")
	node := l.packets(l.node, 0)
	for _, to := range []string{"fe80::a:1", "ff02::1"} {
		node.WriteTo([]byte("node "+to), net.UDPAddrFromAddrPort(netip.MustParseAddrPort("["+to+"%"+bridge+"]:80")))
	}
	await(server, "node", 2)
	l.ip(client.netns, "neigh flush all")
	l.ip(server.netns, "neigh flush all")
	v6.WriteTo([]byte("discovered it"), net.UDPAddrFromAddrPort(netip.AddrPortFrom(server.addrs[1], 80)))
	await(server, "discovered", 1)

	l.apply(model(server, nil))
	send("again")
	await(server, "again", 4)
}

// TestPacketsWithTheNodesAddress: a pod that sends with an address of the node does not have the node's
// rights, also where nothing checks its frames.
func TestPacketsWithTheNodesAddress(t *testing.T) {
	l := newLab(t, 2)
	client, server := l.stations[0], l.stations[1]
	l.ip(client.netns, "addr add 10.1.0.1/32 dev lo")
	l.ip(client.netns, "addr add fd00:1::1/128 dev lo nodad")
	conns := map[int]net.PacketConn{}
	for i, from := range []string{"10.1.0.1:0", "[fd00:1::1]:0"} {
		if err := sysns.InNetNS(client.netns, func() (err error) {
			conns[i], err = net.ListenPacket("udp", from)
			return err
		}); err != nil {
			t.Fatal(err)
		}
		defer conns[i].Close()
	}
	send := func(text string) {
		for i, conn := range conns {
			if _, err := conn.WriteTo([]byte(text), net.UDPAddrFromAddrPort(netip.AddrPortFrom(server.addrs[i], 80))); err != nil {
				t.Fatal(err)
			}
		}
	}
	for i, from := range []string{"10.1.0.1", "fd00:1::1"} {
		for deadline := time.Now().Add(10 * time.Second); !server.has(from + " 80 open"); time.Sleep(10 * time.Millisecond) {
			send("open") // again: one that comes before the neighbour is found may be lost
			if time.Now().After(deadline) {
				t.Fatalf("%d: nothing arrived while the pod was open", i)
			}
		}
	}
	l.apply(model(server, map[policy.Direction][]policy.Rule{policy.Ingress: {}}))
	send("isolated")
	time.Sleep(patience) // for what should not arrive
	for _, from := range []string{"10.1.0.1", "fd00:1::1"} {
		if server.has(from + " 80 isolated") {
			t.Errorf("a packet with the source %s arrived\n%s", from, l.rules())
		}
	}
}

// TestUntrackedPackets: what conntrack does not follow is compared as well: ICMPv6 of types that it leaves
// out, and packets that a rule excepts.
func TestUntrackedPackets(t *testing.T) {
	l := newLab(t, 2)
	client, server := l.stations[0], l.stations[1]
	for _, s := range []string{
		"add table inet untracked", "add chain inet untracked pre { type filter hook prerouting priority raw; }",
		"add rule inet untracked pre udp dport 80 notrack",
	} {
		l.run(l.node, "nft", s)
	}
	var echo int
	if err := sysns.InNetNS(client.netns, func() (err error) {
		echo, err = unix.Socket(unix.AF_INET6, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.IPPROTO_ICMPV6)
		return err
	}); err != nil {
		t.Fatal(err)
	}
	defer unix.Close(echo)
	var ear int
	if err := sysns.InNetNS(server.netns, func() (err error) {
		ear, err = unix.Socket(unix.AF_INET6, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.IPPROTO_ICMPV6)
		return err
	}); err != nil {
		t.Fatal(err)
	}
	defer unix.Close(ear)
	unix.SetsockoptTimeval(ear, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Usec: 50_000})
	udp := l.packets(client.netns, 0)
	// The kernel fills the checksum. The hop limit is the default: no message of neighbour discovery has it.
	send := func(text string) {
		message := append([]byte{132, 0, 0, 0}, text...)
		if err := unix.Sendto(echo, message, 0, &unix.SockaddrInet6{Addr: server.addrs[1].As16()}); err != nil {
			t.Fatal(os.NewSyscallError("sendto", err))
		}
		for _, addr := range server.addrs {
			udp.WriteTo([]byte(text), net.UDPAddrFromAddrPort(netip.AddrPortFrom(addr, 80)))
		}
	}
	heardICMP := func(text string, wait time.Duration) bool {
		for deadline := time.Now().Add(wait); time.Now().Before(deadline); {
			b := make([]byte, 100)
			if n, _, err := unix.Recvfrom(ear, b, 0); err == nil && n > 4 && string(b[4:n]) == text {
				return true
			}
		}
		return false
	}
	send("open")
	if !heardICMP("open", 10*time.Second) {
		t.Fatal("the message did not arrive while the pod was open")
	}
	l.apply(model(server, map[policy.Direction][]policy.Rule{policy.Ingress: {}}))
	send("isolated")
	if heardICMP("isolated", patience) {
		t.Errorf("an untracked ICMPv6 message arrived\n%s", l.rules())
	}
	for _, addr := range client.addrs {
		if !server.has(fmt.Sprintf("%s 80 open", addr)) || server.has(fmt.Sprintf("%s 80 isolated", addr)) {
			t.Errorf("untracked packets of %s: heard %v", addr, server.heard)
		}
	}
}
