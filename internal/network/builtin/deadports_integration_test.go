//go:build integration

package builtin_test

import (
	"bytes"
	"log/slog"
	"net/netip"
	"strings"
	"testing"

	"github.com/berthrun/berth/internal/network"
)

// TestPortsThatLeadNowhere: the log names pod, port and IP of a host port that nobody can reach. The pod runs.
func TestPortsThatLeadNowhere(t *testing.T) {
	l := newLab(t)
	l.run(l.host, "ip", "addr", "add", "192.0.2.5/32", "dev", "lo")
	var log bytes.Buffer
	cfg := l.config()
	cfg.Subnets, cfg.Log = []netip.Prefix{netip.MustParsePrefix("10.70.0.0/24")}, slog.New(slog.NewTextHandler(&log, nil))
	n := l.open(cfg)
	defer n.Close()
	att := l.pod(
		network.Port{Protocol: "tcp", HostPort: 8001, ContainerPort: 80, HostIP: "192.0.2.77"}, network.Port{Protocol: "udp", HostPort: 8002, ContainerPort: 80, HostIP: "2001:db8::1"},
		network.Port{Protocol: "tcp", HostPort: 8003, ContainerPort: 80, HostIP: "192.0.2.5"}, network.Port{Protocol: "tcp", HostPort: 8004, ContainerPort: 80, HostIP: "127.0.0.1"},
		network.Port{Protocol: "tcp", HostPort: 8005, ContainerPort: 80},
	)
	l.serve(att.NetNS, 80, "pod")
	for range 2 { // the second one repeats nothing
		l.attach(n, att)
	}
	for _, want := range []string{
		"pod=default/" + att.Name + " sandbox=" + att.SandboxID + ` port=8001/tcp hostIP=192.0.2.77 reason="the host does not have the host IP"`,
		`port=8002/udp hostIP=2001:db8::1 reason="the host IP is of IPv6, and the pod has no IPv6 address"`,
	} {
		if strings.Count(log.String(), want) != 1 {
			t.Errorf("want once %s, got\n%s", want, log.String())
		}
	}
	if count := strings.Count(log.String(), "leads nowhere"); count != 2 {
		t.Errorf("%d warnings, want 2:\n%s", count, log.String())
	}
	l.wantAnswer(l.host, "tcp", "192.0.2.5", 8003, "pod", "")
	if err := n.Detach(t.Context(), att); err != nil {
		t.Error(err)
	}
}
