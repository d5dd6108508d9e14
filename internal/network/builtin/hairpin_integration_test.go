//go:build integration

package builtin_test

import (
	"errors"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/network"
	"github.com/berthrun/berth/internal/network/builtin"
	"github.com/berthrun/berth/internal/require"
	"github.com/berthrun/berth/internal/sys/sysns"
)

// TestHairpin: whether a pod reaches itself through its host port where the host filters bridged
// traffic. Other pods always reach it, and get no packet twice. A restart with another mode
// changes running pods.
func TestHairpin(t *testing.T) {
	l := newLab(t)
	for _, family := range []string{"iptables", "ip6tables"} {
		l.sysctl(l.host, "net/bridge/bridge-nf-call-"+family, "1")
	}
	l.outside()
	web := l.pod(network.Port{Protocol: "tcp", HostPort: 8080, ContainerPort: 80}, network.Port{Protocol: "udp", HostPort: 8081, ContainerPort: 81})
	client := l.pod()
	served := false
	for _, mode := range []builtin.Hairpin{builtin.HairpinNone, builtin.HairpinVeth, builtin.PromiscuousBridge, ""} {
		cfg := l.config()
		cfg.Hairpin = mode
		n := l.open(cfg)
		ips := l.attach(n, web).IPs
		l.attach(n, client)
		if !served {
			l.serve(web.NetNS, 80, "web")
			served = true
		}
		for i, host := range []string{"192.0.2.1", "2001:db8::1"} {
			gateway := gatewayOf(ips[i])
			l.wantAnswer(client.NetNS, "tcp", host, 8080, "web", gateway)
			if mode == builtin.HairpinNone {
				l.wantSilence(web.NetNS, "tcp", host, 8080)
			} else {
				l.wantAnswer(web.NetNS, "tcp", host, 8080, "web", gateway)
			}
		}
		l.wantOnce(client.NetNS, web.NetNS, net.JoinHostPort("192.0.2.1", "8081"), net.JoinHostPort(ips[0].String(), "81"))
		promiscuous := strings.Contains(l.run(l.host, "ip", "-o", "link", "show", "berth0"), "PROMISC")
		if promiscuous != (mode == builtin.PromiscuousBridge) {
			t.Errorf("hairpin mode %q: the bridge is promiscuous: %v", mode, promiscuous)
		}
		if err := n.Close(); err != nil { // the bridge stays with its pods
			t.Fatal(err)
		}
	}
	n := l.open(l.config())
	for _, att := range []*network.Attachment{web, client} {
		if err := n.Detach(t.Context(), att); err != nil {
			t.Error(err)
		}
	}
	if err := n.Close(); err != nil {
		t.Error(err)
	}
}

// TestPromiscuousBridgeOfOthers: berth ends the promiscuous mode that it began, and no other.
func TestPromiscuousBridgeOfOthers(t *testing.T) {
	l := newLab(t)
	l.run(l.host, "ip", "link", "add", "berth0", "type", "bridge")
	flag := func() bool {
		return strings.Contains(l.run(l.host, "ip", "-o", "link", "show", "berth0"), "PROMISC")
	}
	pod := l.pod()
	for _, step := range []struct {
		before string
		mode   builtin.Hairpin
		want   bool
	}{
		{"on", builtin.HairpinVeth, true},
		{"on", builtin.PromiscuousBridge, true},
		{"on", builtin.HairpinVeth, true},
		{"off", builtin.PromiscuousBridge, true},
		{"", builtin.HairpinVeth, false},
	} {
		if step.before != "" {
			l.run(l.host, "ip", "link", "set", "berth0", "promisc", step.before)
		}
		cfg := l.config()
		cfg.Hairpin = step.mode
		n := l.open(cfg)
		l.attach(n, pod) // so the bridge stays
		if flag() != step.want {
			t.Errorf("after %q by another program and a start with hairpin mode %s the bridge is promiscuous: %v", step.before, step.mode, flag())
		}
		if err := n.Close(); err != nil {
			t.Fatal(err)
		}
	}
	n := l.open(l.config())
	if err := n.Detach(t.Context(), pod); err != nil {
		t.Error(err)
	}
	if err := n.Close(); err != nil {
		t.Error(err)
	}
}

// wantOnce sends a datagram to via, and requires that it arrives once at the listener, whose own
// address is direct.
func (l *lab) wantOnce(from, to, via, direct string) {
	l.t.Helper()
	var listener net.PacketConn
	if err := sysns.InNetNS(to, func() (err error) {
		_, port, _ := net.SplitHostPort(direct)
		listener, err = (&net.ListenConfig{}).ListenPacket(l.t.Context(), "udp", ":"+port)
		return err
	}); err != nil {
		l.t.Fatal(err)
	}
	defer listener.Close()
	send := func(address, text string) {
		err := sysns.InNetNS(from, func() error {
			conn, err := net.Dial("udp", address)
			if err != nil {
				return err
			}
			defer conn.Close()
			_, err = conn.Write([]byte(text))
			return err
		})
		if err != nil {
			l.t.Fatal(err)
		}
	}
	send(via, "once")
	send(direct, "last")
	must := require.Patience(10 * time.Second)
	if err := listener.SetReadDeadline(time.Now().Add(must)); err != nil {
		l.t.Fatal(err)
	}
	var got []string
	for len(got) == 0 || got[len(got)-1] != "last" {
		buffer := make([]byte, 16)
		size, sender, err := listener.ReadFrom(buffer)
		if err != nil {
			l.t.Fatal(err)
		}
		l.t.Logf("%s from %s", buffer[:size], sender)
		got = append(got, string(buffer[:size]))
	}
	if strings.Join(got, " ") != "once last" {
		l.t.Errorf("datagrams %v, want each once", got)
	}
}

// TestUnknownHairpin: a mode that does not exist is an error.
func TestUnknownHairpin(t *testing.T) {
	l := newLab(t)
	cfg := l.config()
	cfg.Hairpin = "veth"
	if _, err := builtin.New(t.Context(), cfg); !errors.Is(err, errs.Invalid) || !strings.Contains(err.Error(), `"veth"`) {
		t.Errorf("error %v", err)
	}
}
