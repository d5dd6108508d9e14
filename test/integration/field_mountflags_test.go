//go:build integration

package integration

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/berthrun/berth/internal/engine/docker/translate"
	"github.com/berthrun/berth/test/harness"
	"golang.org/x/sys/unix"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// TestMountFlags: a mount in a container has the flags of the mount that its source is on, and
// those that the request adds, with and without a user namespace.
func TestMountFlags(t *testing.T) {
	b := harness.Start(t, harness.Options{})
	for name, within := range map[string]func(podChange) podChange{
		"host ids": func(change podChange) podChange { return change }, "user namespace": inUsers,
	} {
		t.Run(name, func(t *testing.T) {
			defer func(parent testing.TB) { b.T = parent }(b.T)
			b.T = t
			if name == "user namespace" {
				b.Needs(t, translate.UserNamespaces)
			}
			b.Needs(t, translate.RecursiveReadOnly)
			b.Needs(t, translate.MountOptions)
			t.Run("volumes", func(t *testing.T) { volumesKeepFlags(t, b, within) })
			t.Run("the sandbox's own", func(t *testing.T) { sandboxMountFlags(t, b, within) })
		})
	}
	t.Run("the host's shared memory", func(t *testing.T) {
		b.NeedsPart(t, harness.MadeRootfs)
		pod := runPodWith(b, "host-shm", "sleep 1000", func(config *runtimeapi.PodSandboxConfig, container *runtimeapi.ContainerConfig) {
			config.Linux.SecurityContext.NamespaceOptions.Ipc = runtimeapi.NamespaceMode_NODE
			container.Linux.SecurityContext.NamespaceOptions.Ipc = runtimeapi.NamespaceMode_NODE
		})
		defer b.RemovePod(pod.Sandbox)
		if flags := mountFlags(t, b, pod.Container)["/dev/shm"]; !strings.HasPrefix(flags, "rw,nosuid,nodev,noexec") {
			t.Errorf("/dev/shm is mounted %q", flags)
		}
	})
}

// flagged returns a directory inside of a host directory that is a mount with flags.
func flagged(t *testing.T, b *harness.Berth, name string, flags uintptr) string {
	t.Helper()
	dir := filepath.Join(b.Dir, name)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount(name, dir, "tmpfs", 0, "mode=777"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	if err := os.Mkdir(filepath.Join(dir, "sub"), 0o777); err != nil {
		t.Fatal(err)
	}
	// The flags belong to the mount alone: the file system stays writable where the mount is
	// read-only.
	if err := unix.Mount("", dir, "", unix.MS_BIND|unix.MS_REMOUNT|flags, ""); err != nil {
		t.Fatal(err)
	}
	return dir
}

// tmpfsMapsIDs reports whether the kernel maps the ids of a tmpfs, which it does since Linux 6.3.
func tmpfsMapsIDs(t *testing.T) bool {
	t.Helper()
	var name unix.Utsname
	if err := unix.Uname(&name); err != nil {
		t.Fatal(err)
	}
	var major, minor int
	release := unix.ByteSliceToString(name.Release[:])
	if _, err := fmt.Sscanf(release, "%d.%d", &major, &minor); err != nil {
		t.Fatalf("kernel release %q: %v", release, err)
	}
	return major > 6 || major == 6 && minor >= 3
}

func volumesKeepFlags(t *testing.T, b *harness.Berth, within func(podChange) podChange) {
	const three = unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC
	strict := flagged(t, b, "strict", three|unix.MS_NOATIME)
	readonly := flagged(t, b, "readonly", unix.MS_RDONLY|unix.MS_NOSUID)
	loose := flagged(t, b, "loose", 0)
	nested := flagged(t, b, "nested", 0)
	flagged(t, b, "nested/sub", three)
	mapped := func(m *runtimeapi.Mount) *runtimeapi.Mount {
		m.UidMappings, m.GidMappings = idRange(usersRoot), idRange(usersRoot)
		return m
	}
	pod := runPodWith(b, "flags", "sleep 1000", within(func(config *runtimeapi.PodSandboxConfig, container *runtimeapi.ContainerConfig) {
		container.Mounts = []*runtimeapi.Mount{
			{HostPath: strict, ContainerPath: "/rw"},
			{HostPath: strict, ContainerPath: "/ro", Readonly: true},
			{HostPath: strict, ContainerPath: "/rro", Readonly: true, RecursiveReadOnly: true},
			{HostPath: filepath.Join(strict, "sub"), ContainerPath: "/dir"},
			{HostPath: filepath.Join(strict, "made", "here"), ContainerPath: "/made", Readonly: true},
			{HostPath: readonly, ContainerPath: "/readonly"},
			{HostPath: readonly, ContainerPath: "/asked", MountOptions: []string{"noexec"}},
			{HostPath: loose, ContainerPath: "/loose"},
			{HostPath: loose, ContainerPath: "/loose-ro", Readonly: true},
			{HostPath: nested, ContainerPath: "/nested", Readonly: true},
		}
		if config.Linux.SecurityContext.NamespaceOptions.UsernsOptions != nil && tmpfsMapsIDs(t) {
			container.Mounts = append(container.Mounts,
				mapped(&runtimeapi.Mount{HostPath: strict, ContainerPath: "/mapped"}),
				mapped(&runtimeapi.Mount{HostPath: strict, ContainerPath: "/mapped-ro", Readonly: true}))
		}
	}))
	defer b.RemovePod(pod.Sandbox)
	want := map[string]string{
		"/rw": "rw,nosuid,nodev,noexec,noatime", "/ro": "ro,nosuid,nodev,noexec,noatime", "/rro": "ro,nosuid,nodev,noexec,noatime",
		"/dir": "rw,nosuid,nodev,noexec,noatime", "/made": "ro,nosuid,nodev,noexec,noatime",
		"/readonly": "ro,nosuid,relatime", "/asked": "ro,nosuid,noexec,relatime",
		"/loose": "rw,relatime", "/loose-ro": "ro,relatime",
		"/nested": "ro,relatime", "/nested/sub": "rw,nosuid,nodev,noexec,relatime",
	}
	if pod.Config.Linux.SecurityContext.NamespaceOptions.UsernsOptions != nil && tmpfsMapsIDs(t) {
		want["/mapped"], want["/mapped-ro"] = "rw,nosuid,nodev,noexec,noatime,idmapped", "ro,nosuid,nodev,noexec,noatime,idmapped"
	}
	wantMountFlags(t, b, pod.Container, want)
	wantOut(t, b, pod.Container, [][2]string{
		{"printf '#!/bin/sh\necho ran\n' > /rw/script; chmod 755 /rw/script; /rw/script 2>/dev/null || echo refused", "refused"},
		{"touch /readonly/x 2>&1", "touch: /readonly/x: Read-only file system"},
		{"touch /loose/x && echo written", "written"},
	})
}

// sandboxMountFlags: the mounts that berth itself adds to every container.
func sandboxMountFlags(t *testing.T, b *harness.Berth, within func(podChange) podChange) {
	cgroups := "/sys/fs/cgroup"
	if _, err := os.Stat(cgroups + "/cgroup.controllers"); err != nil {
		cgroups += "/memory" // v1 has one file system for each controller
	}
	for _, readonly := range []bool{false, true} {
		pod := runPodWith(b, "own-flags", "sleep 1000", within(func(_ *runtimeapi.PodSandboxConfig, container *runtimeapi.ContainerConfig) {
			container.Linux.SecurityContext.ReadonlyRootfs = readonly
			container.Annotations = map[string]string{"run.berth.tmpfs": "/run/own"}
			container.Mounts = []*runtimeapi.Mount{
				{ContainerPath: "/image", Readonly: true, Image: &runtimeapi.ImageSpec{Image: harness.Busybox}},
				{ContainerPath: "/image-noexec", Readonly: true, Image: &runtimeapi.ImageSpec{Image: harness.Busybox}, MountOptions: []string{"noexec"}},
			}
		}))
		const three = "nosuid,nodev,noexec"
		access := map[bool]string{false: "rw", true: "ro"}[readonly]
		want := map[string]string{
			"/dev/shm": "rw," + three, "/dev/mqueue": "rw," + three, "/dev/pts": "rw,nosuid,noexec", "/dev": "rw,nosuid", "/run/own": "rw,nosuid,nodev",
			"/proc": "rw," + three, "/sys": "ro," + three, cgroups: "ro," + three,
			"/etc/hosts": access + "," + three, "/etc/hostname": access + "," + three, "/etc/resolv.conf": access + "," + three,
			"/image": "ro", "/image-noexec": "ro,noexec",
		}
		for path, flags := range mountFlags(t, b, pod.Container) {
			// The atime flags are those of the kernel or the host.
			if asked := want[path]; asked != "" && !strings.HasPrefix(flags+",", asked+",") {
				t.Errorf("%s (read-only root: %t) is mounted %s, want %s", path, readonly, flags, asked)
			}
			delete(want, path)
		}
		for path := range want {
			t.Errorf("%s is not mounted", path)
		}
		b.RemovePod(pod.Sandbox)
	}
}

// mountFlags returns the flags of each mount of a container, by its path.
func mountFlags(t *testing.T, b *harness.Berth, container string) map[string]string {
	t.Helper()
	flags := map[string]string{}
	for _, line := range strings.Split(b.ExecOut(container, "cat /proc/self/mountinfo"), "\n") {
		words := strings.Fields(line)
		if len(words) > 5 {
			flags[words[4]] = words[5]
		}
	}
	return flags
}

func wantMountFlags(t *testing.T, b *harness.Berth, container string, want map[string]string) {
	t.Helper()
	have := mountFlags(t, b, container)
	for path, flags := range want {
		got := strings.Split(have[path], ",")
		for _, flag := range strings.Split(flags, ",") {
			if !slices.Contains(got, flag) {
				t.Errorf("%s is mounted %q, want %s", path, have[path], flags)
				break
			}
		}
		if len(got) != len(strings.Split(flags, ",")) {
			t.Errorf("%s is mounted %q, and not more than %s is asked for", path, have[path], flags)
		}
	}
}
