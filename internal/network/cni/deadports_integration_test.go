//go:build integration

package cni_test

import (
	"bytes"
	"errors"
	"log/slog"
	"net"
	"os"
	"strconv"
	"strings"
	"testing"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/network"
	"github.com/berthrun/berth/internal/sys/sysns"
)

// TestPortsThatLeadNowhere: the log names pod, port and IP of a host port that nobody can reach, and the program that has
// one already. The pod runs.
func TestPortsThatLeadNowhere(t *testing.T) {
	l := newLab(t)
	l.run(l.host, "ip", "link", "set", "lo", "up")
	l.plugin("fake", `[ $CNI_COMMAND != ADD ] || echo '{"cniVersion": "1.0.0", "interfaces": [{"name": "eth0", "sandbox": "x"}], "ips": [{"address": "10.1.0.2/24", "interface": 0}]}'`)
	l.write("conf/10-x.conflist", `{"cniVersion": "1.0.0", "name": "x", "plugins": [{"type": "fake", "capabilities": {"portMappings": true}}]}`, 0o644)
	var listener net.Listener
	err := sysns.InNetNS(l.host, func() (err error) {
		listener, err = net.Listen("tcp4", "127.0.0.1:0")
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	taken := listener.Addr().(*net.TCPAddr).Port
	var log bytes.Buffer
	cfg := l.config()
	cfg.Log = slog.New(slog.NewTextHandler(&log, nil))
	n := l.open(cfg)
	defer n.Close()
	att := l.pod(
		network.Port{Protocol: "tcp", HostPort: 1001, ContainerPort: 80, HostIP: "192.0.2.77"}, network.Port{Protocol: "udp", HostPort: 1002, ContainerPort: 80, HostIP: "2001:db8::1"},
		network.Port{Protocol: "tcp", HostPort: uint16(taken), ContainerPort: 80}, network.Port{Protocol: "tcp", HostPort: 1004, ContainerPort: 80, HostIP: "127.0.0.1"},
	)
	if _, err := n.Attach(t.Context(), att); err != nil {
		t.Fatal(err)
	}
	pod := "pod=default/pod sandbox=" + att.SandboxID
	for _, want := range []string{
		pod + ` port=1001/tcp hostIP=192.0.2.77 reason="the host does not have the host IP"`,
		pod + ` port=1002/udp hostIP=2001:db8::1 reason="the host IP is of IPv6, and the pod has no IPv6 address"`,
		pod + " port=" + strconv.Itoa(taken) + `/tcp hostIP="" reason="host port ` + strconv.Itoa(taken) + "/tcp is taken by ",
		"(pid " + strconv.Itoa(os.Getpid()) + ")",
	} {
		if strings.Count(log.String(), want) != 1 {
			t.Errorf("want once %s, got\n%s", want, log.String())
		}
	}
	if count := strings.Count(log.String(), "level=WARN"); count != 3 {
		t.Errorf("%d warnings, want 3:\n%s", count, log.String())
	}
	if err := n.Detach(t.Context(), att); err != nil {
		t.Error(err)
	}
}

// TestPortmapWithoutCapability: the error says that portmap is there, and what it lacks.
func TestPortmapWithoutCapability(t *testing.T) {
	l := newLab(t)
	l.plugin("fake", "")
	l.write("conf/10-x.conflist", `{"cniVersion": "1.0.0", "name": "x", "plugins": [{"type": "fake"}, {"type": "portmap", "snat": true}]}`, 0o644)
	n := l.open(l.config())
	defer n.Close()
	_, err := n.Attach(t.Context(), l.pod(network.Port{Protocol: "tcp", HostPort: 1001, ContainerPort: 80}))
	want := "the plugin portmap in " + l.path("conf", "10-x.conflist") + ` lacks "capabilities": {"portMappings": true}; add that to the plugin`
	if !errors.Is(err, errs.Unsupported) || !strings.Contains(err.Error(), want) {
		t.Errorf("%v, want kind Unsupported with %s", err, want)
	}
}
