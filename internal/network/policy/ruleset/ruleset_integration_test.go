//go:build integration

package ruleset_test

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/berthrun/berth/internal/network/policy"
	"github.com/berthrun/berth/internal/network/policy/ruleset"
	"github.com/berthrun/berth/internal/sys/sysns"
)

// TestPacketsAreTreatedAsTheModelSays sends packets between all stations, before and after each of a
// row of random models, and compares which arrive and are answered with Model.Allows. Each model but
// the first is a change of the table of the one before it. BERTH_POLICY_SEED repeats a run.
func TestPacketsAreTreatedAsTheModelSays(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	if text := os.Getenv("BERTH_POLICY_SEED"); text != "" {
		seed, _ = strconv.ParseUint(text, 10, 64)
	}
	l := newLab(t, 4)
	g := rand.New(rand.NewPCG(seed, 0))
	senders := map[*station]net.PacketConn{}
	var answers sync.Map
	for _, s := range l.stations {
		conn := l.packets(s.netns, askedFrom)
		senders[s] = conn
		go func() {
			b := make([]byte, 100)
			for {
				n, from, err := conn.ReadFrom(b)
				if err != nil {
					return
				}
				answers.Store(fmt.Sprintf("%s %s", from, b[:n]), true)
			}
		}()
	}
	for round := range 6 {
		m := randomModel(g, l)
		if round == 5 {
			m = model(l.stations[0], nil) // nothing is isolated any more
		}
		l.apply(m)
		if ok, err := l.table.Intact(); !ok || err != nil {
			t.Errorf("seed %d, round %d: the table is not as it was written: %v", seed, round, err)
		}
		type packet struct {
			to      *station
			conn    policy.Conn
			text    string
			allowed bool
		}
		var all []packet
		for _, from := range l.stations {
			for _, to := range l.stations {
				for i := range from.addrs {
					for _, port := range ports() {
						c := policy.Conn{Source: from.addrs[i], Destination: to.addrs[i], Proto: 17, Port: port}
						all = append(all, packet{to, c, fmt.Sprintf("%d:%s", round, from.addrs[i]), m.Allows(c)})
						senders[from].WriteTo([]byte(all[len(all)-1].text), net.UDPAddrFromAddrPort(netip.AddrPortFrom(to.addrs[i], port)))
					}
				}
			}
		}
		arrived := func(p packet) (heard, answered bool) {
			_, answered = answers.Load(fmt.Sprintf("%s %s", netip.AddrPortFrom(p.conn.Destination, p.conn.Port), p.text))
			return p.to.has(fmt.Sprintf("%s %d %s", p.conn.Source, p.conn.Port, p.text)), answered
		}
		deadline := time.Now().Add(10 * time.Second)
		for _, p := range all {
			for heard, answered := arrived(p); p.allowed && !(heard && answered); heard, answered = arrived(p) {
				if time.Now().After(deadline) {
					t.Fatalf("seed %d, round %d: %+v is allowed; arrived %v, answered %v\n%s", seed, round, p.conn, heard, answered, l.rules())
				}
				time.Sleep(time.Millisecond)
			}
		}
		time.Sleep(100 * time.Millisecond) // for what should not arrive
		for _, p := range all {
			if heard, answered := arrived(p); !p.allowed && (heard || answered) {
				t.Fatalf("seed %d, round %d: %+v is not allowed; arrived %v, answered %v\n%s", seed, round, p.conn, heard, answered, l.rules())
			}
		}
	}
	if text := l.rules(); strings.Contains(text, "/default/") || strings.Contains(text, "class") {
		t.Errorf("rules of former models are still there:\n%s", text)
	}
}

// randomModel isolates some pods of the lab. Grants keep their names while their rules stay.
func randomModel(g *rand.Rand, l *lab) *policy.Model {
	m := &policy.Model{Isolated: [2]map[netip.Addr][]string{{}, {}}, Grants: map[string]*policy.Grant{}}
	pods := l.stations[:len(l.stations)-1]
	some := func() (all []netip.Addr) {
		for _, s := range l.stations {
			if g.IntN(2) == 0 {
				all = append(all, s.addrs...)
			}
		}
		slices.SortFunc(all, netip.Addr.Compare)
		return all
	}
	for d := range policy.Direction(2) {
		var names []string
		for range g.IntN(4) {
			grant := &policy.Grant{Direction: d}
			for range g.IntN(3) {
				r := policy.Rule{AnyPeer: g.IntN(4) == 0, AnyPort: g.IntN(3) == 0}
				if !r.AnyPort {
					r.Ports = [][]policy.PortRange{nil, {{Proto: 17, First: 80, Last: 80}}, {{Proto: 17, First: 81, Last: 95}}, {{Proto: 6, First: 0, Last: 65535}, {Proto: 17, First: 0, Last: 65535}}}[g.IntN(4)]
				}
				for _, port := range ports()[:g.IntN(3)] {
					r.Named = append(r.Named, policy.NamedPort{Proto: 17, Port: port, Pods: some()})
				}
				if !r.AnyPeer {
					r.Pods = some()
					r.Blocks = [][]policy.Range{
						nil,
						{block("10.1.0.0", "10.1.0.3")},
						{block("0.0.0.0", "10.1.0.2"), block("192.0.2.2", "255.255.255.255"), block("::", "fd00:1::2")},
						{block("10.1.0.5", "10.1.0.5"), block("2001:db8::", "2001:db8::ffff"), block("fd00:1::3", "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff")},
					}[g.IntN(4)]
				}
				grant.Rules = append(grant.Rules, r)
			}
			h := sha256.New()
			for _, r := range grant.Rules {
				fmt.Fprintln(h, r.AnyPeer, r.Blocks, r.AnyPort, r.Ports, len(r.Named))
			}
			grant.Name = fmt.Sprintf("%s/default/p%d/%x", d, len(names), h.Sum(nil)[:6])
			m.Grants[grant.Name] = grant
			names = append(names, grant.Name)
		}
		for _, pod := range pods {
			if g.IntN(3) == 0 {
				continue
			}
			var own []string
			for _, name := range names {
				if g.IntN(2) == 0 {
					own = append(own, name)
				}
			}
			slices.Sort(own)
			for _, addr := range pod.addrs {
				m.Isolated[d][addr] = own
			}
		}
	}
	return m
}

func block(first, last string) policy.Range {
	return policy.Range{First: netip.MustParseAddr(first), Last: netip.MustParseAddr(last)}
}

// TestEstablishedConnectionsAreCut: a change applies to connections that exist, in both directions,
// also to one that sends in the direction of answers only.
func TestEstablishedConnectionsAreCut(t *testing.T) {
	l := newLab(t, 2)
	client, server := l.stations[0], l.stations[1]
	open, closed := model(server, nil), model(server, map[policy.Direction][]policy.Rule{policy.Ingress: {}})
	l.apply(open)
	var listener net.Listener
	if err := sysns.InNetNS(server.netns, func() (err error) {
		listener, err = net.Listen("tcp", ":80")
		return err
	}); err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	near, err := dial(client.netns, netip.AddrPortFrom(server.addrs[0], 80).String())
	if err != nil {
		t.Fatal(err)
	}
	defer near.Close()
	far, err := listener.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer far.Close()
	asked := l.packets(client.netns, 0)
	to := net.UDPAddrFromAddrPort(netip.AddrPortFrom(server.addrs[1], 81))
	asked.WriteTo([]byte("first"), to)
	asked.SetReadDeadline(time.Now().Add(10 * time.Second))
	if _, _, err := asked.ReadFrom(make([]byte, 9)); err != nil {
		t.Fatal(err)
	}

	l.apply(closed)
	for name, ends := range map[string][2]net.Conn{"client": {near, far}, "server": {far, near}} {
		if _, err := ends[0].Write([]byte(name)); err != nil {
			t.Fatal(err)
		}
		ends[1].SetReadDeadline(time.Now().Add(patience))
		if n, err := ends[1].Read(make([]byte, 99)); n > 0 {
			t.Errorf("the %s still reaches the other end: %v", name, err)
		}
	}
	server.conns[1].WriteTo([]byte("answer"), net.UDPAddrFromAddrPort(netip.AddrPortFrom(client.addrs[1], uint16(asked.LocalAddr().(*net.UDPAddr).Port))))
	asked.SetReadDeadline(time.Now().Add(patience))
	if n, _, err := asked.ReadFrom(make([]byte, 9)); n > 0 {
		t.Errorf("an answer to an earlier packet still arrives: %v", err)
	}
	l.apply(open)
	// TCP repeats what was lost.
	far.SetReadDeadline(time.Now().Add(20 * time.Second))
	if b := make([]byte, 6); true {
		if _, err := far.Read(b); err != nil || !bytes.HasPrefix(b, []byte("client")) {
			t.Fatalf("after the connection is allowed again: %q, %v", b, err)
		}
	}
	near.SetReadDeadline(time.Now().Add(20 * time.Second))
	if b := make([]byte, 6); true {
		if _, err := near.Read(b); err != nil || string(b) != "server" {
			t.Fatalf("after the connection is allowed again: %q, %v", b, err)
		}
	}
}

// TestNodeAndServices: the node reaches an isolated pod and answers it, a pod reaches itself, and
// rules see the pod behind a service, and its port.
func TestNodeAndServices(t *testing.T) {
	l := newLab(t, 2)
	pod, other := l.stations[0], l.stations[1]
	for _, s := range []string{
		"add table inet services", "add chain inet services pre { type nat hook prerouting priority dstnat; }",
		"add chain inet services post { type nat hook postrouting priority srcnat; }",
		fmt.Sprintf("add rule inet services pre ip daddr 10.96.0.1 udp dport 53 dnat ip to %s:80", other.addrs[0]),
		fmt.Sprintf("add rule inet services pre ip daddr 10.96.0.1 udp dport 54 dnat ip to %s:81", other.addrs[0]),
		fmt.Sprintf("add rule inet services pre ip daddr 10.96.0.2 udp dport 53 dnat ip to %s:80", pod.addrs[0]),
		fmt.Sprintf("add rule inet services pre ip6 daddr fd96::1 udp dport 53 dnat ip6 to [%s]:80", other.addrs[1]),
		fmt.Sprintf("add rule inet services post ip saddr %s ip daddr %[1]s masquerade", pod.addrs[0]),
	} {
		l.run(l.node, "nft", s)
	}
	l.run(l.node, "sh", "-c", "echo 1 > /sys/class/net/to-pod0/brport/hairpin_mode || ip link set to-pod0 type bridge_slave hairpin on")
	rules := []policy.Rule{{Pods: other.addrs, Ports: []policy.PortRange{{Proto: 17, First: 80, Last: 80}}}}
	l.apply(model(pod, map[policy.Direction][]policy.Rule{policy.Egress: rules, policy.Ingress: {}}))

	answered := func(from string, to string, wait time.Duration) bool {
		t.Helper()
		conn := l.packets(from, 0)
		defer conn.Close()
		for deadline := time.Now().Add(wait); time.Now().Before(deadline); {
			conn.WriteTo([]byte("?"), net.UDPAddrFromAddrPort(netip.MustParseAddrPort(to)))
			conn.SetReadDeadline(time.Now().Add(50 * time.Millisecond))
			if n, _, _ := conn.ReadFrom(make([]byte, 9)); n > 0 {
				return true
			}
		}
		return false
	}
	l.listen(&station{netns: l.node, heard: map[string]bool{}}, 80)
	for _, c := range []struct {
		what, from, to string
		allowed        bool
	}{
		{"the node to the pod", l.node, netip.AddrPortFrom(pod.addrs[0], 80).String(), true},
		{"the node to the pod by IPv6", l.node, netip.AddrPortFrom(pod.addrs[1], 80).String(), true},
		{"the pod to its node", pod.netns, "10.1.0.1:80", true},
		{"the pod to its node by IPv6", pod.netns, "[fd00:1::1]:80", true},
		{"the pod to another address of its node", pod.netns, "192.0.2.1:80", true},
		{"the pod to itself", pod.netns, netip.AddrPortFrom(pod.addrs[0], 80).String(), true},
		{"the pod to itself through a service", pod.netns, "10.96.0.2:53", true},
		{"through a service to an allowed port", pod.netns, "10.96.0.1:53", true},
		{"through a service to an allowed port by IPv6", pod.netns, "[fd96::1]:53", true},
		{"through a service to another port", pod.netns, "10.96.0.1:54", false},
		{"from another pod through a service", other.netns, "10.96.0.2:53", false},
		{"from outside", l.stations[2].netns, netip.AddrPortFrom(pod.addrs[0], 80).String(), false},
		{"to outside", pod.netns, "192.0.2.2:80", false},
	} {
		wait := patience
		if c.allowed {
			wait = 10 * time.Second
		}
		if got := answered(c.from, c.to, wait); got != c.allowed {
			t.Errorf("%s: answered %v, want %v", c.what, got, c.allowed)
		}
	}
}

// TestNothingOpensBetween: while tables are replaced, as by controllers that start again, and changed,
// no packet gets through that no model allows.
func TestNothingOpensBetween(t *testing.T) {
	l := newLab(t, 2)
	client, server := l.stations[0], l.stations[1]
	rule := policy.Rule{AnyPeer: true, Ports: []policy.PortRange{{Proto: 17, First: 81, Last: 81}}}
	closed := model(server, map[policy.Direction][]policy.Rule{policy.Ingress: {}})
	other := model(server, map[policy.Direction][]policy.Rule{policy.Ingress: {rule}})
	l.apply(closed)
	var stop atomic.Bool
	var flood sync.WaitGroup
	sent := 0
	conn := l.packets(client.netns, 0)
	flood.Go(func() {
		for !stop.Load() {
			for _, addr := range server.addrs {
				if _, err := conn.WriteTo([]byte("flood"), net.UDPAddrFromAddrPort(netip.AddrPortFrom(addr, 80))); err == nil {
					sent++
				}
			}
		}
	})
	file, err := sysns.OpenNetNS(l.node)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	for i := range 20 {
		table := ruleset.New("berth-policy", file)
		for _, m := range []*policy.Model{other, closed} {
			if err := table.Apply(m); err != nil {
				t.Fatalf("%d: %v", i, err)
			}
		}
	}
	stop.Store(true)
	flood.Wait()
	for _, addr := range client.addrs {
		if server.has(fmt.Sprintf("%s 80 flood", addr)) {
			t.Errorf("a packet of %s came through, of %d", addr, sent)
		}
	}
	if sent == 0 {
		t.Error("nothing was sent")
	}
}

// TestReplacementCutOff: a process that ends while it replaces the tables leaves those that it enforces
// meanwhile. The next process removes them.
func TestReplacementCutOff(t *testing.T) {
	l := newLab(t, 2)
	m := model(l.stations[0], map[policy.Direction][]policy.Rule{policy.Ingress: {{AnyPeer: true, AnyPort: true}}})
	handovers := func() int {
		return strings.Count(l.run(l.node, "nft", "list", "tables"), "berth-policy-handover")
	}
	for _, end := range []func() error{func() error { return l.table.Apply(m) }, l.table.Remove} {
		for _, family := range []string{"ip", "ip6"} {
			l.run(l.node, "nft", "add table "+family+" berth-policy-handover; add chain "+family+" berth-policy-handover ingress { type filter hook postrouting priority 91; policy drop; }")
		}
		if n := handovers(); n != 2 {
			t.Fatalf("%d tables of a replacement, want 2", n)
		}
		if err := end(); err != nil {
			t.Fatal(err)
		}
		if n := handovers(); n != 0 {
			t.Errorf("%d tables of a replacement are left", n)
		}
	}
}

// TestTableOfOthers: a table that another program has changed or removed is noticed, and written
// again; other tables stay.
func TestTableOfOthers(t *testing.T) {
	l := newLab(t, 1)
	m := model(l.stations[0], map[policy.Direction][]policy.Rule{policy.Ingress: {{Pods: l.stations[0].addrs, AnyPort: true}}})
	for _, harm := range []string{"flush ruleset", "flush chain ip berth-policy ingress", "flush set ip6 berth-policy self", "delete table ip6 berth-policy"} {
		l.apply(m)
		if ok, err := l.table.Intact(); !ok || err != nil {
			t.Fatalf("before %s: %v, %v", harm, ok, err)
		}
		l.run(l.node, "nft", "add table inet foreign")
		l.run(l.node, "nft", harm)
		if ok, err := l.table.Intact(); ok || err != nil {
			t.Errorf("after %s: intact %v, %v", harm, ok, err)
		}
		l.run(l.node, "nft", "add table inet foreign")
		l.apply(m)
		if text := l.run(l.node, "nft", "list tables"); !strings.Contains(text, "foreign") {
			t.Errorf("after %s: %s", harm, text)
		}
	}
	if err := l.table.Remove(); err != nil {
		t.Fatal(err)
	}
	if text := l.run(l.node, "nft", "list tables"); strings.Contains(text, "berth-policy") {
		t.Errorf("still there:\n%s", text)
	}
}

// TestLargeModel: a model of thousands of elements is one transaction.
func TestLargeModel(t *testing.T) {
	l := newLab(t, 1)
	m := model(l.stations[0], nil)
	for i := range 60 {
		r := policy.Rule{Ports: []policy.PortRange{{Proto: 6, First: uint16(i), Last: uint16(i)}}}
		for j := range 250 {
			r.Pods = append(r.Pods, netip.AddrFrom4([4]byte{10, 9, byte(i), byte(j)}))
		}
		name := fmt.Sprintf("egress/default/%d/x", i)
		m.Grants[name] = &policy.Grant{Name: name, Direction: policy.Egress, Rules: []policy.Rule{r, r, r}}
		m.Isolated[policy.Egress][netip.AddrFrom4([4]byte{10, 8, 0, byte(i)})] = []string{name}
	}
	l.apply(m)
	if ok, err := l.table.Intact(); !ok || err != nil {
		t.Error(ok, err)
	}
	l.apply(model(l.stations[0], nil))
	if err := l.table.Probe(); err != nil {
		t.Error(err)
	}
}
