//go:build integration

package integration

import (
	"io"
	"net"
	"testing"
	"time"

	"github.com/berthrun/berth/internal/require"
	"github.com/berthrun/berth/internal/sys/sysns"
	"github.com/berthrun/berth/test/harness"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// testPorts: each protocol, from another machine and from the host, and only on the requested
// address.
func (f *fields) testPorts(t *testing.T) {
	f.NeedsOfHandler(t, harness.SharedNetNS)
	f.pod(func(c *runtimeapi.PodSandboxConfig) {
		c.PortMappings = []*runtimeapi.PortMapping{
			{Protocol: runtimeapi.Protocol_TCP, ContainerPort: 8080, HostPort: 18080},
			{Protocol: runtimeapi.Protocol_UDP, ContainerPort: 8081, HostPort: 18080},
			{Protocol: runtimeapi.Protocol_TCP, ContainerPort: 8080, HostPort: 18082, HostIp: "127.0.0.1"},
			{ContainerPort: 9}, // requests no host port
		}
	})
	serveEcho(f.Berth, f.sandbox, ":8080", "tcp ")
	var udp net.PacketConn
	inPod(f.Berth, f.sandbox, func() (err error) {
		udp, err = net.ListenPacket("udp", ":8081")
		return err
	})
	defer udp.Close()
	go answerPackets(udp, "udp ")
	host, world := "/run/netns/"+f.NetNS, "/run/netns/"+f.NetNS+"-world"
	for _, c := range []struct{ from, network, address, want string }{
		{world, "tcp", "192.0.2.10:18080", "tcp hello"},
		{world, "udp", "192.0.2.10:18080", "udp hello"},
		{host, "tcp", "127.0.0.1:18080", "tcp hello"},
		{host, "tcp", "127.0.0.1:18082", "tcp hello"},
	} {
		got, err := say(c.from, c.network, c.address)
		if err != nil || got != c.want {
			t.Errorf("%s to %s: %q, %v, want %q", c.network, c.address, got, err, c.want)
		}
	}
	if got, err := say(world, "tcp", "192.0.2.10:18082"); err == nil {
		t.Errorf("a port of 127.0.0.1 answers another machine: %q", got)
	}
}

// answerPackets answers each packet with a name and the packet's content.
func answerPackets(conn net.PacketConn, name string) {
	buffer := make([]byte, 1500)
	for {
		n, from, err := conn.ReadFrom(buffer)
		if err != nil {
			return
		}
		_, _ = conn.WriteTo(append([]byte(name), buffer[:n]...), from) // the client fails without the answer
	}
}

// say sends a word to an address from a network namespace and returns the answer.
func say(netns, network, address string) (answer string, err error) {
	var conn net.Conn
	if err := sysns.InNetNS(netns, func() (err error) {
		conn, err = net.DialTimeout(network, address, require.Patience(5*time.Second))
		return err
	}); err != nil {
		return "", err
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(require.Patience(5 * time.Second))); err != nil {
		return "", err
	}
	if _, err := io.WriteString(conn, "hello"); err != nil {
		return "", err
	}
	if tcp, ok := conn.(*net.TCPConn); ok {
		if err := tcp.CloseWrite(); err != nil {
			return "", err
		}
		data, err := io.ReadAll(tcp)
		return string(data), err
	}
	buffer := make([]byte, 1500)
	n, err := conn.Read(buffer)
	return string(buffer[:n]), err
}
