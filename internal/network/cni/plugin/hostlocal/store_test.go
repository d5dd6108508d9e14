package hostlocal

import (
	"net"
	"os"
	"path/filepath"
	"testing"

	"github.com/containernetworking/plugins/plugins/ipam/host-local/backend/disk"
)

// TestReserve: the files are those that the reference writes, whatever was in them before, and the reference reads them.
func TestReserve(t *testing.T) {
	dir := t.TempDir()
	s, err := openStore("net", dir)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	reference, err := disk.New("other", dir)
	if err != nil {
		t.Fatal(err)
	}
	defer reference.Close()
	for _, ip := range []string{"10.0.0.9", "10.0.0.100", "10.0.0.8", "fd61::1234:5678", "::2"} {
		for _, reserve := range []func(string, string, net.IP, string) (bool, error){s.Reserve, reference.Reserve} {
			if ok, err := reserve(" pod ", "eth0", net.ParseIP(ip), "0"); err != nil || !ok {
				t.Fatalf("%s: %t, %v", ip, ok, err)
			}
		}
		if ok, err := s.Reserve("second", "eth0", net.ParseIP(ip), "0"); err != nil || ok {
			t.Errorf("%s is given out twice: %t, %v", ip, ok, err)
		}
		for _, file := range []string{ip, lastPrefix + "0"} {
			got, want := filepath.Join(dir, "net", file), filepath.Join(dir, "other", file)
			if g, w := describe(t, got), describe(t, want); g != w {
				t.Errorf("%s is %q, want %q", got, g, w)
			}
		}
		if last, err := s.LastReservedIP("0"); err != nil || last.String() != ip {
			t.Errorf("the last address is %v, %v, want %s", last, err, ip)
		}
	}
	if ips := s.GetByID("pod", "eth0"); len(ips) != 5 {
		t.Errorf("the reference finds %v", ips)
	}
}

// describe returns the mode and the content of a file.
func describe(t *testing.T, file string) string {
	t.Helper()
	info, err := os.Stat(file)
	if err != nil {
		t.Fatal(err)
	}
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return info.Mode().String() + " " + string(data)
}
