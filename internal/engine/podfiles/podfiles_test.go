package podfiles

import (
	"net/netip"
	"os"
	"path/filepath"
	"testing"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

func TestSandboxFiles(t *testing.T) {
	dir := t.TempDir()
	files := Files{Dir: dir, Hostname: "web", DNS: &runtimeapi.DNSConfig{
		Servers: []string{"10.0.0.10", "fd00::a"}, Searches: []string{"a.b", "c"}, Options: []string{"ndots:5", "edns0"},
	}}
	if err := files.Write([]netip.Addr{netip.MustParseAddr("10.1.2.3"), netip.MustParseAddr("fd00::3")}); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{
		"hostname":    "web\n",
		"resolv.conf": "search a.b c\noptions ndots:5 edns0\nnameserver 10.0.0.10\nnameserver fd00::a\n",
		"hosts":       "127.0.0.1\tlocalhost\n::1\tlocalhost ip6-localhost ip6-loopback\n10.1.2.3\tweb\nfd00::3\tweb\n",
	} {
		got, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil || string(got) != want {
			t.Errorf("%s: %q, %v; want %q", name, got, err, want)
		}
	}
	// A shorter content leaves nothing of the longer one.
	if err := files.WriteHosts(nil); err != nil {
		t.Fatal(err)
	}
	want := "127.0.0.1\tlocalhost\n::1\tlocalhost ip6-localhost ip6-loopback\n"
	if got, err := os.ReadFile(filepath.Join(dir, "hosts")); err != nil || string(got) != want {
		t.Errorf("hosts without addresses: %q, %v; want %q", got, err, want)
	}
	// Without a request both are copies of the host's files.
	files = Files{Dir: dir, Hostname: "web", HostNetwork: true}
	if err := files.Write(nil); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"resolv.conf", "hosts"} {
		want, _ := os.ReadFile(filepath.Join("/etc", name))
		got, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil || string(got) != string(want) {
			t.Errorf("%s: %q, %v; want the host's", name, got, err)
		}
	}
}
