//go:build integration

package builtin_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berthrun/berth/internal/network"
	"github.com/berthrun/berth/internal/sys/sysns"
)

const (
	// patience bounds one answer. A machine that is busy makes it late.
	patience = 10 * time.Second
	// silence is how long an answer may take before it counts as dropped.
	silence = 950 * time.Millisecond
)

// errRepeated reports that a packet of a connection was lost: TCP had to send it again.
var errRepeated = errors.New("a packet was lost, and sent again")

// serve answers on a port of a namespace, over TCP and UDP and both families, with a name and the
// client's address. It runs until the test ends or stop is called, and keeps the namespace alive
// until then.
func (l *lab) serve(netns string, port int, name string) (stop func()) {
	l.t.Helper()
	var tcp net.Listener
	var udp net.PacketConn
	err := sysns.InNetNS(netns, func() (err error) {
		if tcp, err = net.Listen("tcp", fmt.Sprintf(":%d", port)); err != nil {
			return err
		}
		udp, err = net.ListenPacket("udp", fmt.Sprintf(":%d", port))
		return err
	})
	if err != nil {
		l.t.Fatal(err)
	}
	stop = func() { tcp.Close(); udp.Close() }
	l.t.Cleanup(stop)
	go func() {
		for {
			c, err := tcp.Accept()
			if err != nil {
				return
			}
			fmt.Fprintf(c, "%s %s\n", name, addrOf(c.RemoteAddr()))
			c.Close()
		}
	}()
	go func() {
		b := make([]byte, 100)
		for {
			_, from, err := udp.ReadFrom(b)
			if err != nil {
				return
			}
			udp.WriteTo(fmt.Appendf(nil, "%s %s\n", name, addrOf(from)), from)
		}
	}()
	return stop
}

func addrOf(a net.Addr) netip.Addr {
	ap, _ := netip.ParseAddrPort(a.String())
	return ap.Addr().Unmap().WithZone("")
}

// ask connects from a namespace and returns the server's name and the client's address as the
// server sees it. It fails if a packet was lost.
func ask(netns, proto, addr string, port int) (name, seen string, err error) {
	return askWithin(patience, netns, proto, addr, port)
}

func askWithin(limit time.Duration, netns, proto, addr string, port int) (name, seen string, err error) {
	var c net.Conn
	err = sysns.InNetNS(netns, func() (err error) {
		c, err = (&net.Dialer{Timeout: limit}).Dial(proto, net.JoinHostPort(addr, strconv.Itoa(port)))
		return err
	})
	if err != nil {
		return "", "", err
	}
	defer c.Close()
	c.SetDeadline(time.Now().Add(limit))
	if proto == "udp" {
		fmt.Fprint(c, "?")
	}
	line, err := bufio.NewReader(c).ReadString('\n')
	fmt.Sscan(line, &name, &seen)
	if tcp, ok := c.(*net.TCPConn); ok && err == nil {
		err = wantNoRepeat(tcp)
	}
	return name, seen, err
}

// wantNoRepeat returns errRepeated if the kernel has sent a packet of a connection more than once. TCP hides a lost packet
// otherwise, and a late answer does not show one.
func wantNoRepeat(c *net.TCPConn) error {
	raw, err := c.SyscallConn()
	if err != nil {
		return err
	}
	var info *unix.TCPInfo
	var infoErr error
	err = raw.Control(func(fd uintptr) { info, infoErr = unix.GetsockoptTCPInfo(int(fd), unix.IPPROTO_TCP, unix.TCP_INFO) })
	if err := errors.Join(err, infoErr); err != nil {
		return err
	}
	if info.Total_retrans > 0 {
		return errRepeated
	}
	return nil
}

func (l *lab) wantAnswer(from, proto, addr string, port int, name, seen string) {
	l.t.Helper()
	gotName, gotSeen, err := ask(from, proto, addr, port)
	if err != nil {
		l.t.Errorf("%s to %s port %d: %v", proto, addr, port, err)
		return
	}
	if gotName != name || (seen != "" && gotSeen != seen) {
		l.t.Errorf("%s to %s port %d: answered by %q, seen as %s; want %q, seen as %s", proto, addr, port, gotName, gotSeen, name, seen)
	}
}

func (l *lab) wantSilence(from, proto, addr string, port int) {
	l.t.Helper()
	if name, _, err := askWithin(silence, from, proto, addr, port); err == nil || errors.Is(err, errRepeated) {
		l.t.Errorf("%s to %s port %d: answered by %q, want no answer", proto, addr, port, name)
	}
}

// outside is a second host on the same link as the first. 192.0.2.1 and 2001:db8::1 are the lab's
// host, 192.0.2.2 and 2001:db8::2 the second one.
func (l *lab) outside() string {
	l.t.Helper()
	other := l.netns("outside")
	l.run(l.host, "ip", "link", "add", "wire", "type", "veth", "peer", "name", "wire", "netns", other)
	for ns, last := range map[string]string{l.host: "1", other: "2"} {
		l.run(ns, "ip", "addr", "add", "192.0.2."+last+"/24", "dev", "wire")
		l.run(ns, "ip", "addr", "add", "2001:db8::"+last+"/64", "dev", "wire", "nodad")
		l.run(ns, "ip", "link", "set", "wire", "up")
	}
	l.serve(other, 1, "other")
	for deadline := time.Now().Add(10 * time.Second); ; {
		if _, _, err := askWithin(silence, l.host, "tcp", "2001:db8::2", 1); err == nil {
			break
		} else if time.Now().After(deadline) {
			l.t.Fatal("the wire between the hosts does not come up: ", err)
		}
	}
	return other
}

func TestTraffic(t *testing.T) {
	for _, nf := range []string{"0", "1"} {
		t.Run("bridge-nf-call="+nf, func(t *testing.T) { testTraffic(t, nf) })
	}
}

func testTraffic(t *testing.T, bridgeNF string) {
	l := newLab(t)
	for _, family := range []string{"iptables", "ip6tables"} {
		l.sysctl(l.host, "net/bridge/bridge-nf-call-"+family, bridgeNF)
	}
	other := l.outside()
	n := l.open(l.config())
	defer n.Close()
	web := l.pod(network.Port{Protocol: "tcp", HostPort: 8080, ContainerPort: 80}, network.Port{Protocol: "udp", HostPort: 8080, ContainerPort: 80},
		network.Port{Protocol: "tcp", HostPort: 8081, ContainerPort: 80, HostIP: "127.0.0.1"},
		network.Port{Protocol: "tcp", HostPort: 8082, ContainerPort: 80, HostIP: "2001:db8::1"})
	client := l.pod()
	webIPs, clientIPs := l.attach(n, web).IPs, l.attach(n, client).IPs
	if len(webIPs) != 2 || !webIPs[0].Is4() || !webIPs[1].Is6() {
		t.Fatalf("addresses %v, want an IPv4 and an IPv6 one", webIPs)
	}
	l.serve(web.NetNS, 80, "web")
	l.serve(other, 9000, "other")
	hostIPs, otherIPs := []string{"192.0.2.1", "2001:db8::1"}, []string{"192.0.2.2", "2001:db8::2"}

	for _, proto := range []string{"tcp", "udp"} {
		for i, ip := range webIPs {
			gateway := gatewayOf(ip)
			l.wantAnswer(client.NetNS, proto, ip.String(), 80, "web", clientIPs[i].String())
			l.wantAnswer(l.host, proto, ip.String(), 80, "web", gateway)
			// Through the host port: from the host, from the second host (the pod sees the client's
			// own address), from another pod and from the pod itself.
			l.wantAnswer(l.host, proto, hostIPs[i], 8080, "web", "")
			l.wantAnswer(other, proto, hostIPs[i], 8080, "web", otherIPs[i])
			l.wantAnswer(client.NetNS, proto, hostIPs[i], 8080, "web", gateway)
			l.wantAnswer(web.NetNS, proto, hostIPs[i], 8080, "web", gateway)
			l.wantAnswer(web.NetNS, proto, gateway, 8080, "web", gateway)
			// Traffic that leaves the host has the host's address.
			l.wantAnswer(client.NetNS, proto, otherIPs[i], 9000, "other", hostIPs[i])
		}
		l.wantAnswer(l.host, proto, "127.0.0.1", 8080, "web", gatewayOf(webIPs[0]))
	}
	l.wantAnswer(l.host, "tcp", "127.0.0.1", 8081, "web", gatewayOf(webIPs[0]))
	l.wantSilence(other, "tcp", "192.0.2.1", 8081)
	l.wantAnswer(other, "tcp", "2001:db8::1", 8082, "web", "2001:db8::2")
	l.wantSilence(other, "tcp", "192.0.2.1", 8082)
	if _, _, err := ask(l.host, "tcp", "::1", 8080); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("[::1]:8080: %v, want a refusal at once", err)
	}
	if failed := l.run(web.NetNS, "ip", "-6", "addr", "show", "dadfailed"); failed != "" {
		t.Errorf("the pod takes its own address for a duplicate: %s", failed)
	}

	if err := n.Detach(context.Background(), web); err != nil {
		t.Fatal(err)
	}
	l.wantSilence(other, "tcp", "192.0.2.1", 8080)
	l.wantSilence(l.host, "tcp", "127.0.0.1", 8080)
}

// gatewayOf returns the address of the bridge of a pod's address. The lab's default subnets are a
// /22 and a /64.
func gatewayOf(ip netip.Addr) string {
	bits := 64
	if ip.Is4() {
		bits = 22
	}
	p, _ := ip.Prefix(bits)
	return p.Addr().Next().String()
}

// TestForeignTraffic: a host port applies to packets for the host, and not to packets that the host
// forwards. Pods cannot reach 127.0.0.1 of the host.
func TestForeignTraffic(t *testing.T) {
	l := newLab(t)
	other := l.outside()
	n := l.open(l.config())
	defer n.Close()
	web, client := l.pod(network.Port{Protocol: "tcp", HostPort: 9000, ContainerPort: 80}), l.pod()
	l.attach(n, web)
	ip := l.attach(n, client).IPs[0]
	l.serve(web.NetNS, 80, "web")
	l.serve(other, 9000, "other")
	l.wantAnswer(client.NetNS, "tcp", "192.0.2.2", 9000, "other", "192.0.2.1")

	l.serve(l.host, 7000, "host")
	l.wantAnswer(client.NetNS, "tcp", gatewayOf(ip), 7000, "host", ip.String())
	l.run(client.NetNS, "ip", "route", "add", "127.0.0.5/32", "via", gatewayOf(ip))
	l.run(client.NetNS, "ip", "addr", "del", "127.0.0.1/8", "dev", "lo")
	l.wantSilence(client.NetNS, "tcp", "127.0.0.5", 7000)
}

// TestClusterSubnets: pods of other nodes see a pod's own address. Other hosts see the host's
// address.
func TestClusterSubnets(t *testing.T) {
	l := newLab(t)
	other := l.outside()
	cfg := l.config()
	cfg.Subnets = []netip.Prefix{netip.MustParsePrefix("10.77.1.0/24"), netip.MustParsePrefix("fd77:1::/64")}
	cfg.Cluster = []netip.Prefix{netip.MustParsePrefix("10.77.0.0/16"), netip.MustParsePrefix("fd77::/16")}
	n := l.open(cfg)
	defer n.Close()
	for _, remote := range []string{"10.77.2.2/24", "fd77:2::2/64"} {
		l.run(other, "ip", "addr", "add", remote, "dev", "wire", "nodad")
	}
	for ns, routes := range map[string][2]string{l.host: {"10.77.2.0/24 192.0.2.2", "fd77:2::/64 2001:db8::2"}, other: {"10.77.1.0/24 192.0.2.1", "fd77:1::/64 2001:db8::1"}} {
		for _, route := range routes {
			to, via, _ := strings.Cut(route, " ")
			l.run(ns, "ip", "route", "add", to, "via", via)
		}
	}
	client := l.pod(network.Port{Protocol: "tcp", HostPort: 8080, ContainerPort: 80})
	ips := l.attach(n, client).IPs
	l.serve(client.NetNS, 80, "pod")
	l.serve(other, 9000, "other")
	for i, to := range [][2]string{{"10.77.2.2", "192.0.2.2"}, {"fd77:2::2", "2001:db8::2"}} {
		l.wantAnswer(client.NetNS, "tcp", to[0], 9000, "other", ips[i].String())
		l.wantAnswer(client.NetNS, "tcp", to[1], 9000, "other", []string{"192.0.2.1", "2001:db8::1"}[i])
	}
	l.wantAnswer(client.NetNS, "tcp", "192.0.2.1", 8080, "pod", "10.77.1.1")
}

// TestFirstPacket: a pod answers as soon as Attach has returned.
func TestFirstPacket(t *testing.T) {
	l := newLab(t)
	n := l.open(l.config())
	defer n.Close()
	l.serve(l.host, 81, "host")
	for range 100 {
		att := l.pod()
		l.serve(att.NetNS, 80, "pod")
		res := l.attach(n, att)
		for _, ip := range res.IPs {
			l.wantAnswer(l.host, "tcp", ip.String(), 80, "pod", "")
		}
		other := l.pod()
		for _, ip := range l.attach(n, other).IPs {
			l.wantAnswer(other.NetNS, "tcp", gatewayOf(ip), 81, "host", ip.String())
		}
		if err := n.Detach(context.Background(), other); err != nil {
			t.Fatal(err)
		}
		if err := n.Detach(context.Background(), att); err != nil {
			t.Fatal(err)
		}
	}
}

// TestFirstPod: the first port of an idle bridge brings up the bridge itself. The pod answers at
// once all the same.
func TestFirstPod(t *testing.T) {
	l := newLab(t)
	n := l.open(l.config())
	defer n.Close()
	for range 30 {
		att := l.pod()
		l.sysctl(att.NetNS, "net/ipv6/conf/default/disable_ipv6", "1")
		stop := l.serve(att.NetNS, 80, "pod")
		l.wantAnswer(l.host, "tcp", l.attach(n, att).IPs[0].String(), 80, "pod", "")
		stop()
		if err := errors.Join(n.Detach(t.Context(), att), sysns.RemoveNetNS(att.NetNS)); err != nil {
			t.Fatal(err)
		}
		for deadline := time.Now().Add(10 * time.Second); n.Info()["attachments"] != "0"; time.Sleep(5 * time.Millisecond) {
			if time.Now().After(deadline) {
				t.Fatal("the link never went")
			}
		}
	}
}
