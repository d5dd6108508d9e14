//go:build integration

package builtin_test

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berthrun/berth/internal/network"
	"github.com/berthrun/berth/internal/network/builtin"
	"github.com/berthrun/berth/internal/require"
	"github.com/berthrun/berth/internal/sys/sysns"
)

// wire is a raw socket on a link of a namespace.
type wire struct {
	t     *testing.T
	fd    int
	index int
}

func openWire(t *testing.T, netns, link string) *wire {
	t.Helper()
	w := &wire{t: t}
	const all = unix.ETH_P_ALL<<8 | unix.ETH_P_ALL>>8
	err := sysns.InNetNS(netns, func() (err error) {
		found, err := net.InterfaceByName(link)
		if err != nil {
			return err
		}
		w.index = found.Index
		if w.fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, all&0xffff); err != nil {
			return err
		}
		return unix.Bind(w.fd, &unix.SockaddrLinklayer{Protocol: all & 0xffff, Ifindex: w.index})
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Close(w.fd) })
	if err := unix.SetsockoptTimeval(w.fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Sec: 1}); err != nil {
		t.Fatal(err)
	}
	return w
}

func (w *wire) send(frame []byte) {
	w.t.Helper()
	if _, err := unix.Write(w.fd, frame); err != nil {
		w.t.Fatal(err)
	}
}

// until reads frames up to the frame "fence", and returns the names of the forged ones.
func (w *wire) until(fence string) (forged []string) {
	w.t.Helper()
	b := make([]byte, 4096)
	for deadline := time.Now().Add(require.Patience(5 * time.Second)); ; {
		n, err := unix.Read(w.fd, b)
		if err == nil {
			if bytes.Contains(b[:n], []byte(fence)) {
				return forged
			}
			if _, name, found := bytes.Cut(b[:n], []byte("forged:")); found {
				forged = append(forged, string(bytes.TrimRight(name, "\x00")))
			}
		}
		if time.Now().After(deadline) {
			w.t.Fatalf("%q did not arrive, %q did", fence, forged)
		}
	}
}

func ethernet(dst, src []byte, kind uint16, payload ...[]byte) []byte {
	return append(binary.BigEndian.AppendUint16(slices.Concat(dst, src), kind), slices.Concat(payload...)...)
}

func ipv4(src, dst netip.Addr, text string) []byte {
	b := []byte{0x45, 0, 0, byte(28 + len(text)), 0, 1, 0, 0, 64, unix.IPPROTO_UDP, 0, 0}
	b = slices.Concat(b, src.AsSlice(), dst.AsSlice())
	sum := uint32(0)
	for i := 0; i < 20; i += 2 {
		sum += uint32(binary.BigEndian.Uint16(b[i:]))
	}
	binary.BigEndian.PutUint16(b[10:], ^uint16(sum+sum>>16))
	return slices.Concat(b, []byte{0x30, 0x39, 0x30, 0x39, 0, byte(8 + len(text)), 0, 0}, []byte(text))
}

func ipv6(src, dst netip.Addr, proto byte, payload []byte) []byte {
	b := []byte{0x60, 0, 0, 0, 0, byte(len(payload)), proto, 255}
	return slices.Concat(b, src.AsSlice(), dst.AsSlice(), payload)
}

func arp(op byte, mac []byte, addr netip.Addr, to netip.Addr) []byte {
	return slices.Concat([]byte{0, 1, 8, 0, 6, 4, 0, op}, mac, addr.AsSlice(), make([]byte, 6), to.AsSlice())
}

func macOfAddr(addr netip.Addr) []byte {
	b := addr.As4()
	return append([]byte{0x0a, 0x58}, b[:]...)
}

func localOf(mac []byte) netip.Addr {
	return netip.AddrFrom16([16]byte{0xfe, 0x80, 8: mac[0] ^ 2, mac[1], mac[2], 0xff, 0xfe, mac[3], mac[4], mac[5]})
}

// spoofLab is a network with a pod that forges frames and a pod that they would harm.
type spoofLab struct {
	*lab
	n             *builtin.Network
	forger, other *network.Attachment
	me, you       []netip.Addr
	gateway       []netip.Addr
}

func newSpoofLab(t *testing.T, privileged bool) *spoofLab {
	l := &spoofLab{lab: newLab(t)}
	cfg := l.config()
	cfg.Subnets = []netip.Prefix{netip.MustParsePrefix("10.97.0.0/24"), netip.MustParsePrefix("fd00:97::/64")}
	l.n = l.open(cfg)
	l.forger, l.other = l.pod(), l.pod()
	l.forger.Privileged = privileged
	l.me, l.you = l.attach(l.n, l.forger).IPs, l.attach(l.n, l.other).IPs
	l.gateway = []netip.Addr{netip.MustParseAddr("10.97.0.1"), netip.MustParseAddr("fd00:97::1")}
	t.Cleanup(func() {
		for _, att := range []*network.Attachment{l.forger, l.other} {
			if err := l.n.Detach(t.Context(), att); err != nil {
				t.Error(err)
			}
		}
		if err := l.n.Close(); err != nil {
			t.Error(err)
		}
		if left := l.run(l.host, "nft", "list", "tables"); strings.Contains(left, "berth") {
			t.Errorf("tables are left:\n%s", left)
		}
	})
	return l
}

// forged returns the frames that a pod may not send to a receiver, by the kind of forgery. Each
// frame contains its name.
func (l *spoofLab) forged(to []netip.Addr) map[string][]byte {
	mine, yours, dst := macOfAddr(l.me[0]), macOfAddr(l.you[0]), macOfAddr(to[0])
	all := map[string][]byte{}
	for name, src := range map[string]string{"loopback": "127.0.0.1", "foreign": "8.8.8.8", "pod": l.you[0].String(), "gateway": "10.97.0.1", "none": "0.0.0.0"} {
		all["ip4-"+name] = ethernet(dst, mine, unix.ETH_P_IP, ipv4(netip.MustParseAddr(src), to[0], "forged:ip4-"+name))
	}
	for name, src := range map[string]string{"loopback": "::1", "foreign": "2001:db8::1", "pod": l.you[1].String(), "gateway": "fd00:97::1", "none": "::", "local": localOf(yours).String()} {
		all["ip6-"+name] = ethernet(dst, mine, unix.ETH_P_IPV6, ipv6(netip.MustParseAddr(src), to[1], unix.IPPROTO_NONE, []byte("forged:ip6-"+name)))
	}
	all["mac-of-pod"] = ethernet(dst, yours, unix.ETH_P_IP, ipv4(l.me[0], to[0], "forged:mac-of-pod"))
	all["mac-foreign"] = ethernet(dst, []byte{2, 0, 0, 0, 0, 9}, unix.ETH_P_IP, ipv4(l.me[0], to[0], "forged:mac-foreign"))
	everybody := bytes.Repeat([]byte{0xff}, 6)
	all["arp-reply"] = ethernet(dst, mine, unix.ETH_P_ARP, arp(2, mine, l.you[0], to[0]), []byte("forged:arp-reply"))
	all["arp-gratuitous"] = ethernet(everybody, mine, unix.ETH_P_ARP, arp(1, mine, l.you[0], l.you[0]), []byte("forged:arp-gratuitous"))
	all["arp-gateway"] = ethernet(everybody, mine, unix.ETH_P_ARP, arp(2, mine, l.gateway[0], to[0]), []byte("forged:arp-gateway"))
	all["arp-mac"] = ethernet(dst, mine, unix.ETH_P_ARP, arp(2, yours, l.me[0], to[0]), []byte("forged:arp-mac"))
	advert := slices.Concat([]byte{136, 0, 0, 0, 0x60, 0, 0, 0}, l.you[1].AsSlice(), []byte{2, 1}, mine)
	all["nd-advertisement"] = ethernet(dst, mine, unix.ETH_P_IPV6, ipv6(l.me[1], to[1], unix.IPPROTO_ICMPV6, append(advert, "forged:nd-advertisement"...)))
	hop := slices.Concat([]byte{unix.IPPROTO_ICMPV6, 0, 5, 2, 0, 0, 1, 0}, advert)
	all["nd-behind-options"] = ethernet(dst, mine, unix.ETH_P_IPV6, ipv6(l.me[1], to[1], 0, append(hop, "forged:nd-behind-options"...)))
	router := slices.Concat([]byte{134, 0, 0, 0, 64, 0, 0xff, 0xff}, make([]byte, 8))
	all["nd-router"] = ethernet(dst, mine, unix.ETH_P_IPV6, ipv6(localOf(mine), to[1], unix.IPPROTO_ICMPV6, append(router, "forged:nd-router"...)))
	redirect := slices.Concat([]byte{137, 0, 0, 0, 0, 0, 0, 0}, l.you[1].AsSlice(), l.you[1].AsSlice())
	all["nd-redirect"] = ethernet(dst, mine, unix.ETH_P_IPV6, ipv6(localOf(mine), to[1], unix.IPPROTO_ICMPV6, append(redirect, "forged:nd-redirect"...)))
	all["tagged"] = ethernet(dst, mine, unix.ETH_P_8021Q, []byte{0, 7, 8, 0}, ipv4(l.me[0], to[0], "forged:tagged"))
	all["unknown"] = ethernet(dst, mine, 0x88b5, []byte("forged:unknown"), make([]byte, 46))
	return all
}

// TestPodsCannotForgeSources: a pod with raw sockets sends frames with other sources. None arrives
// at the host or at another pod. Frames with the pod's own source do.
func TestPodsCannotForgeSources(t *testing.T) {
	l := newSpoofLab(t, false)
	out := openWire(t, l.forger.NetNS, "eth0")
	for name, receiver := range map[string]struct {
		netns, link string
		to          []netip.Addr
	}{"host": {l.host, "berth0", l.gateway}, "pod": {l.other.NetNS, "eth0", l.you}} {
		in := openWire(t, receiver.netns, receiver.link)
		for _, frame := range l.forged(receiver.to) {
			out.send(frame)
		}
		out.send(ethernet(macOfAddr(receiver.to[0]), macOfAddr(l.me[0]), unix.ETH_P_IP, ipv4(l.me[0], receiver.to[0], "fence of "+name)))
		if arrived := in.until("fence of " + name); len(arrived) > 0 {
			slices.Sort(arrived)
			t.Errorf("at the %s arrived %q", name, arrived)
		}
	}
	l.checkHonest(t)
}

// checkHonest: frames with the pods' own sources arrive, also over link-local addresses. Duplicate
// address detection completes.
func (l *spoofLab) checkHonest(t *testing.T) {
	t.Helper()
	l.serve(l.other.NetNS, 7000, "other")
	for _, addr := range []string{l.you[0].String(), l.you[1].String()} {
		for _, proto := range []string{"tcp", "udp"} {
			if name, _, err := ask(l.forger.NetNS, proto, addr, 7000); err != nil || name != "other" {
				t.Errorf("%s to %s: %q, %v", proto, addr, name, err)
			}
		}
	}
	local := localOf(macOfAddr(l.you[0]))
	for deadline := time.Now().Add(require.Patience(10 * time.Second)); ; time.Sleep(50 * time.Millisecond) {
		text := l.run(l.forger.NetNS, "ip", "-6", "addr", "show", "dev", "eth0") + l.run(l.other.NetNS, "ip", "-6", "addr", "show", "dev", "eth0")
		if strings.Contains(text, "dadfailed") || time.Now().After(deadline) {
			t.Fatalf("duplicates: %s", text)
		}
		if !strings.Contains(text, "tentative") && strings.Count(text, "scope link") == 2 {
			break
		}
	}
	if name, _, err := ask(l.forger.NetNS, "udp", local.String()+"%eth0", 7000); err != nil || name != "other" {
		t.Errorf("link-local: %q, %v", name, err)
	}
}

// TestPrivilegedPodsRoute: a node of a cluster can send with the addresses of its own pods, but not
// with those of the host's loopback.
func TestPrivilegedPodsRoute(t *testing.T) {
	l := newSpoofLab(t, true)
	out, in := openWire(t, l.forger.NetNS, "eth0"), openWire(t, l.other.NetNS, "eth0")
	nested := netip.MustParseAddr("10.244.3.7")
	out.send(ethernet(macOfAddr(l.you[0]), macOfAddr(l.me[0]), unix.ETH_P_IP, ipv4(nested, l.you[0], "routed")))
	in.until("routed")

	var host net.PacketConn
	if err := sysns.InNetNS(l.host, func() (err error) {
		host, err = net.ListenPacket("udp4", "10.97.0.1:12345")
		return err
	}); err != nil {
		t.Fatal(err)
	}
	defer host.Close()
	// The kernel itself drops 127.0.0.1, which the host has. berth's guard drops the rest of
	// 127.0.0.0/8.
	for _, packet := range [][]byte{
		ipv4(netip.MustParseAddr("127.0.0.2"), l.gateway[0], "forged"), ipv4(l.me[0], l.gateway[0], "fence"),
	} {
		out.send(ethernet(macOfAddr(l.gateway[0]), macOfAddr(l.me[0]), unix.ETH_P_IP, packet))
	}
	if err := host.SetReadDeadline(time.Now().Add(require.Patience(5 * time.Second))); err != nil {
		t.Fatal(err)
	}
	b := make([]byte, 64)
	if n, from, err := host.ReadFrom(b); err != nil || string(b[:n]) != "fence" {
		t.Errorf("%q from %v, %v, want the fence", b[:n], from, err)
	}
}

// TestChecksSurviveOthers: berth creates the table again if another program removes it, with the
// existing pods. Another berth process keeps them.
func TestChecksSurviveOthers(t *testing.T) {
	l := newSpoofLab(t, false)
	want := l.run(l.host, "nft", "list", "table", "bridge", "berth")
	if !strings.Contains(want, fmt.Sprint(l.me[0])) {
		t.Fatalf("the pod's address is not checked:\n%s", want)
	}
	l.run(l.host, "nft", "delete", "table", "bridge", "berth")
	if err := l.n.Ready(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := l.run(l.host, "nft", "list", "table", "bridge", "berth"); !strings.Contains(got, fmt.Sprint(l.me[0])) {
		t.Errorf("after its removal:\n%s", got)
	}
	if err := l.n.Close(); err != nil {
		t.Fatal(err)
	}
	cfg := l.config()
	l.n = l.open(cfg)
	out, in := openWire(t, l.forger.NetNS, "eth0"), openWire(t, l.other.NetNS, "eth0")
	// The guard of the host's loopback drops no such packet. Only the source checks do.
	out.send(l.forged(l.you)["ip4-foreign"])
	out.send(ethernet(macOfAddr(l.you[0]), macOfAddr(l.me[0]), unix.ETH_P_IP, ipv4(l.me[0], l.you[0], "fence")))
	if arrived := in.until("fence"); len(arrived) > 0 {
		t.Errorf("after a restart arrived %q", arrived)
	}
}

// TestChecksAreListed: nft shows the names of the links whose frames are checked.
func TestChecksAreListed(t *testing.T) {
	l := newSpoofLab(t, false)
	if guarded := l.run(l.host, "nft", "list", "set", "bridge", "berth", "guarded"); strings.Count(guarded, `"veth`) != 2 {
		t.Errorf("the links whose frames are checked:\n%s", guarded)
	}
}
