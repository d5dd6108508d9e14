package ownplan

import (
	"errors"
	"reflect"
	"slices"
	"testing"

	"github.com/opencontainers/runc/libcontainer/configs"
	"github.com/opencontainers/runc/libcontainer/specconv"
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/supervisor/ownstart/order"
)

// configOf returns libcontainer's configuration of a spec that change has changed.
func configOf(t *testing.T, change func(*specs.Spec)) *configs.Config {
	t.Helper()
	spec := &specs.Spec{
		Version: specs.Version,
		Root:    &specs.Root{Path: "/rootfs"},
		Process: &specs.Process{Args: []string{"x"}, Cwd: "/"},
		Linux:   &specs.Linux{CgroupsPath: "/x/c", Namespaces: []specs.LinuxNamespace{{Type: "mount"}}},
	}
	change(spec)
	config, err := specconv.CreateLibcontainerConfig(&specconv.CreateOpts{CgroupName: "c", Spec: spec})
	if err != nil {
		t.Fatal(err)
	}
	return config
}

// mountOf returns what a mount of a spec becomes on cgroup v2.
func mountOf(t *testing.T, m specs.Mount) order.Mount {
	t.Helper()
	built, err := Build(configOf(t, func(s *specs.Spec) { s.Mounts = []specs.Mount{m} }), &Host{})
	if err != nil {
		t.Fatal(err)
	}
	if len(built.Mounts) != 1 {
		t.Fatalf("%d mounts", len(built.Mounts))
	}
	return built.Mounts[0]
}

const allFlags = unix.MOUNT_ATTR_RDONLY | unix.MOUNT_ATTR_NOSUID | unix.MOUNT_ATTR_NODEV | unix.MOUNT_ATTR_NOEXEC | unix.MOUNT_ATTR_NOSYMFOLLOW

// TestFlagsOfBindMounts: with a flag a bind mount has its own flags and no others, without one it has
// those of its source. Flags of access times stay unless the mount has one.
func TestFlagsOfBindMounts(t *testing.T) {
	for _, c := range []struct {
		options    []string
		set, clear uint64
	}{
		{[]string{"rbind", "rprivate"}, 0, 0},
		{[]string{"bind", "ro"}, unix.MOUNT_ATTR_RDONLY, allFlags},
		{[]string{"bind", "rw"}, 0, allFlags},
		{[]string{"rbind", "nosuid", "nodev", "noexec", "ro"}, allFlags &^ unix.MOUNT_ATTR_NOSYMFOLLOW, allFlags},
		{[]string{"bind", "noatime"}, unix.MOUNT_ATTR_NOATIME, allFlags | unix.MOUNT_ATTR__ATIME | unix.MOUNT_ATTR_NODIRATIME},
		{[]string{"bind", "relatime"}, 0, allFlags | unix.MOUNT_ATTR__ATIME | unix.MOUNT_ATTR_NODIRATIME},
	} {
		m := mountOf(t, specs.Mount{Destination: "/x", Source: "/src", Type: "bind", Options: c.options})
		if !m.Bind || m.Set != c.set || m.Clear != c.clear || m.Recursive != slices.Contains(c.options, "rbind") {
			t.Errorf("%v: %+v, want set %#x, clear %#x", c.options, m, c.set, c.clear)
		}
	}
	m := mountOf(t, specs.Mount{Destination: "/x", Source: "/src", Type: "bind", Options: []string{"rbind", "rro", "rsuid"}})
	if m.SetAll != unix.MOUNT_ATTR_RDONLY || m.ClearAll != unix.MOUNT_ATTR_NOSUID {
		t.Errorf("recursive flags: %+v", m)
	}
}

// TestNewFilesystems: a flag is one of the mount, and read-only one of the filesystem, too. What things
// are made in becomes read-only at the end.
func TestNewFilesystems(t *testing.T) {
	m := mountOf(t, specs.Mount{Destination: "/sys", Source: "sysfs", Type: "sysfs", Options: []string{"nosuid", "ro"}})
	if m.Set != unix.MOUNT_ATTR_NOSUID|unix.MOUNT_ATTR_RDONLY || !slices.Equal(m.Params, []string{"ro"}) || m.ReadOnlyLast {
		t.Errorf("sysfs: %+v", m)
	}
	m = mountOf(t, specs.Mount{Destination: "/dev", Source: "tmpfs", Type: "tmpfs", Options: []string{"strictatime", "ro", "mode=755", "size=64k"}})
	if m.Set != unix.MOUNT_ATTR_STRICTATIME || !slices.Equal(m.Params, []string{"mode=755", "size=64k"}) || !m.ReadOnlyLast {
		t.Errorf("tmpfs: %+v", m)
	}
	m = mountOf(t, specs.Mount{Destination: "/sys/fs/cgroup", Source: "cgroup", Type: "cgroup", Options: []string{"nsdelegate"}})
	if m.Type != "cgroup2" || !slices.Equal(m.Params, []string{"nsdelegate"}) {
		t.Errorf("cgroup v2: %+v", m)
	}
}

// TestPropagation: mounts of the host get the type of the root first, so that only rshared keeps them in
// a peer group of the host; the root itself never is in one.
func TestPropagation(t *testing.T) {
	const slave, shared, private, all = unix.MS_SLAVE, unix.MS_SHARED, unix.MS_PRIVATE, unix.MS_REC
	for _, c := range []struct {
		root, mount string
		want        order.Root
		tree        []uint64
		after       []uint64
	}{
		{"", "rprivate", order.Root{Tree: []uint64{slave | all, private}}, []uint64{slave | all}, []uint64{private | all}},
		{"rslave", "rslave", order.Root{Tree: []uint64{slave | all}}, []uint64{slave | all}, []uint64{slave | all}},
		{"rprivate", "bind", order.Root{Tree: []uint64{private | all}}, []uint64{private | all}, nil},
		{"rshared", "rshared", order.Root{Tree: []uint64{shared | all, private}, Final: shared | all}, []uint64{shared | all}, []uint64{shared | all}},
	} {
		built, err := Build(configOf(t, func(s *specs.Spec) {
			s.Linux.RootfsPropagation = c.root
			s.Mounts = []specs.Mount{{Destination: "/x", Source: "/src", Type: "bind", Options: []string{"rbind", c.mount}}}
		}), &Host{})
		if err != nil {
			t.Errorf("%q: %v", c.root, err)
			continue
		}
		c.want.Path = "/rootfs"
		if m := built.Mounts[0]; !reflect.DeepEqual(built.Root, c.want) || !slices.Equal(m.Tree, c.tree) || !slices.Equal(m.Propagation, c.after) {
			t.Errorf("%q, %q: root %+v, mount %+v", c.root, c.mount, built.Root, m)
		}
	}
}

// TestHierarchies: with a cgroup namespace a container sees each hierarchy of v1, without one its cgroup
// in each.
func TestHierarchies(t *testing.T) {
	host := &Host{Hierarchies: []Hierarchy{{"cpu,cpuacct", "/cg/cpu,cpuacct/x/c"}, {"systemd", "/cg/systemd/x/c"}}}
	mount := specs.Mount{Destination: "/sys/fs/cgroup", Source: "cgroup", Type: "cgroup", Options: []string{"ro"}}
	cgroupNamespace := func(path string) func(s *specs.Spec) {
		return func(s *specs.Spec) {
			s.Mounts = []specs.Mount{mount}
			s.Linux.Namespaces = append(s.Linux.Namespaces, specs.LinuxNamespace{Type: "cgroup", Path: path})
		}
	}
	built, err := Build(configOf(t, cgroupNamespace("")), host)
	if err != nil || len(built.Mounts) != 3 || !built.NewCgroup {
		t.Fatalf("%+v, %v", built, err)
	}
	top, cpu, systemd := built.Mounts[0], built.Mounts[1], built.Mounts[2]
	if top.Type != "tmpfs" || !slices.Equal(top.Links, []string{"cpu", "cpu,cpuacct", "cpuacct", "cpu,cpuacct"}) {
		t.Errorf("top: %+v", top)
	}
	const flags = unix.MOUNT_ATTR_RDONLY | unix.MOUNT_ATTR_NOSUID | unix.MOUNT_ATTR_NODEV | unix.MOUNT_ATTR_NOEXEC
	if !cpu.Bind || cpu.Recursive || cpu.Target != "/sys/fs/cgroup/cpu,cpuacct" || cpu.Source != "/cg/cpu,cpuacct/x/c" ||
		cpu.Set != flags || !slices.Equal(cpu.Tree, []uint64{unix.MS_PRIVATE}) {
		t.Errorf("cpu: %+v", cpu)
	}
	if !systemd.Bind || systemd.Source != "/cg/systemd/x/c" {
		t.Errorf("systemd: %+v", systemd)
	}
	// The root of a namespace that exists is another cgroup.
	built, err = Build(configOf(t, cgroupNamespace("/some")), host)
	if err != nil || len(built.Mounts) != 3 {
		t.Fatalf("%+v, %v", built, err)
	}
	if cpu := built.Mounts[1]; cpu.Bind || cpu.Type != "cgroup" || !slices.Equal(cpu.Params, []string{"ro", "cpu", "cpuacct"}) {
		t.Errorf("cpu of a namespace that exists: %+v", cpu)
	}
	if systemd := built.Mounts[2]; systemd.Source != "systemd" || !slices.Contains(systemd.Params, "name=systemd") {
		t.Errorf("systemd of a namespace that exists: %+v", systemd)
	}
	built, err = Build(configOf(t, func(s *specs.Spec) { s.Mounts = []specs.Mount{mount} }), host)
	if err != nil || built.NewCgroup {
		t.Fatalf("%+v, %v", built, err)
	}
	if own := built.Mounts[1]; !own.Bind || own.Source != "/cg/cpu,cpuacct/x/c" || own.Set&unix.MOUNT_ATTR_RDONLY == 0 {
		t.Errorf("without a cgroup namespace: %+v", own)
	}
}

// TestDevices: /dev is filled unless the host's is mounted there; /dev/ptmx is a link.
func TestDevices(t *testing.T) {
	uid := uint32(7)
	built, err := Build(configOf(t, func(s *specs.Spec) {
		s.Linux.Devices = []specs.LinuxDevice{{Path: "/dev/x", Type: "b", Major: 8, Minor: 1, UID: &uid}, {Path: "/dev/ptmx", Type: "c", Major: 5, Minor: 2}}
	}), &Host{})
	if err != nil || !built.Dev {
		t.Fatalf("%+v, %v", built, err)
	}
	at := slices.IndexFunc(built.Devices, func(d order.Device) bool { return d.Path == "/dev/x" })
	if at < 0 || built.Devices[at].Mode != unix.S_IFBLK|0o666 || built.Devices[at].UID != 7 || built.Devices[at].Major != 8 {
		t.Errorf("devices: %+v", built.Devices)
	}
	if slices.ContainsFunc(built.Devices, func(d order.Device) bool { return d.Path == "/dev/ptmx" }) {
		t.Error("/dev/ptmx is a device node")
	}
	built, err = Build(configOf(t, func(s *specs.Spec) {
		s.Mounts = []specs.Mount{{Destination: "/dev/", Source: "/dev", Type: "bind", Options: []string{"rbind"}}}
	}), &Host{})
	if err != nil || built.Dev {
		t.Errorf("the host's /dev is filled: %+v, %v", built, err)
	}
}

// TestUnsupported: what berth's init cannot do is refused, so that libcontainer does it.
func TestUnsupported(t *testing.T) {
	for name, change := range map[string]func(*configs.Config){
		"a source in the root": func(c *configs.Config) { c.Mounts[0].Source = "/rootfs/etc" },
		"a copied bind mount":  func(c *configs.Config) { c.Mounts[0].Extensions = configs.EXT_COPYUP },
		"mapped ids":           func(c *configs.Config) { c.Mounts[0].IDMapping = &configs.MountIDMapping{} },
		"a remount":            func(c *configs.Config) { c.Mounts[0].Flags |= unix.MS_REMOUNT },
		"unbindable":           func(c *configs.Config) { c.RootPropagation = unix.MS_UNBINDABLE },
	} {
		config := configOf(t, func(s *specs.Spec) {
			s.Mounts = []specs.Mount{{Destination: "/x", Source: "/src", Type: "bind", Options: []string{"bind"}}}
		})
		change(config)
		if _, err := Build(config, &Host{}); !errors.Is(err, errs.Unsupported) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
