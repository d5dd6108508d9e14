package mountplan

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/require"
)

// rootfs is a root filesystem with links, one of which leads out of it on the host.
func rootfs(t *testing.T) string {
	t.Helper()
	root := t.TempDir()
	for _, dir := range []string{"run", "data", "proc", "sys", "dev"} {
		if err := os.Mkdir(filepath.Join(root, dir), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for link, target := range map[string]string{"var": "/run", "out": "../../../../data", "etc": "/proc/../../data"} {
		if err := os.Symlink(target, filepath.Join(root, link)); err != nil {
			t.Fatal(err)
		}
	}
	return root
}

func specOf(root string, mounts ...specs.Mount) *specs.Spec {
	return &specs.Spec{Root: &specs.Root{Path: root, Readonly: true}, Mounts: mounts, Linux: &specs.Linux{
		Namespaces: []specs.LinuxNamespace{{Type: specs.MountNamespace}, {Type: specs.CgroupNamespace}},
	}}
}

func proc() specs.Mount {
	return specs.Mount{Destination: "/proc", Type: "proc", Source: "proc", Options: []string{"nosuid", "noexec", "nodev"}}
}

// planOf returns the plan of a spec, by the place of each mount.
func planOf(t *testing.T, spec *specs.Spec) map[string]Mount {
	t.Helper()
	all, err := Of(spec, spec.Root.Path)
	if err != nil {
		t.Fatal(err)
	}
	if all[0].Kind != Root || all[0].At != "/" {
		t.Fatalf("the first mount is %+v", all[0])
	}
	byPlace := map[string]Mount{}
	for _, m := range all {
		byPlace[m.At] = m
	}
	if len(byPlace) != len(all) {
		t.Fatalf("%d places of %d mounts", len(byPlace), len(all))
	}
	return byPlace
}

// TestMountsOfARequest: each mount of the request is in the plan, where its path leads inside of the root filesystem,
// with its flags and options.
func TestMountsOfARequest(t *testing.T) {
	spec := specOf(rootfs(t), proc(),
		specs.Mount{Destination: "/dev", Type: "tmpfs", Options: []string{"nosuid", "strictatime", "mode=755", "size=65536k"}},
		specs.Mount{Destination: "/dev/pts", Type: "devpts", Options: []string{"newinstance", "gid=5"}},
		specs.Mount{Destination: "/sys", Type: "sysfs", Options: []string{"ro"}},
		specs.Mount{Destination: "/var/lock", Type: "bind", Source: "/host/lock", Options: []string{"rbind", "rprivate", "rw", "noexec"}},
		specs.Mount{Destination: "/out", Source: "/host/out", Options: []string{"bind", "ro"}},
	)
	spec.Linux.MaskedPaths = []string{"/proc/version", "/proc/fs", "/no/such/path", "/proc/no-such-file"}
	spec.Linux.ReadonlyPaths = []string{"/proc/sys", "/proc/no-such-dir"}
	got := planOf(t, spec)
	for _, want := range []Mount{
		{Kind: Root, At: "/", ReadOnly: true},
		{Kind: New, At: "/proc", Type: "proc", NoSuid: true, NoExec: true, NoDev: true},
		{Kind: New, At: "/dev", Type: "tmpfs", NoSuid: true, Atime: "strictatime", Data: []string{"mode=755", "size=65536k"}},
		{Kind: New, At: "/dev/pts", Type: "devpts", Data: []string{"newinstance", "gid=5"}},
		{Kind: New, At: "/sys", Type: "sysfs", ReadOnly: true},
		{Kind: Bind, At: "/run/lock", Source: "/host/lock", NoExec: true},
		{Kind: Bind, At: "/data", Source: "/host/out", ReadOnly: true},
		{Kind: MaskedFile, At: "/proc/version"},
		{Kind: MaskedDir, At: "/proc/fs", Type: "tmpfs", ReadOnly: true},
		{Kind: ReadOnly, At: "/proc/sys", Type: "proc", NoSuid: true, NoExec: true, NoDev: true, ReadOnly: true},
	} {
		m, there := got[want.At]
		data, wanted := strings.Join(m.Data, ","), strings.Join(want.Data, ",")
		m.Data, want.Data = nil, nil
		if !there || data != wanted || !equal(&m, &want) {
			t.Errorf("%s: %+v with %q, want %+v with %q", want.At, m, data, want, wanted)
		}
		delete(got, want.At)
	}
	if len(got) != 0 {
		t.Errorf("more: %+v", got)
	}
}

// TestFlagsOfTheHost: a volume that the host has mounted read-only is so for the container, and one with a mount below it is
// refused.
func TestFlagsOfTheHost(t *testing.T) {
	require.Root(t)
	source := t.TempDir()
	if err := unix.Mount("berth-test", source, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC|unix.MS_NOATIME, ""); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(source, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	below := filepath.Join(source, "below")
	if err := os.Mkdir(below, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount("", source, "", unix.MS_REMOUNT|unix.MS_BIND|unix.MS_RDONLY|unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC|unix.MS_NOATIME, ""); err != nil {
		t.Fatal(err)
	}
	spec := specOf(rootfs(t), specs.Mount{Destination: "/data", Type: "bind", Source: below, Options: []string{"rbind", "rw"}})
	want := Mount{Kind: Bind, At: "/data", Source: below, ReadOnly: true, NoSuid: true, NoDev: true, NoExec: true, Atime: "noatime"}
	if got := planOf(t, spec)["/data"]; !equal(&got, &want) {
		t.Errorf("%+v, want %+v", got, want)
	}
	if err := unix.Mount("berth-test", below, "tmpfs", 0, ""); err != nil {
		t.Fatal(err)
	}
	spec.Mounts[0].Source = source
	if _, err := Of(spec, spec.Root.Path); !errors.Is(err, errs.Unsupported) || !strings.Contains(err.Error(), "mount /data: a volume with a mount below it ("+below+")") {
		t.Errorf("a mount below a volume: %v", err)
	}
	spec.Mounts[0].Options = []string{"bind"}
	planOf(t, spec)
}

// equal compares mounts without their options.
func equal(a, b *Mount) bool {
	return a.Kind == b.Kind && a.At == b.At && a.Type == b.Type && a.Source == b.Source && a.Atime == b.Atime &&
		a.ReadOnly == b.ReadOnly && a.NoSuid == b.NoSuid && a.NoDev == b.NoDev && a.NoExec == b.NoExec
}

// TestCgroupsOfARequest: a container sees its part of each hierarchy that the host has, and nothing else of cgroups.
func TestCgroupsOfARequest(t *testing.T) {
	names, err := hierarchies()
	if err != nil {
		t.Fatal(err)
	}
	got := planOf(t, specOf(rootfs(t), specs.Mount{Destination: "/sys/fs/cgroup", Type: "cgroup", Options: []string{"ro", "nosuid"}}))
	delete(got, "/")
	top := got["/sys/fs/cgroup"]
	delete(got, "/sys/fs/cgroup")
	if len(names) == 0 {
		if top.Type != "cgroup2" || !top.ReadOnly || len(got) != 0 {
			t.Errorf("cgroup v2: %+v, %+v", top, got)
		}
		return
	}
	if top.Type != "tmpfs" || len(got) != len(names) {
		t.Errorf("%d hierarchies, at %+v: %+v", len(names), top, got)
	}
	for at, m := range got {
		if m.Kind != Hierarchy || m.Type != "cgroup" || !m.ReadOnly || !m.NoSuid || placeOf(m) != at {
			t.Errorf("%s: %+v", at, m)
		}
	}
}

func placeOf(m Mount) string {
	return "/sys/fs/cgroup/" + strings.TrimPrefix(m.Data[0], "name=")
}

// TestMountsThatAreNotRestored are refused with the path and the reason.
func TestMountsThatAreNotRestored(t *testing.T) {
	mapped := specs.Mount{Destination: "/data", Type: "bind", Source: "/x", UIDMappings: []specs.LinuxIDMapping{{Size: 1}}}
	for words, change := range map[string]func(*specs.Spec){
		"mount /proc: a mount over another": func(s *specs.Spec) { s.Mounts = append(s.Mounts, proc()) },
		"mount /var: a mount over another": func(s *specs.Spec) {
			s.Mounts = append(s.Mounts, proc(), proc())
			s.Mounts[1].Destination, s.Mounts[2].Destination = "/run", "/var"
		},
		"mount /data: a mount with mapped ids": func(s *specs.Spec) { s.Mounts = append(s.Mounts, mapped) },
		"mount /data: a bind mount with the option rshared": func(s *specs.Spec) {
			s.Mounts = append(s.Mounts, specs.Mount{Destination: "/data", Type: "bind", Options: []string{"rshared"}})
		},
		"mount /data: a tmpfs that begins as a copy": func(s *specs.Spec) {
			s.Mounts = append(s.Mounts, specs.Mount{Destination: "/data", Type: "tmpfs", Options: []string{"tmpcopyup"}})
		},
		"mount /data: a file system of type nfs": func(s *specs.Spec) { s.Mounts = append(s.Mounts, specs.Mount{Destination: "/data", Type: "nfs"}) },
		"mount /cg: a container without a cgroup namespace of its own": func(s *specs.Spec) {
			s.Linux.Namespaces = nil
			s.Mounts = append(s.Mounts, specs.Mount{Destination: "/cg", Type: "cgroup"})
		},
		"read-only path /data: a read-only path outside of /proc and /sys":         func(s *specs.Spec) { s.Linux.ReadonlyPaths = []string{"/data"} },
		"read-only path /proc/../data: a read-only path outside of /proc and /sys": func(s *specs.Spec) { s.Linux.ReadonlyPaths = []string{"/proc/../data"} },
	} {
		spec := specOf(rootfs(t), proc())
		change(spec)
		if _, err := Of(spec, spec.Root.Path); !errors.Is(err, errs.Unsupported) || !strings.Contains(err.Error(), words) {
			t.Errorf("%v, want %q", err, words)
		}
	}
}

// TestBelow: a path is on the mount that is nearest above it. A longer name in the same directory is another path.
func TestBelow(t *testing.T) {
	mounts := []Mount{{At: "/"}, {At: "/dev"}, {At: "/dev/shm"}, {At: "/data"}}
	for at, want := range map[string]string{
		"/": "/", "/etc/passwd": "/", "/dev": "/dev", "/dev/null": "/dev", "/dev/shm/x": "/dev/shm", "/dev/shmem": "/dev", "/database": "/",
	} {
		if m := Below(mounts, at); m == nil || m.At != want {
			t.Errorf("%s is on %+v, want %s", at, m, want)
		}
	}
	if m := Below(mounts[1:], "/etc"); m != nil {
		t.Errorf("without a root, /etc is on %+v", m)
	}
}
