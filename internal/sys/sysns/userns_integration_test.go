//go:build integration

package sysns_test

import (
	"errors"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/require"
	"github.com/berthrun/berth/internal/sys/sysmount"
	"github.com/berthrun/berth/internal/sys/sysns"
)

// mapped is a user namespace whose root has the id 200000 outside. The process sleep holds it.
func mapped(t *testing.T, pin string) *sysns.UserNamespace {
	ids := []syscall.SysProcIDMap{{ContainerID: 0, HostID: 200000, Size: 65536}}
	return &sysns.UserNamespace{Pin: pin, UIDs: ids, GIDs: ids, Program: require.Binary(t, "sleep"), Args: []string{"1000"}}
}

func TestUserNamespaceOwnsThePodsOtherNamespaces(t *testing.T) {
	require.Root(t)
	dir := t.TempDir()
	pin := func(kind string) string { return filepath.Join(dir, kind) }
	t.Cleanup(func() {
		for _, kind := range []string{"user", "ipc", "uts", "net"} {
			if err := sysns.Unpin(pin(kind)); err != nil {
				t.Error(err)
			}
		}
	})
	err := sysns.PodNamespaces{
		User: mapped(t, pin("user")), IPC: pin("ipc"), UTS: pin("uts"), Net: pin("net"),
		Hostname: "mapped", Sysctls: map[string]string{"kernel/shmmni": "1234"},
	}.Make()
	if err != nil {
		t.Fatal(err)
	}
	user, err := os.Stat(pin("user"))
	if err != nil {
		t.Fatal(err)
	}
	for kind, number := range map[string]int{"ipc": unix.CLONE_NEWIPC, "uts": unix.CLONE_NEWUTS, "net": unix.CLONE_NEWNET} {
		f, err := os.Open(pin(kind))
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		if got, err := unix.IoctlRetInt(int(f.Fd()), unix.NS_GET_NSTYPE); err != nil || got != number {
			t.Errorf("%s: kind %x, %v", kind, got, err)
		}
		owner, err := unix.IoctlRetInt(int(f.Fd()), unix.NS_GET_USERNS)
		if err != nil {
			t.Fatalf("%s: %v", kind, err)
		}
		ownerFile := os.NewFile(uintptr(owner), "owner")
		defer ownerFile.Close()
		if st, err := ownerFile.Stat(); err != nil || !os.SameFile(st, user) {
			t.Errorf("the %s namespace is not owned by the pod's user namespace (%v)", kind, err)
		}
	}
	err = sysns.InNetNS(pin("net"), func() error {
		links, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM, 0)
		if err != nil {
			return err
		}
		defer unix.Close(links)
		ifr, err := unix.NewIfreq("lo")
		if err != nil {
			return err
		}
		if err := unix.IoctlIfreq(links, unix.SIOCGIFFLAGS, ifr); err != nil {
			return err
		}
		if ifr.Uint16()&unix.IFF_UP == 0 {
			t.Error("the loopback is down")
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}

func TestBindMappedShowsMappedOwners(t *testing.T) {
	require.Root(t)
	dir := t.TempDir()
	source, target := filepath.Join(dir, "source"), filepath.Join(dir, "target")
	for _, d := range []string{source, target} {
		if err := os.Mkdir(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(source, "f"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	err := sysns.WithUserNamespace(*mapped(t, ""), func(path string) error {
		if err := sysmount.ProbeMapped(source, path); err != nil {
			return err
		}
		return sysmount.BindMapped(source, target, path)
	})
	if err != nil {
		t.Fatal(err)
	}
	defer sysmount.Detach(target)
	var st unix.Stat_t
	if err := unix.Stat(filepath.Join(target, "f"), &st); err != nil || st.Uid != 200000 || st.Gid != 200000 {
		t.Errorf("the file's owner is %d:%d, %v; want 200000", st.Uid, st.Gid, err)
	}
	// proc cannot map ids.
	err = sysns.WithUserNamespace(*mapped(t, ""), func(path string) error { return sysmount.ProbeMapped("/proc", path) })
	if !errors.Is(err, errs.Unsupported) {
		t.Errorf("/proc with mapped ids: %v", err)
	}
	if err := sysmount.ProbeMountAttributes(); err != nil {
		t.Error(err)
	}
}
