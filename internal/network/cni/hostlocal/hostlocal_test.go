package hostlocal

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"testing"

	"github.com/containernetworking/plugins/plugins/ipam/host-local/backend/disk"

	"github.com/berthrun/berth/internal/errs"
)

func TestEntries(t *testing.T) {
	dir := t.TempDir()
	store, ok := Of(fmt.Appendf(nil, `{"type":"bridge","ipam":{"type":"host-local","dataDir":%q}}`, dir), "net")
	if !ok {
		t.Fatal("the configuration has no store")
	}
	if all, err := store.Entries(); err != nil || len(all) != 0 {
		t.Errorf("without a directory: %v, %v", all, err)
	}
	if err := os.Mkdir(filepath.Join(dir, "net"), 0o755); err != nil {
		t.Fatal(err)
	}
	for name, content := range map[string]string{
		"10.1.0.2": "abc\r\neth0", "fd00::2": "abc\neth0\n", "10.1.0.3": "old", "last_reserved_ip.0": "10.1.0.3", "lock": "",
	} {
		if err := os.WriteFile(filepath.Join(dir, "net", name), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	all, err := store.Entries()
	if got := fmt.Sprint(all); err != nil || got != "[{10.1.0.2 abc eth0} {10.1.0.3 old } {fd00::2 abc eth0}]" {
		t.Errorf("%s, %v", got, err)
	}
	if _, err := store.Entry(netip.MustParseAddr("10.1.0.9")); !errors.Is(err, errs.NotFound) {
		t.Errorf("a free address: %v, want kind NotFound", err)
	}
}

// TestRelease: the entries of a container are released, and no others.
func TestRelease(t *testing.T) {
	dir := t.TempDir()
	store, _ := Of(fmt.Appendf(nil, `{"ipam":{"type":"host-local","dataDir":%q}}`, dir), "net")
	if err := os.Mkdir(filepath.Join(dir, "net"), 0o755); err != nil {
		t.Fatal(err)
	}
	for name, content := range map[string]string{"10.1.0.2": "abc\r\neth0", "10.1.0.3": "abc\r\neth1", "10.1.0.4": "def\r\neth0"} {
		if err := os.WriteFile(filepath.Join(dir, "net", name), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for range 2 { // it can be repeated
		if err := store.Release(Entry{netip.MustParseAddr("10.1.0.2"), "abc", "eth0"}); err != nil {
			t.Fatal(err)
		}
		if all, err := store.Entries(); err != nil || fmt.Sprint(all) != "[{10.1.0.3 abc eth1} {10.1.0.4 def eth0}]" {
			t.Errorf("%v, %v", all, err)
		}
	}
	if file := store.File(netip.MustParseAddr("10.1.0.3")); file != filepath.Join(dir, "net", "10.1.0.3") {
		t.Error(file)
	}
}

// TestReleaseEmpty: files without content are released, and no others; not while the plugin has its lock.
func TestReleaseEmpty(t *testing.T) {
	dir := t.TempDir()
	store, _ := Of(fmt.Appendf(nil, `{"ipam":{"type":"host-local","dataDir":%q}}`, dir), "net")
	if released, err := store.ReleaseEmpty(); err != nil || released != nil {
		t.Errorf("without a store: %v, %v", released, err)
	}
	plugin, err := disk.New("net", dir)
	if err != nil {
		t.Fatal(err)
	}
	for name, content := range map[string]string{"10.1.0.2": "abc\r\neth0", "10.1.0.3": "", "fd00::3": "", "last_reserved_ip.0": ""} {
		if err := os.WriteFile(filepath.Join(dir, "net", name), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := plugin.Lock(); err != nil {
		t.Fatal(err)
	}
	if released, err := store.ReleaseEmpty(); err != nil || released != nil {
		t.Errorf("beside the plugin: %v, %v", released, err)
	}
	if err := plugin.Close(); err != nil {
		t.Fatal(err)
	}
	if released, err := store.ReleaseEmpty(); err != nil || fmt.Sprint(released) != "[10.1.0.3 fd00::3]" {
		t.Errorf("%v, %v", released, err)
	}
	left, err := filepath.Glob(filepath.Join(dir, "net", "*"))
	for i, file := range left {
		left[i] = filepath.Base(file)
	}
	if err != nil || fmt.Sprint(left) != "[10.1.0.2 last_reserved_ip.0 lock]" {
		t.Errorf("%v, %v", left, err)
	}
}

func TestOtherIPAMHasNoStore(t *testing.T) {
	for _, plugin := range []string{`{"type":"portmap"}`, `{"ipam":{"type":"dhcp"}}`, `{"ipam":7}`, ``} {
		if _, ok := Of([]byte(plugin), "net"); ok {
			t.Errorf("%s has a store", plugin)
		}
	}
	if _, ok := Of([]byte(`{"ipam":{"type":"host-local"}}`), "../net"); ok {
		t.Error("a name that is a path has a store")
	}
}

// FuzzOf: no configuration names a store outside of its dataDir.
func FuzzOf(f *testing.F) {
	f.Add([]byte(`{"ipam":{"type":"host-local"}}`), "net")
	f.Add([]byte(`{"ipam":{"type":"host-local","dataDir":"/x"}}`), "..")
	f.Fuzz(func(t *testing.T, plugin []byte, network string) {
		if store, ok := Of(plugin, network); ok && filepath.Base(store.dir) != network {
			t.Errorf("%q and %q: %q", plugin, network, store.dir)
		}
	})
}
