//go:build integration

package builtin_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/network"
	"github.com/berthrun/berth/internal/network/builtin"
	"github.com/berthrun/berth/internal/sys/sysns"
)

// wantNothing checks that the network has left nothing on the host.
func (l *lab) wantNothing() {
	l.t.Helper()
	links := l.run(l.host, "ip", "-o", "link")
	rules := l.run(l.host, "nft", "list", "ruleset")
	if strings.Contains(links, "veth") || strings.Contains(links, "berth") || strings.Contains(rules, "berth") {
		l.t.Errorf("left on the host:\n%s%s", links, rules)
	}
	if left := l.records(); len(left) > 0 {
		l.t.Errorf("left records: %v", left)
	}
}

func (l *lab) records() []string {
	files, _ := filepath.Glob(filepath.Join(l.dir, "state", "attachments", "*"))
	return files
}

// TestNothingIsLeft: nothing is left after many pods, ten at a time.
func TestNothingIsLeft(t *testing.T) {
	l := newLab(t)
	n := l.open(l.config())
	const pods, parallel = 1000, 10
	todo := make(chan int)
	var workers sync.WaitGroup
	for range parallel {
		workers.Go(func() {
			for i := range todo {
				if err := l.oneLife(n, i); err != nil {
					t.Error(err)
				}
			}
		})
	}
	for i := range pods {
		todo <- i
	}
	close(todo)
	workers.Wait()
	if err := n.Close(); err != nil {
		t.Error(err)
	}
	l.wantNothing()
}

// oneLife attaches and detaches a pod with a host port.
func (l *lab) oneLife(n *builtin.Network, i int) error {
	id := fmt.Sprintf("%011x%053x", i+1<<20, 0)
	att := &network.Attachment{
		SandboxID: id, NetNS: filepath.Join(l.dir, "life-"+id[:11]), Name: "p", Namespace: "d",
		Ports: []network.Port{{Protocol: "tcp", HostPort: uint16(1000 + i%30000), ContainerPort: 80}},
	}
	if err := sysns.NewNetNS(att.NetNS); err != nil {
		return err
	}
	_, err := n.Attach(context.Background(), att)
	return errors.Join(err, n.Detach(context.Background(), att), sysns.RemoveNetNS(att.NetNS))
}

// TestRepeatedAttachAndDetach: both calls can be repeated, also after a restart.
func TestRepeatedAttachAndDetach(t *testing.T) {
	l := newLab(t)
	n := l.open(l.config())
	att := l.pod(network.Port{Protocol: "tcp", HostPort: 8080, ContainerPort: 80})
	l.serve(att.NetNS, 80, "pod")
	first := l.attach(n, att)
	if again := l.attach(n, att); !slices.Equal(again.IPs, first.IPs) {
		t.Errorf("repeated: %v, first %v", again.IPs, first.IPs)
	}
	n.Close()
	l.wantAnswer(l.host, "tcp", "127.0.0.1", 8080, "pod", "") // Close does not detach
	n = l.open(l.config())
	l.wantAnswer(l.host, "tcp", "127.0.0.1", 8080, "pod", "")
	if again := l.attach(n, att); !slices.Equal(again.IPs, first.IPs) {
		t.Errorf("after a restart: %v, first %v", again.IPs, first.IPs)
	}
	other := l.attach(n, l.pod())
	if other.IPs[0] == first.IPs[0] {
		t.Errorf("two pods have %v", other.IPs[0])
	}
	if err := n.GC(t.Context(), nil); err != nil {
		t.Error(err)
	}
	for range 2 {
		if err := n.Detach(t.Context(), att); err != nil {
			t.Error(err)
		}
	}
	// The namespace still exists, but the link must be removed.
	if err := n.Close(); err != nil {
		t.Error(err)
	}
	l.wantNothing()
}

// TestDetachWithoutNamespace: Detach succeeds without the namespace. An address is not assigned
// again while its link exists.
func TestDetachWithoutNamespace(t *testing.T) {
	l := newLab(t)
	n := l.open(l.config())
	att := l.pod()
	l.attach(n, att)
	if err := sysns.RemoveNetNS(att.NetNS); err != nil {
		t.Fatal(err)
	}
	if err := n.Detach(t.Context(), att); err != nil {
		t.Error(err)
	}
	for deadline := time.Now().Add(10 * time.Second); len(l.records()) > 0; time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("the address was never freed")
		}
	}
	if err := n.Close(); err != nil {
		t.Error(err)
	}
	l.wantNothing()
}

// TestPortConflicts: the error names the holder of the port.
func TestPortConflicts(t *testing.T) {
	l := newLab(t)
	n := l.open(l.config())
	defer n.Close()
	l.serve(l.host, 7000, "host")
	holder := l.pod(network.Port{Protocol: "tcp", HostPort: 8080, ContainerPort: 80})
	l.attach(n, holder)
	second := l.config()
	second.Instance, second.StateDir, second.RootDir = "second", filepath.Join(l.dir, "state2"), filepath.Join(l.dir, "root2")
	m := l.open(second)
	defer m.Close()
	for name, c := range map[string]struct {
		n    *builtin.Network
		port network.Port
		want []string
	}{
		"a listener":           {n, network.Port{Protocol: "tcp", HostPort: 7000, ContainerPort: 80}, []string{"7000/tcp", "(pid " + strconv.Itoa(os.Getpid()) + ")"}},
		"a listener, one IP":   {n, network.Port{Protocol: "tcp", HostPort: 7000, ContainerPort: 80, HostIP: "127.0.0.1"}, []string{"7000/tcp on 127.0.0.1", "(pid "}},
		"a UDP socket":         {n, network.Port{Protocol: "udp", HostPort: 7000, ContainerPort: 80}, []string{"7000/udp", "(pid "}},
		"another pod":          {n, network.Port{Protocol: "tcp", HostPort: 8080, ContainerPort: 81}, []string{"8080/tcp", "default/" + holder.Name, holder.SandboxID}},
		"another pod, one IP":  {n, network.Port{Protocol: "tcp", HostPort: 8080, ContainerPort: 81, HostIP: "::1"}, []string{"8080/tcp on ::1", holder.SandboxID}},
		"another berth's port": {m, network.Port{Protocol: "tcp", HostPort: 8080, ContainerPort: 80}, []string{"8080/tcp", "table berth"}},
	} {
		t.Run(name, func(t *testing.T) {
			att := l.pod(c.port)
			_, err := c.n.Attach(t.Context(), att)
			if !errors.Is(err, errs.Exists) {
				t.Fatalf("%v, want kind Exists", err)
			}
			for _, want := range c.want {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("%q does not name %q", err, want)
				}
			}
			if err := c.n.Detach(t.Context(), att); err != nil {
				t.Error(err)
			}
		})
	}
	// The port is free at once, before the kernel has removed the link.
	if err := n.Detach(t.Context(), holder); err != nil {
		t.Fatal(err)
	}
	l.attach(n, l.pod(network.Port{Protocol: "tcp", HostPort: 8080, ContainerPort: 80}))
}

// TestUDPFlowFollowsThePort: packets of a client that never stops sending reach the pod as soon as
// it has the port.
func TestUDPFlowFollowsThePort(t *testing.T) {
	l := newLab(t)
	other := l.outside()
	n := l.open(l.config())
	defer n.Close()
	var client net.Conn
	err := sysns.InNetNS(other, func() (err error) { client, err = net.Dial("udp", "192.0.2.1:5353"); return err })
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	exchange := func() string {
		answer := make([]byte, 100)
		fmt.Fprint(client, "?")
		client.SetReadDeadline(time.Now().Add(patience))
		size, err := client.Read(answer)
		if errors.Is(err, syscall.ECONNREFUSED) {
			return ""
		}
		name, _, _ := strings.Cut(string(answer[:size]), " ")
		return name
	}
	port := network.Port{Protocol: "udp", HostPort: 5353, ContainerPort: 53}
	exchange()
	for _, name := range []string{"first", "second"} {
		att := l.pod(port)
		l.serve(att.NetNS, 53, name)
		l.attach(n, att)
		exchange() // an error that the kernel still had queued
		if got := exchange(); got != name {
			t.Errorf("answered by %q, want %q", got, name)
		}
		if err := n.Detach(t.Context(), att); err != nil {
			t.Fatal(err)
		}
		if got := exchange(); got != "" {
			t.Errorf("answered by %q after Detach", got)
		}
	}
}

// TestRepair: the next pod and the next Ready restore what other programs have removed or changed.
func TestRepair(t *testing.T) {
	l := newLab(t)
	n := l.open(l.config())
	defer n.Close()
	web := l.pod(network.Port{Protocol: "tcp", HostPort: 8080, ContainerPort: 80})
	l.serve(web.NetNS, 80, "web")
	l.attach(n, web)
	for _, damage := range []string{
		"nft flush ruleset", "nft flush table inet berth", "nft flush map inet berth ports4", "nft delete rule inet berth prerouting handle -",
		"ip link set berth0 down", "ip link del berth0",
	} {
		words := strings.Fields(damage)
		if words[len(words)-1] == "-" {
			words[len(words)-1] = ruleHandle(l, "prerouting")
		}
		l.run(l.host, words[0], words[1:]...)
		if err := n.Ready(t.Context()); err != nil {
			t.Errorf("after %q: %v", damage, err)
		}
		l.wantAnswer(l.host, "tcp", "127.0.0.1", 8080, "web", "")
	}
	l.run(l.host, "nft", "flush", "ruleset")
	l.attach(n, l.pod())
	l.wantAnswer(l.host, "tcp", "127.0.0.1", 8080, "web", "")
	l.run(l.host, "nft", "flush", "ruleset")
	if err := n.Detach(t.Context(), web); err != nil {
		t.Errorf("Detach without a table: %v", err)
	}
}

func ruleHandle(l *lab, chain string) string {
	for line := range strings.Lines(l.run(l.host, "nft", "-a", "list", "chain", "inet", "berth", chain)) {
		if _, handle, ok := strings.Cut(line, "# handle "); ok && strings.Contains(line, "jump") {
			return strings.TrimSpace(handle)
		}
	}
	l.t.Fatal("the chain has no rule")
	return ""
}

// TestInstances: instances work at the same time on different subnets.
func TestInstances(t *testing.T) {
	l := newLab(t)
	var nets []*builtin.Network
	subnets := map[string]bool{}
	for _, instance := range []string{"", "one", "two"} {
		cfg := l.config()
		cfg.Instance, cfg.StateDir, cfg.RootDir = instance, filepath.Join(l.dir, "state-"+instance), filepath.Join(l.dir, "root-"+instance)
		n := l.open(cfg)
		nets = append(nets, n)
		subnets[n.Info()["subnets"]] = true
		att := l.pod()
		l.serve(att.NetNS, 80, "pod"+instance)
		for _, ip := range l.attach(n, att).IPs {
			l.wantAnswer(l.host, "tcp", ip.String(), 80, "pod"+instance, "")
		}
	}
	if len(subnets) != 3 {
		t.Errorf("subnets %v, want three different ones", subnets)
	}
	for _, n := range nets {
		if err := errors.Join(n.GC(t.Context(), nil), n.Close()); err != nil {
			t.Error(err)
		}
	}
	l.wantNothing()
}

// TestLostRecords: addresses of pods with damaged or lost records are not assigned to other pods.
// They are released when the sandbox is known to be removed.
func TestLostRecords(t *testing.T) {
	l := newLab(t)
	n := l.open(l.config())
	damaged, lost := l.pod(), l.pod()
	l.serve(damaged.NetNS, 80, "damaged")
	ips := l.attach(n, damaged).IPs
	l.attach(n, lost)
	n.Close()
	state := filepath.Join(l.dir, "state", "attachments")
	if err := errors.Join(os.WriteFile(filepath.Join(state, damaged.SandboxID+".json"), []byte("{"), 0o600),
		os.Remove(filepath.Join(state, lost.SandboxID+".json"))); err != nil {
		t.Fatal(err)
	}
	if err := os.RemoveAll(filepath.Join(l.dir, "root")); err != nil {
		t.Fatal(err)
	}
	n = l.open(l.config())
	l.wantAnswer(l.host, "tcp", ips[0].String(), 80, "damaged", "")
	if got := n.Info()["attachments"]; got != "2" {
		t.Errorf("%s attachments, want 2", got)
	}
	info, tables := n.Info(), l.run(l.host, "nft", "list", "tables")
	for _, key := range []string{"table", "frameTable"} {
		name, shown := info[key]
		if key == "table" && !shown || shown && !strings.Contains(tables, "table "+name+"\n") {
			t.Errorf("Info has the %s %q, and the host has:\n%s", key, name, tables)
		}
	}
	if err := n.GC(t.Context(), []string{damaged.SandboxID}); err != nil {
		t.Error(err)
	}
	l.wantAnswer(l.host, "tcp", ips[0].String(), 80, "damaged", "")
	if again := l.attach(n, damaged); again.IPs[0] == ips[0] {
		t.Errorf("attached anew with %v while it may still be known elsewhere", again.IPs[0])
	}
	if err := errors.Join(n.GC(t.Context(), nil), n.Close()); err != nil {
		t.Error(err)
	}
	if quarantined, _ := filepath.Glob(filepath.Join(l.dir, "root", "quarantine", "*")); len(quarantined) != 1 {
		t.Errorf("quarantine has %v, want the damaged record", quarantined)
	}
	l.wantNothing()
}

// TestPodCIDR: a new range takes effect at once if nothing is attached, otherwise at the next
// start.
func TestPodCIDR(t *testing.T) {
	l := newLab(t)
	n := l.open(l.config())
	if err := n.SetPodCIDR(t.Context(), "10.77.0.0/24,fd77::/64"); err != nil {
		t.Fatal(err)
	}
	att := l.pod()
	l.serve(att.NetNS, 80, "pod")
	if ips := l.attach(n, att).IPs; fmt.Sprint(ips) != "[10.77.0.2 fd77::2]" {
		t.Errorf("addresses %v", ips)
	}
	l.wantAnswer(l.host, "tcp", "fd77::2", 80, "pod", "fd77::1")
	if err := n.SetPodCIDR(t.Context(), "10.78.0.0/24"); err != nil {
		t.Fatal(err)
	}
	if info := n.Info(); info["subnets"] != "10.77.0.0/24,fd77::/64" || !strings.Contains(info["pendingSubnets"], "10.78.0.0/24") {
		t.Errorf("Info %v", info)
	}
	if err := n.SetPodCIDR(t.Context(), "10.78.0.0/99"); !errors.Is(err, errs.Invalid) {
		t.Errorf("a bad range: %v", err)
	}
	if err := errors.Join(n.Detach(t.Context(), att), n.Close()); err != nil {
		t.Fatal(err)
	}
	n = l.open(l.config())
	defer n.Close()
	if ips := l.attach(n, l.pod()).IPs; fmt.Sprint(ips) != "[10.78.0.2]" {
		t.Errorf("addresses after a restart %v", ips)
	}
}

// TestAwaitPodCIDR: no pod is attached before the node's subnet is known. After a restart of berth
// the kubelet's value is still known.
func TestAwaitPodCIDR(t *testing.T) {
	l := newLab(t)
	cfg := l.config()
	cfg.AwaitPodCIDR = true
	n := l.open(cfg)
	if err := n.Ready(t.Context()); !errors.Is(err, errs.Unavailable) || !strings.Contains(err.Error(), "pod CIDR") {
		t.Errorf("before the CIDR is known: %v", err)
	}
	early := l.pod()
	if _, err := n.Attach(t.Context(), early); !errors.Is(err, errs.Unavailable) {
		t.Errorf("a pod that comes too early: %v", err)
	}
	if err := errors.Join(n.Detach(t.Context(), early), n.GC(t.Context(), nil)); err != nil {
		t.Error(err)
	}
	if err := n.Close(); err != nil {
		t.Fatal(err)
	}
	n = l.open(cfg)
	if err := errors.Join(n.SetPodCIDR(t.Context(), "10.77.0.0/24"), n.Ready(t.Context())); err != nil {
		t.Fatal(err)
	}
	if ips := l.attach(n, early).IPs; fmt.Sprint(ips) != "[10.77.0.2]" {
		t.Errorf("addresses %v", ips)
	}
	if err := errors.Join(n.Detach(t.Context(), early), n.Close()); err != nil {
		t.Fatal(err)
	}
	n = l.open(cfg)
	defer n.Close()
	if err := n.Ready(t.Context()); err != nil || n.Info()["subnets"] != "10.77.0.0/24" {
		t.Errorf("after a restart: %v, %v", err, n.Info())
	}
}

// TestPodWithoutIPv6: a pod that disables IPv6 is attached all the same.
func TestPodWithoutIPv6(t *testing.T) {
	l := newLab(t)
	n := l.open(l.config())
	defer n.Close()
	att := l.pod()
	for _, key := range []string{"all", "default"} {
		l.sysctl(att.NetNS, "net/ipv6/conf/"+key+"/disable_ipv6", "1")
	}
	l.serve(att.NetNS, 80, "pod")
	first := l.attach(n, att)
	l.wantAnswer(l.host, "tcp", first.IPs[0].String(), 80, "pod", "")
	if again := l.attach(n, att); !slices.Equal(again.IPs, first.IPs) {
		t.Errorf("repeated: %v, first %v", again.IPs, first.IPs)
	}
}

// TestHostKeepsItsRouterAdvertisements: with forwarding on, the kernel would ignore router
// advertisements on links without a setting of their own.
func TestHostKeepsItsRouterAdvertisements(t *testing.T) {
	l := newLab(t)
	l.outside()
	n := l.open(l.config())
	defer n.Close()
	for key, want := range map[string]string{
		"ipv6/conf/wire/accept_ra": "2", "ipv6/conf/berth0/accept_ra": "0", "ipv6/conf/all/forwarding": "1", "ipv4/ip_forward": "1",
	} {
		if got := strings.TrimSpace(l.run(l.host, "cat", "/proc/sys/net/"+key)); got != want {
			t.Errorf("%s is %s, want %s", key, got, want)
		}
	}
}

// TestExhaustion: the error reports that no address is free. Attach succeeds again once an address
// is released.
func TestExhaustion(t *testing.T) {
	l := newLab(t)
	cfg := l.config()
	cfg.Subnets = []netip.Prefix{netip.MustParsePrefix("10.79.0.0/29")}
	n := l.open(cfg)
	defer n.Close()
	var pods []*network.Attachment
	for range 5 {
		pods = append(pods, l.pod())
		l.attach(n, pods[len(pods)-1])
	}
	last := l.pod()
	if _, err := n.Attach(t.Context(), last); !errors.Is(err, errs.Exhausted) {
		t.Errorf("%v, want kind Exhausted", err)
	}
	if err := errors.Join(n.Detach(t.Context(), pods[2]), sysns.RemoveNetNS(pods[2].NetNS)); err != nil {
		t.Fatal(err)
	}
	for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(5 * time.Millisecond) {
		if _, err := n.Attach(t.Context(), last); err == nil {
			break
		} else if time.Now().After(deadline) {
			t.Fatal(err)
		}
	}
}

const killedLab = "BERTH_TEST_KILLED_LAB"
