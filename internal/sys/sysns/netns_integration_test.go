//go:build integration

package sysns_test

import (
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/require"
	"github.com/berthrun/berth/internal/sys/sysns"
)

func TestNetNSIsPinnedAndRemoved(t *testing.T) {
	require.Root(t)
	path := filepath.Join(t.TempDir(), "ns")
	if err := sysns.NewNetNS(path); err != nil {
		t.Fatal(err)
	}
	defer sysns.RemoveNetNS(path)

	if err := sysns.NewNetNS(path); !errors.Is(err, errs.Exists) {
		t.Errorf("a second namespace at the same path: %v, want kind Exists", err)
	}
	var inside string
	err := sysns.InNetNS(path, func() error {
		links, err := net.Interfaces()
		if err != nil {
			return err
		}
		if len(links) != 1 || links[0].Name != "lo" || links[0].Flags&net.FlagUp == 0 {
			t.Errorf("links %v, want lo alone and up", links)
		}
		inside, err = os.Readlink("/proc/thread-self/ns/net")
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	if own, _ := os.Readlink("/proc/self/ns/net"); own == inside {
		t.Errorf("the function ran in %s, the process's own namespace", inside)
	}
	for range 2 {
		if err := sysns.RemoveNetNS(path); err != nil {
			t.Errorf("cannot remove: %v", err)
		}
	}
	if _, err := os.Lstat(path); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the pin is left: %v", err)
	}
	if err := sysns.InNetNS(path, func() error { return nil }); !errors.Is(err, errs.NotFound) {
		t.Errorf("entering a namespace that is gone: %v, want kind NotFound", err)
	}
}

func TestPlainFileIsNoNetNS(t *testing.T) {
	require.Root(t)
	path := filepath.Join(t.TempDir(), "ns")
	if err := os.WriteFile(path, nil, 0o444); err != nil {
		t.Fatal(err)
	}
	if err := sysns.InNetNS(path, func() error { return nil }); !errors.Is(err, errs.NotFound) {
		t.Errorf("entering a plain file: %v, want kind NotFound", err)
	}
	if err := sysns.RemoveNetNS(path); err != nil {
		t.Errorf("cannot remove a pin that was never mounted: %v", err)
	}
}

func TestEnsureNetNSDirTwice(t *testing.T) {
	require.Root(t)
	dir := filepath.Join(t.TempDir(), "netns")
	for range 2 {
		if err := sysns.EnsureNetNSDir(dir); err != nil {
			t.Fatal(err)
		}
	}
	if err := unix.Unmount(dir, 0); err != nil {
		t.Errorf("the directory is no mount point: %v", err)
	}
	if err := unix.Unmount(dir, 0); !errors.Is(err, unix.EINVAL) {
		t.Errorf("the directory was mounted more than once: %v", err)
	}
}

func BenchmarkNetNS(b *testing.B) {
	require.Root(b)
	path := filepath.Join(b.TempDir(), "ns")
	for b.Loop() {
		if err := sysns.NewNetNS(path); err != nil {
			b.Fatal(err)
		}
		if err := sysns.RemoveNetNS(path); err != nil {
			b.Fatal(err)
		}
	}
}

// TestEnsureNetNSDirLeavesPinsOfOthers: a process that pinned a namespace earlier can still unpin
// it.
func TestEnsureNetNSDirLeavesPinsOfOthers(t *testing.T) {
	require.Root(t)
	run := t.TempDir()
	if err := unix.Mount("none", run, "tmpfs", 0, ""); err != nil {
		t.Fatal(err)
	}
	defer unix.Unmount(run, unix.MNT_DETACH)
	if err := unix.Mount("", run, "", unix.MS_PRIVATE, ""); err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(run, "netns")
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	pin := filepath.Join(dir, "cni-1")
	if err := sysns.NewNetNS(pin); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := sysns.EnsureNetNSDir(dir); err != nil {
			t.Fatal(err)
		}
	}
	mounts, err := mountinfo.GetMounts(mountinfo.SingleEntryFilter(run))
	if err != nil || len(mounts) != 1 || !strings.Contains(mounts[0].Optional, "shared:") {
		t.Errorf("the mount that the pins lie on is not shared: %+v, %v", mounts, err)
	}
	if err := sysns.RemoveNetNS(pin); err != nil {
		t.Error(err)
	}
	if _, err := os.Lstat(pin); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the pin is left: %v", err)
	}
}

// TestEnsureNetNSDirBelowAHiddenMount: the mount table also has mounts that a later one covers, such as a
// tmpfs that somebody mounts over /run. They hold nothing.
func TestEnsureNetNSDirBelowAHiddenMount(t *testing.T) {
	require.Root(t)
	run := t.TempDir()
	dir := filepath.Join(run, "netns")
	tmpfs := func() {
		if err := unix.Mount("none", run, "tmpfs", 0, ""); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = unix.Unmount(run, unix.MNT_DETACH) })
		if err := unix.Mount("", run, "", unix.MS_PRIVATE, ""); err != nil {
			t.Fatal(err)
		}
	}
	tmpfs()
	if err := sysns.EnsureNetNSDir(dir); err != nil {
		t.Fatal(err)
	}
	if err := sysns.NewNetNS(filepath.Join(dir, "cni-1")); err != nil {
		t.Fatal(err)
	}
	tmpfs() // covers both
	for range 2 {
		if err := sysns.EnsureNetNSDir(dir); err != nil {
			t.Fatal(err)
		}
	}
	pin := filepath.Join(dir, "cni-2")
	if err := sysns.NewNetNS(pin); err != nil {
		t.Fatal(err)
	}
	if err := sysns.RemoveNetNS(pin); err != nil {
		t.Error(err)
	}
	if err := unix.Unmount(dir, 0); err != nil {
		t.Errorf("the directory is not mounted on itself: %v", err)
	}
}
