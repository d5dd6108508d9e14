package host

import (
	"os"
	"path/filepath"
	"testing"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

func TestHostResolvConf(t *testing.T) {
	got := parseResolvConf("# x\nnameserver 192.0.2.1\ndomain old\nsearch a b\noptions ndots:2 rotate\nnameserver 192.0.2.2\n")
	want := &runtimeapi.DNSConfig{Servers: []string{"192.0.2.1", "192.0.2.2"}, Searches: []string{"a", "b"}, Options: []string{"ndots:2", "rotate"}}
	if got.String() != want.String() {
		t.Errorf("got %v", got)
	}
}

// TestDNSOfHosts: systemd-resolved on loopback is out of reach for pods, the servers behind it are not.
func TestDNSOfHosts(t *testing.T) {
	const stub, real = "nameserver 127.0.0.53\noptions edns0\nsearch lan\n", "nameserver 192.0.2.1\nsearch lan\n"
	for _, c := range []struct {
		etc, resolved, server string
		behindStub            bool
	}{
		{stub, real, "192.0.2.1", true},
		{stub, "", "127.0.0.53", false},
		{stub, "nameserver ::1\n", "127.0.0.53", false},
		{real, "nameserver 192.0.2.2\n", "192.0.2.1", false},
		{stub + real, "nameserver 192.0.2.2\n", "127.0.0.53", false},
	} {
		root := t.TempDir()
		for name, text := range map[string]string{"etc/resolv.conf": c.etc, "run/systemd/resolve/resolv.conf": c.resolved} {
			if text == "" {
				continue
			}
			file := filepath.Join(root, name)
			if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		got, behindStub := readDNS(root)
		if behindStub != c.behindStub || got.GetServers()[0] != c.server {
			t.Errorf("%+v: got %v, %v", c, got, behindStub)
		}
	}
	if got, behindStub := readDNS(t.TempDir()); got != nil || behindStub {
		t.Errorf("a host without files: got %v, %v", got, behindStub)
	}
}
