//go:build integration

package noderoutes

import (
	"log/slog"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/berthrun/berth/internal/require"
)

// TestWithoutWatch: where the host allows no further watch of files, berth follows the file all the same.
func TestWithoutWatch(t *testing.T) {
	require.Root(t)
	const inside = "BERTH_TEST_WITHOUT_WATCH"
	if os.Getenv(inside) == "" {
		cmd := exec.CommandContext(t.Context(), "/proc/self/exe", "-test.run=^TestWithoutWatch$", "-test.v")
		cmd.Env = append(os.Environ(), inside+"=1")
		ids := []syscall.SysProcIDMap{{Size: 65536}}
		cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWUSER | unix.CLONE_NEWNET, UidMappings: ids, GidMappings: ids}
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("%v\n%s", err, out)
		}
		return
	}
	if err := os.WriteFile("/proc/sys/user/max_inotify_instances", []byte("0"), 0o600); err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	file := filepath.Join(dir, "routes")
	if err := os.WriteFile(file, []byte("10.1.0.0/24\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	handle, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		t.Fatal(err)
	}
	defer handle.Close()
	f, err := Follow(Config{
		File: file, StateDir: filepath.Join(dir, "state"), Quarantine: filepath.Join(dir, "quarantine"), Handle: handle,
		Subnets: func() []netip.Prefix { return nil }, Log: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	info := map[string]string{}
	if f.AddTo(info); info["routesFault"] == "" {
		t.Errorf("the file is not read: %v", info)
	}
	if f.watch != nil {
		t.Error("there is a watch")
	}
}
