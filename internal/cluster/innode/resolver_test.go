package innode

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"testing"
)

func TestWithServer(t *testing.T) {
	const text = "# docker's\nsearch a.example\nnameserver 127.0.0.11\nnameserver 127.0.0.110\noptions ndots:0\n"
	if !names(text, embedded) || names("nameserver 127.0.0.110\n# nameserver 127.0.0.11\n", embedded) || names("", embedded) {
		t.Error("the server is seen where it is not, or not where it is")
	}
	want := "# docker's\nsearch a.example\nnameserver 172.18.0.1\nnameserver 127.0.0.110\noptions ndots:0\n"
	if got := withServer(text, embedded, "172.18.0.1"); got != want {
		t.Errorf("%q, want %q", got, want)
	}
}

// TestDockersServerIsFound: berth finds docker's DNS server in the kernel's rules, whichever tool
// wrote them.
func TestDockersServerIsFound(t *testing.T) {
	n := node{t.TempDir()}
	number := func(address string) string {
		raw := netip.MustParseAddr(address).As4()
		return fmt.Sprintf("%08X", binary.NativeEndian.Uint32(raw[:]))
	}
	for name, text := range map[string]string{
		"proc/net/route": "Iface\tDestination\tGateway\tFlags\tRefCnt\tUse\tMetric\tMask\tMTU\tWindow\tIRTT\n" +
			"eth0\t" + number("172.18.0.0") + "\t00000000\t0001\t0\t0\t0\t" + number("255.255.0.0") + "\t0\t0\t0\n" +
			"eth0\t00000000\t" + number("172.18.0.1") + "\t0003\t0\t0\t0\t00000000\t0\t0\t0\n",
		"proc/net/udp": "   sl  local_address rem_address   st tx_queue\n" +
			"   1: " + number("127.0.0.1") + ":0035 00000000:0000 07 0\n   2: " + number(embedded) + ":A121 00000000:0000 07 0\n",
		"proc/net/tcp": "  sl  local_address rem_address   st tx_queue\n" +
			"   0: " + number(embedded) + ":9999 " + number("127.0.0.1") + ":1234 01 0\n   1: " + number(embedded) + ":8235 00000000:0000 0A 0\n",
	} {
		if err := n.write(name, text); err != nil {
			t.Fatal(err)
		}
	}
	if got, err := n.gateway(); err != nil || got.String() != "172.18.0.1" {
		t.Errorf("the gateway is %s, %v", got, err)
	}
	for protocol, want := range map[string]uint16{"udp": 0xa121, "tcp": 0x8235} {
		if got, err := n.listener(protocol); err != nil || got != want {
			t.Errorf("%s: port %d, %v; want %d", protocol, got, err, want)
		}
	}
	if err := n.write("proc/net/udp", ""); err != nil {
		t.Fatal(err)
	}
	if _, err := n.listener("udp"); err == nil {
		t.Error("a server is found where nobody listens")
	}
}

// TestNoEmbeddedServer: a node of another engine is not changed.
func TestNoEmbeddedServer(t *testing.T) {
	n := node{t.TempDir()}
	if err := n.resolver(t.Context(), nil); err != nil {
		t.Errorf("without a resolv.conf: %v", err)
	}
	if err := n.write("etc/resolv.conf", "nameserver 10.89.0.1\n"); err != nil {
		t.Fatal(err)
	}
	if err := n.resolver(t.Context(), nil); err != nil {
		t.Error(err)
	}
}

func TestRedirection(t *testing.T) {
	want := `table ip berth-dns
delete table ip berth-dns
table ip berth-dns {
	chain guard {
		type filter hook prerouting priority -300
		iifname != "lo" ip daddr 127.0.0.0/8 drop
	}
	chain pods {
		type nat hook prerouting priority -105
		ip daddr 172.18.0.1 udp dport 53 dnat to 127.0.0.11:41249
		ip daddr 172.18.0.1 tcp dport 53 dnat to 127.0.0.11:33333
	}
	chain node {
		type nat hook output priority -105
		ip daddr 172.18.0.1 udp dport 53 dnat to 127.0.0.11:41249
		ip daddr 172.18.0.1 tcp dport 53 dnat to 127.0.0.11:33333
	}
}
`
	if got := redirection(netip.MustParseAddr("172.18.0.1"), 41249, 33333); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}
