package hostport

import (
	"errors"
	"net"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/network"
)

func TestWanted(t *testing.T) {
	both, only4 := Families{true, true}, Families{V4: true}
	for name, c := range map[string]struct {
		asked    []network.Port
		families Families
		want     []network.Port
		kind     error
	}{
		"none of the host's": {[]network.Port{{ContainerPort: 80}}, both, nil, nil},
		"defaults":           {[]network.Port{{HostPort: 1, ContainerPort: 2}}, both, []network.Port{{Protocol: "tcp", HostPort: 1, ContainerPort: 2}}, nil},
		"upper case": {
			[]network.Port{{Protocol: "SCTP", HostPort: 1, ContainerPort: 2, HostIP: "::ffff:127.0.0.1"}},
			both,
			[]network.Port{{Protocol: "sctp", HostPort: 1, ContainerPort: 2, HostIP: "127.0.0.1"}},
			nil,
		},
		"bad address": {[]network.Port{{HostPort: 1, ContainerPort: 2, HostIP: "host"}}, both, nil, errs.Invalid},
		"family that is missing": {
			[]network.Port{{HostPort: 1, ContainerPort: 2, HostIP: "::1"}},
			only4,
			[]network.Port{{Protocol: "tcp", HostPort: 1, ContainerPort: 2, HostIP: "::1"}},
			nil,
		},
		"twice": {[]network.Port{{HostPort: 1, ContainerPort: 2}, {HostPort: 1, ContainerPort: 3, HostIP: "127.0.0.1"}}, both, nil, errs.Invalid},
		"two protocols": {
			[]network.Port{{HostPort: 1, ContainerPort: 2}, {Protocol: "udp", HostPort: 1, ContainerPort: 2}},
			only4,
			[]network.Port{{Protocol: "tcp", HostPort: 1, ContainerPort: 2}, {Protocol: "udp", HostPort: 1, ContainerPort: 2}},
			nil,
		},
	} {
		got, err := Wanted(c.asked, c.families)
		if !errors.Is(errs.Kind(err), c.kind) {
			t.Errorf("%s: error %v, want kind %v", name, err, c.kind)
		}
		if diff := cmp.Diff(c.want, got); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
	}
}

// TestUnservedOf: a port leads nowhere if the pod has no address of the family of its host IP, or if the host does not
// have that IP.
func TestUnservedOf(t *testing.T) {
	ports := []network.Port{
		{HostPort: 1},
		{HostPort: 2, HostIP: "127.0.0.7"},
		{HostPort: 3, HostIP: "192.0.2.1"},
		{HostPort: 4, HostIP: "192.0.2.2"},
		{HostPort: 5, HostIP: "0.0.0.0"},
		{HostPort: 6, HostIP: "::1"},
		{HostPort: 7, HostIP: "::"},
	}
	has := func(addr netip.Addr) bool { return addr == netip.MustParseAddr("192.0.2.1") }
	var got []string
	for _, u := range UnservedOf(ports, Families{V4: true}, has) {
		got = append(got, strconv.Itoa(int(u.HostPort))+": "+u.Why)
	}
	want := []string{
		"4: the host does not have the host IP", "6: the host IP is of IPv6, and the pod has no IPv6 address", "7: the host IP is of IPv6, and the pod has no IPv6 address",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

// A port is not compared with all others, so many ports do not take long.
func TestManyPorts(t *testing.T) {
	var asked []network.Port
	for port := range uint16(65535) {
		asked = append(asked, network.Port{HostPort: port + 1, ContainerPort: 1})
	}
	got, err := Wanted(asked, Families{true, true})
	if err != nil || len(got) != len(asked) {
		t.Errorf("%d ports, %v", len(got), err)
	}
	if _, err := Wanted(append(asked, asked[0]), Families{true, true}); !errors.Is(err, errs.Invalid) {
		t.Errorf("one of them twice: %v", err)
	}
}

func TestIndex(t *testing.T) {
	var x Index
	both := Families{true, true}
	sockets := func(ip string) []Socket {
		return Sockets(network.Port{Protocol: "tcp", HostPort: 80, HostIP: ip}, both)
	}
	a, b := Holder{"a", "ns", "first"}, Holder{"b", "ns", "second"}
	if err := x.Take(a, sockets("127.0.0.1")); err != nil {
		t.Fatal(err)
	}
	if err := x.Take(a, sockets("127.0.0.1")); err != nil {
		t.Errorf("the holder again: %v", err)
	}
	for _, ip := range []string{"127.0.0.1", "0.0.0.0", ""} {
		err := x.Take(b, sockets(ip))
		if !errors.Is(err, errs.Exists) || !strings.Contains(err.Error(), "ns/first") || !strings.Contains(err.Error(), "80/tcp") {
			t.Errorf("%q beside 127.0.0.1: %v, want kind Exists with holder and port", ip, err)
		}
	}
	for _, ip := range []string{"::", "127.0.0.2"} {
		if err := x.Take(b, sockets(ip)); err != nil {
			t.Errorf("%q beside 127.0.0.1: %v", ip, err)
		}
	}
	x.Free("b", sockets("127.0.0.1"))
	if err := x.Take(b, sockets("")); err == nil {
		t.Error("one sandbox freed what another holds")
	}
	x.Free("a", sockets("127.0.0.1"))
	if err := x.Take(b, sockets("")); err != nil {
		t.Errorf("after it was freed: %v", err)
	}
}

func TestBlocks(t *testing.T) {
	const established = netlink.TCP_ESTABLISHED
	list := []*netlink.Socket{
		{Family: unix.AF_INET, State: netlink.TCP_LISTEN, INode: 111, ID: netlink.SocketID{SourcePort: 8080, Source: net.IPv4(127, 0, 0, 1)}},
		{Family: unix.AF_INET, State: established, INode: 222, ID: netlink.SocketID{SourcePort: 8081, Source: net.IPv4(127, 0, 0, 1)}},
		{Family: unix.AF_INET, State: netlink.TCP_CLOSE, INode: 333, ID: netlink.SocketID{SourcePort: 8082, Source: net.IPv4zero}},
		{Family: unix.AF_INET6, State: netlink.TCP_LISTEN, INode: 444, ID: netlink.SocketID{SourcePort: 8083, Source: net.IPv6loopback}},
		{Family: unix.AF_INET6, State: netlink.TCP_LISTEN, INode: 555, ID: netlink.SocketID{SourcePort: 8084, Source: net.IPv6zero}},
	}
	for _, c := range []struct {
		addr string
		port uint16
		want uint32
	}{
		{"127.0.0.1", 8080, 111},
		{"0.0.0.0", 8080, 111},
		{"127.0.0.2", 8080, 0},
		{"::", 8080, 0},
		{"0.0.0.0", 8081, 0}, // an established connection does not listen
		{"127.0.0.9", 8082, 333},
		{"::", 8083, 444},
		{"::1", 8083, 444},
		{"0.0.0.0", 8083, 0},
		{"127.0.0.1", 8084, 555}, // it may serve IPv4 as well
	} {
		var got uint32
		for _, other := range list {
			if blocks(other, Socket{"tcp", c.port, netip.MustParseAddr(c.addr)}) {
				got = other.INode
			}
		}
		if got != c.want {
			t.Errorf("%s port %d: inode %d, want %d", c.addr, c.port, got, c.want)
		}
	}
}

// The error names the program that listens, for either protocol and family.
func TestProbe(t *testing.T) {
	stream, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer stream.Close()
	packets, err := net.ListenPacket("udp", "[::]:0")
	if err != nil {
		t.Skipf("the host has no IPv6: %v", err)
	}
	defer packets.Close()
	for _, s := range []Socket{
		{"tcp", netip.MustParseAddrPort(stream.Addr().String()).Port(), netip.IPv4Unspecified()},
		{"udp", netip.MustParseAddrPort(packets.LocalAddr().String()).Port(), netip.IPv6Unspecified()},
	} {
		if err := Probe([]Socket{s}); !errors.Is(err, errs.Exists) || !strings.Contains(err.Error(), "(pid "+strconv.Itoa(os.Getpid())+")") {
			t.Errorf("%s: %v, want kind Exists with this process", s, err)
		}
		if !Listens(s.Proto, s.Port) {
			t.Errorf("%s: nobody listens", s)
		}
	}
}
