//go:build integration

package ruleset_test

import (
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/berthrun/berth/internal/network/policy"
	"github.com/berthrun/berth/internal/network/policy/ruleset"
	"github.com/berthrun/berth/internal/require"
	"github.com/berthrun/berth/internal/sys/sysns"
)

// lab is a namespace that stands for a node, with pods on a bridge and one machine outside.
type lab struct {
	t     *testing.T
	node  string
	table *ruleset.Table
	// stations are the pods, and last the machine outside.
	stations []*station
}

// station is a namespace with an address of each family.
type station struct {
	netns string
	addrs []netip.Addr

	mu sync.Mutex
	// heard are the packets that the station has received, as "SOURCE PORT".
	heard map[string]bool
	conns []net.PacketConn
}

// ports are those that stations listen on.
func ports() []uint16 { return []uint16{80, 81, 90} }

const askedFrom = 1000 // the source port of all packets

func newLab(t *testing.T, pods int) *lab {
	t.Helper()
	require.Root(t)
	require.Binary(t, "ip")
	require.Binary(t, "nft")
	l := &lab{t: t, node: netns(t, "node")}
	for _, family := range []string{"iptables", "ip6tables"} {
		l.sysctl("net/bridge/bridge-nf-call-"+family, "1")
	}
	l.sysctl("net/ipv4/ip_forward", "1")
	l.sysctl("net/ipv6/conf/all/forwarding", "1")
	l.ip(l.node, "link add br0 type bridge")
	l.ip(l.node, "addr add 10.1.0.1/24 dev br0")
	l.ip(l.node, "addr add fd00:1::1/64 dev br0 nodad")
	l.ip(l.node, "link set br0 up")
	l.ip(l.node, "link set lo up")
	for i := range pods {
		l.station(fmt.Sprint("pod", i), fmt.Sprintf("10.1.0.%d", i+2), fmt.Sprintf("fd00:1::%x", i+2), "10.1.0.1", "fd00:1::1")
		l.ip(l.node, fmt.Sprintf("link set to-pod%d master br0", i))
	}
	l.station("outside", "192.0.2.2", "2001:db8::2", "192.0.2.1", "2001:db8::1")
	l.ip(l.node, "addr add 192.0.2.1/24 dev to-outside")
	l.ip(l.node, "addr add 2001:db8::1/64 dev to-outside nodad")
	file, err := sysns.OpenNetNS(l.node)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { file.Close() })
	l.table = ruleset.New("berth-policy", file)
	t.Cleanup(func() { l.table.Close() })
	for _, s := range l.stations {
		l.awaitReachable(s)
	}
	return l
}

func netns(t *testing.T, name string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	if err := sysns.NewNetNS(path); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := sysns.RemoveNetNS(path); err != nil {
			t.Error(err)
		}
	})
	return path
}

func (l *lab) sysctl(key, value string) {
	l.t.Helper()
	err := sysns.InNetNS(l.node, func() error { return os.WriteFile(filepath.Join("/proc/sys", key), []byte(value), 0) })
	if err != nil {
		l.t.Fatal(err)
	}
}

func (l *lab) ip(netns, args string) { l.run(netns, "ip", strings.Fields(args)...) }

func (l *lab) run(netns, program string, args ...string) string {
	l.t.Helper()
	var out []byte
	err := sysns.InNetNS(netns, func() (err error) {
		out, err = exec.Command(program, args...).CombinedOutput()
		return err
	})
	if err != nil {
		l.t.Fatalf("%s %q: %v\n%s", program, args, err, out)
	}
	return string(out)
}

// station makes a namespace that is connected to the node.
func (l *lab) station(name, ip4, ip6, gateway4, gateway6 string) *station {
	l.t.Helper()
	s := &station{netns: netns(l.t, name), heard: map[string]bool{}, addrs: []netip.Addr{netip.MustParseAddr(ip4), netip.MustParseAddr(ip6)}}
	l.ip(l.node, "link add to-"+name+" type veth peer name eth0 netns "+s.netns)
	l.ip(s.netns, "link set lo up")
	l.ip(s.netns, "addr add "+ip4+"/24 dev eth0")
	l.ip(s.netns, "addr add "+ip6+"/64 dev eth0 nodad")
	l.ip(s.netns, "link set eth0 up")
	l.ip(l.node, "link set to-"+name+" up")
	l.ip(s.netns, "route add default via "+gateway4)
	l.ip(s.netns, "-6 route add default via "+gateway6)
	for _, port := range ports() {
		l.listen(s, port)
	}
	l.stations = append(l.stations, s)
	return s
}

// listen answers each packet to a port.
func (l *lab) listen(s *station, port uint16) {
	l.t.Helper()
	conn := l.packets(s.netns, port)
	s.conns = append(s.conns, conn)
	go func() {
		b := make([]byte, 100)
		for {
			n, from, err := conn.ReadFrom(b)
			if err != nil {
				return
			}
			s.mu.Lock()
			s.heard[fmt.Sprintf("%s %d %s", addrOf(from), port, b[:n])] = true
			s.mu.Unlock()
			conn.WriteTo(b[:n], from)
		}
	}()
}

func (l *lab) packets(netns string, port uint16) net.PacketConn {
	l.t.Helper()
	var conn net.PacketConn
	err := sysns.InNetNS(netns, func() (err error) {
		conn, err = net.ListenPacket("udp", fmt.Sprintf(":%d", port))
		return err
	})
	if err != nil {
		l.t.Fatal(err)
	}
	l.t.Cleanup(func() { conn.Close() })
	return conn
}

func (s *station) has(what string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.heard[what]
}

func addrOf(a net.Addr) netip.Addr {
	ap, _ := netip.ParseAddrPort(a.String())
	return ap.Addr().Unmap().WithZone("")
}

// patience is how long a packet may take before it counts as dropped.
const patience = 400 * time.Millisecond

// dial connects by TCP from a namespace.
func dial(netns, to string) (c net.Conn, err error) {
	err = sysns.InNetNS(netns, func() error {
		c, err = (&net.Dialer{Timeout: patience}).Dial("tcp", to)
		return err
	})
	return c, err
}

func (l *lab) awaitReachable(s *station) {
	l.t.Helper()
	conn := l.packets(l.node, 0)
	defer conn.Close()
	for _, addr := range s.addrs {
		for deadline := time.Now().Add(10 * time.Second); ; {
			conn.WriteTo([]byte("up?"), net.UDPAddrFromAddrPort(netip.AddrPortFrom(addr, 80)))
			conn.SetReadDeadline(time.Now().Add(50 * time.Millisecond))
			if _, _, err := conn.ReadFrom(make([]byte, 9)); err == nil {
				break
			} else if time.Now().After(deadline) {
				l.t.Fatalf("the node does not reach %s: %v", addr, err)
			}
		}
	}
}

func (l *lab) apply(m *policy.Model) {
	l.t.Helper()
	if err := l.table.Apply(m); err != nil {
		l.t.Fatalf("%v\n%+v", err, m)
	}
}

// model returns a model with one grant of each given direction, for one pod.
func model(pod *station, grants map[policy.Direction][]policy.Rule) *policy.Model {
	m := &policy.Model{Isolated: [2]map[netip.Addr][]string{{}, {}}, Grants: map[string]*policy.Grant{}}
	for d, rules := range grants {
		name := fmt.Sprintf("%s/default/test/%d", d, len(rules))
		m.Grants[name] = &policy.Grant{Name: name, Direction: d, Rules: rules}
		for _, addr := range pod.addrs {
			m.Isolated[d][addr] = []string{name}
		}
	}
	return m
}

// rules are the tables as nft prints them.
func (l *lab) rules() string {
	l.t.Helper()
	return l.run(l.node, "nft", "list", "table", "ip", "berth-policy") + l.run(l.node, "nft", "list", "table", "ip6", "berth-policy")
}
