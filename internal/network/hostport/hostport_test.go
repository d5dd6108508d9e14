package hostport

import (
	"errors"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/network"
)

func TestWanted(t *testing.T) {
	both, only4 := Families{true, true}, Families{V4: true}
	for name, c := range map[string]struct {
		asked    []network.Port
		families Families
		want     []network.Port
		kind     error
	}{
		"none of the host's": {[]network.Port{{ContainerPort: 80}}, both, nil, nil},
		"defaults":           {[]network.Port{{HostPort: 1, ContainerPort: 2}}, both, []network.Port{{Protocol: "tcp", HostPort: 1, ContainerPort: 2}}, nil},
		"upper case": {
			[]network.Port{{Protocol: "SCTP", HostPort: 1, ContainerPort: 2, HostIP: "::ffff:127.0.0.1"}},
			both,
			[]network.Port{{Protocol: "sctp", HostPort: 1, ContainerPort: 2, HostIP: "127.0.0.1"}},
			nil,
		},
		"bad address":            {[]network.Port{{HostPort: 1, ContainerPort: 2, HostIP: "host"}}, both, nil, errs.Invalid},
		"family that is missing": {[]network.Port{{HostPort: 1, ContainerPort: 2, HostIP: "::1"}}, only4, nil, errs.Unsupported},
		"twice":                  {[]network.Port{{HostPort: 1, ContainerPort: 2}, {HostPort: 1, ContainerPort: 3, HostIP: "127.0.0.1"}}, both, nil, errs.Invalid},
		"two protocols": {
			[]network.Port{{HostPort: 1, ContainerPort: 2}, {Protocol: "udp", HostPort: 1, ContainerPort: 2}},
			only4,
			[]network.Port{{Protocol: "tcp", HostPort: 1, ContainerPort: 2}, {Protocol: "udp", HostPort: 1, ContainerPort: 2}},
			nil,
		},
	} {
		got, err := Wanted(c.asked, c.families)
		if !errors.Is(errs.Kind(err), c.kind) {
			t.Errorf("%s: error %v, want kind %v", name, err, c.kind)
		}
		if diff := cmp.Diff(c.want, got); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
	}
}

// Ports are not compared with all others.
func TestManyPorts(t *testing.T) {
	var asked []network.Port
	for port := range uint16(65535) {
		asked = append(asked, network.Port{HostPort: port + 1, ContainerPort: 1})
	}
	got, err := Wanted(asked, Families{true, true})
	if err != nil || len(got) != len(asked) {
		t.Errorf("%d ports, %v", len(got), err)
	}
	if _, err := Wanted(append(asked, asked[0]), Families{true, true}); !errors.Is(err, errs.Invalid) {
		t.Errorf("one of them twice: %v", err)
	}
}

func TestIndex(t *testing.T) {
	var x Index
	both := Families{true, true}
	sockets := func(ip string) []Socket {
		return Sockets(network.Port{Protocol: "tcp", HostPort: 80, HostIP: ip}, both)
	}
	a, b := Holder{"a", "ns", "first"}, Holder{"b", "ns", "second"}
	if err := x.Take(a, sockets("127.0.0.1")); err != nil {
		t.Fatal(err)
	}
	if err := x.Take(a, sockets("127.0.0.1")); err != nil {
		t.Errorf("the holder again: %v", err)
	}
	for _, ip := range []string{"127.0.0.1", "0.0.0.0", ""} {
		err := x.Take(b, sockets(ip))
		if !errors.Is(err, errs.Exists) || !strings.Contains(err.Error(), "ns/first") || !strings.Contains(err.Error(), "80/tcp") {
			t.Errorf("%q beside 127.0.0.1: %v, want kind Exists with holder and port", ip, err)
		}
	}
	for _, ip := range []string{"::", "127.0.0.2"} {
		if err := x.Take(b, sockets(ip)); err != nil {
			t.Errorf("%q beside 127.0.0.1: %v", ip, err)
		}
	}
	x.Free("b", sockets("127.0.0.1"))
	if err := x.Take(b, sockets("")); err == nil {
		t.Error("one sandbox freed what another holds")
	}
	x.Free("a", sockets("127.0.0.1"))
	if err := x.Take(b, sockets("")); err != nil {
		t.Errorf("after it was freed: %v", err)
	}
}

func TestFindListener(t *testing.T) {
	path := filepath.Join(t.TempDir(), "tcp")
	list := `  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
   0: 0100007F:1F90 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 111 1
   1: 0100007F:1F91 0100007F:C350 01 00000000:00000000 00:00000000 00000000     0        0 222 1
   2: 00000000:1F92 00000000:0000 07 00000000:00000000 00:00000000 00000000     0        0 333 1
`
	if err := os.WriteFile(path, []byte(list), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		addr string
		port uint16
		want string
	}{
		{"127.0.0.1", 8080, "111"},
		{"0.0.0.0", 8080, "111"},
		{"127.0.0.2", 8080, ""},
		{"0.0.0.0", 8081, ""}, // an established connection listens for nobody
		{"127.0.0.9", 8082, "333"},
	} {
		f, err := os.Open(path)
		if err != nil {
			t.Fatal(err)
		}
		if got := findListener(f, Socket{"tcp", c.port, netip.MustParseAddr(c.addr)}); got != c.want {
			t.Errorf("%s port %d: inode %q, want %q", c.addr, c.port, got, c.want)
		}
		f.Close()
	}
}

func FuzzParseProcAddr(f *testing.F) {
	f.Add("0100007F:1F90")
	f.Add("00000000000000000000000001000000:0016")
	f.Add(":")
	f.Fuzz(func(t *testing.T, text string) {
		if addr, _, ok := parseProcAddr(text); ok != addr.IsValid() {
			t.Errorf("%q: valid %v, address %v", text, ok, addr)
		}
	})
}
