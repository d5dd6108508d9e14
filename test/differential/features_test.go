//go:build integration

package differential

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berthrun/berth/internal/ocispec"
	"github.com/berthrun/berth/internal/ocispec/request"
)

// mappedRoot is the host's id of root in a pod with a user namespace.
const mappedRoot = 100000

// topToken is the directory of the host with a container's files.
const topToken = "@TOP@"

// forms are the ways in which a container can have a feature.
type forms = map[string]func(*draft)

// features are all fields of a CRI request that reach the OCI spec, and some fields of the spec that
// none does.
func features() map[string]forms {
	all := map[string]forms{}
	for _, group := range []map[string]forms{processFeatures(), securityFeatures(), namespaceFeatures(), mountFeatures(), deviceFeatures(), resourceFeatures(), specFeatures(), specMountFeatures()} {
		for name, f := range group {
			all[name] = f
		}
	}
	return all
}

func processFeatures() map[string]forms {
	return map[string]forms{
		"arguments": {
			"odd": func(d *draft) {
				d.in.Config.Args = []string{"wait", "", "two words", "a\nb", "ü\"'$x", strings.Repeat("x", 4000)}
			},
			"relative": func(d *draft) { d.in.Config.Command = []string{"probe", "wait"} },
			"dotted": func(d *draft) {
				d.in.Config.Command, d.in.Config.WorkingDir = []string{"./probe", "wait"}, "/bin"
			},
			"exit":           func(d *draft) { d.in.Config.Command = []string{"/bin/probe", "exit", "7"} },
			"script":         func(d *draft) { d.in.Config.Command = []string{"/bin/script"} },
			"absent":         func(d *draft) { d.in.Config.Command = []string{"/bin/absent"} },
			"absent in PATH": func(d *draft) { d.in.Config.Command = []string{"absent"} },
			"directory":      func(d *draft) { d.in.Config.Command = []string{"/etc"} },
			"not executable": func(d *draft) { d.in.Config.Command = []string{"/bin/plain"} },
			"no program":     func(d *draft) { d.in.Config.Command = []string{"/bin/text"} },
			"no interpreter": func(d *draft) { d.in.Config.Command = []string{"/bin/orphan"} },
			"link": func(d *draft) {
				d.in.Config.Command = []string{"/bin/linked", "wait"}
				d.trial.prepare = func(_ *side, root string) error { return os.Symlink("/bin/probe", filepath.Join(root, "bin/linked")) }
			},
		},
		"working directory": {
			"present":    func(d *draft) { d.in.Config.WorkingDir = "/home/app" },
			"absent":     func(d *draft) { d.in.Config.WorkingDir = "/made/here" },
			"link":       func(d *draft) { d.in.Config.WorkingDir = "/conf" },
			"dangling":   func(d *draft) { d.in.Config.WorkingDir = "/srv/dangling" },
			"file":       func(d *draft) { d.in.Config.WorkingDir = "/etc/passwd" },
			"in procfs":  func(d *draft) { d.in.Config.WorkingDir = "/proc/self" },
			"forbidden":  func(d *draft) { unreadable(d); d.in.User = user(1000) },
			"in a mount": func(d *draft) { d.mount("private", "/data", nil); d.in.Config.WorkingDir = "/data/dir" },
		},
		"environment": {
			"many": func(d *draft) {
				for i := range 200 {
					d.in.Config.Envs = append(d.in.Config.Envs, &runtimeapi.KeyValue{Key: fmt.Sprint("NAME_", i), Value: []byte(strings.Repeat("v", i))})
				}
			},
			"odd": func(d *draft) {
				for key, value := range map[string]string{"EMPTY": "", "LINES": "a\nb", "EQUALS": "a=b", "UTF8": "ü", "SPACE": " "} {
					d.in.Config.Envs = append(d.in.Config.Envs, &runtimeapi.KeyValue{Key: key, Value: []byte(value)})
				}
			},
			"no PATH": func(d *draft) { d.after = append(d.after, func(s *specs.Spec) { s.Process.Env = []string{"HOME=/"} }) },
			"no HOME": func(d *draft) {
				d.after = append(d.after, func(s *specs.Spec) { s.Process.Env = []string{"PATH=/bin"} })
			},
			"no HOME of a user": func(d *draft) {
				d.in.User = user(1000)
				d.after = append(d.after, func(s *specs.Spec) { s.Process.Env = []string{"PATH=/bin"} })
			},
			"doubled": func(d *draft) {
				d.after = append(d.after, func(s *specs.Spec) { s.Process.Env = append(s.Process.Env, "VERSION=2", "VERSION=3", "PATH=/bin") })
			},
		},
		"streams": {
			"input":      func(d *draft) { d.in.Config.Stdin = true },
			"input once": func(d *draft) { d.in.Config.Stdin, d.in.Config.StdinOnce = true, true },
			"terminal":   func(d *draft) { d.in.Config.Tty = true },
			"terminal with input": func(d *draft) {
				d.in.Config.Tty, d.in.Config.Stdin = true, true
			},
			"terminal of a user": func(d *draft) { d.in.Config.Tty, d.in.User = true, user(1000) },
			"terminal with a size": func(d *draft) {
				d.in.Config.Tty = true
				d.after = append(d.after, func(s *specs.Spec) { s.Process.ConsoleSize = &specs.Box{Width: 101, Height: 37} })
			},
		},
		"annotations": {
			"passed": func(d *draft) {
				d.in.Annotations = map[string]string{"example.com/key": "value", "other": "two\nlines"}
			},
		},
	}
}

func unreadable(d *draft) {
	d.in.Config.WorkingDir = "/locked"
	d.trial.prepare = func(_ *side, root string) error { return os.Mkdir(filepath.Join(root, "locked"), 0o700) }
}

func user(id uint32, groups ...uint32) ocispec.User {
	return ocispec.User{UID: id, GID: id, Groups: append([]uint32{id}, groups...), Home: "/home/app"}
}

func securityFeatures() map[string]forms {
	caps := func(add, drop, ambient []string) func(*draft) {
		return func(d *draft) {
			d.security.Capabilities = &runtimeapi.Capability{AddCapabilities: add, DropCapabilities: drop, AddAmbientCapabilities: ambient}
		}
	}
	return map[string]forms{
		"capabilities": {
			"none":      caps(nil, []string{"ALL"}, nil),
			"all":       caps([]string{"ALL"}, nil, nil),
			"one":       caps([]string{"NET_BIND_SERVICE"}, []string{"ALL"}, nil),
			"more":      caps([]string{"SYS_ADMIN", "NET_ADMIN", "SYS_PTRACE"}, []string{"CHOWN", "MKNOD"}, nil),
			"ambient":   caps(nil, nil, []string{"NET_BIND_SERVICE", "KILL"}),
			"of a user": func(d *draft) { caps(nil, nil, []string{"NET_BIND_SERVICE"})(d); d.in.User = user(1000) },
			"inheritable": func(d *draft) {
				d.in.Defaults.Inheritable = true
			},
			"without SETUID": func(d *draft) {
				caps(nil, []string{"SETUID", "SETGID", "SETPCAP"}, nil)(d)
				d.in.User = user(1000, 2000)
			},
		},
		"user": {
			"a user":      func(d *draft) { d.in.User = user(1000) },
			"with groups": func(d *draft) { d.in.User = user(1000, 5, 27, 2000) },
			"root with groups": func(d *draft) {
				d.in.User = ocispec.User{GID: 7, Groups: []uint32{7, 8, 9}}
			},
			"no groups": func(d *draft) { d.in.User = ocispec.User{UID: 65534, GID: 65534} },
			"large ids": func(d *draft) { d.in.User = user(2147483646, 2147483645) },
			"who cannot read the program": func(d *draft) {
				d.in.User = user(1000)
				d.in.Config.Command = []string{"/bin/secret"}
			},
		},
		"privileges": {
			"no new":            func(d *draft) { d.security.NoNewPrivs = true },
			"no new for a user": func(d *draft) { d.security.NoNewPrivs = true; d.in.User = user(1000) },
			"read-only root":    func(d *draft) { d.security.ReadonlyRootfs = true },
			"privileged": func(d *draft) {
				d.security.Privileged, d.pod.Privileged = true, true
				d.in.AllDevices = true
			},
			"privileged with a terminal": func(d *draft) {
				d.security.Privileged, d.pod.Privileged = true, true
				d.in.AllDevices, d.in.Config.Tty = true, true
			},
			"privileged on the host's network": func(d *draft) {
				d.security.Privileged, d.pod.Privileged = true, true
				d.in.AllDevices = true
				hostNetwork(d)
			},
		},
		"paths": {
			"none": func(d *draft) { d.security.MaskedPaths, d.security.ReadonlyPaths = nil, nil },
			"of the image": func(d *draft) {
				d.security.MaskedPaths = []string{"/etc/passwd", "/home", "/absent", "/conf", "/etc/passwd"}
				d.security.ReadonlyPaths = []string{"/tmp", "/etc/group", "/absent/too", "/var/run", "/tmp"}
			},
			"of mounts": func(d *draft) {
				d.mount("private", "/data", nil)
				d.security.MaskedPaths = []string{"/data/file", "/data/below"}
				d.security.ReadonlyPaths = []string{"/data/dir", "/data"}
			},
			"of a shared volume": func(d *draft) {
				d.mount("shared", "/data", func(m *runtimeapi.Mount) { m.Propagation = runtimeapi.MountPropagation_PROPAGATION_BIDIRECTIONAL })
				d.security.MaskedPaths = []string{"/data/file", "/data/below"}
				d.security.ReadonlyPaths = []string{"/data/dir", "/data"}
			},
			"only masked": func(d *draft) { d.security.ReadonlyPaths = nil },
		},
		"seccomp": {
			"default":     func(d *draft) { d.seccomp = "default" },
			"few":         func(d *draft) { d.seccomp = "few" },
			"errno":       func(d *draft) { d.seccomp = "errno" },
			"arguments":   func(d *draft) { d.seccomp = "arguments" },
			"logged":      func(d *draft) { d.seccomp = "logged" },
			"kills":       func(d *draft) { d.seccomp = "kills" },
			"speculation": func(d *draft) { d.seccomp = "speculation" },
			"default, no new privileges": func(d *draft) {
				d.seccomp, d.security.NoNewPrivs = "default", true
			},
			"default for a user": func(d *draft) { d.seccomp, d.in.User = "default", user(1000) },
			"default, no new privileges, for a user": func(d *draft) {
				d.seccomp, d.security.NoNewPrivs, d.in.User = "default", true, user(1000)
			},
			"default with many capabilities": func(d *draft) { d.seccomp = "default"; caps([]string{"ALL"}, nil, nil)(d) },
		},
	}
}

func hostNetwork(d *draft) {
	d.pod.NamespaceOptions.Network = runtimeapi.NamespaceMode_NODE
	d.security.NamespaceOptions.Network = runtimeapi.NamespaceMode_NODE
	d.in.Namespaces.Net, d.in.Namespaces.UTS = "", ""
}

func namespaceFeatures() map[string]forms {
	return map[string]forms{
		"namespaces": {
			"host network": hostNetwork,
			"host IPC": func(d *draft) {
				d.pod.NamespaceOptions.Ipc = runtimeapi.NamespaceMode_NODE
				d.security.NamespaceOptions.Ipc = runtimeapi.NamespaceMode_NODE
				d.in.Namespaces.IPC, d.in.Files.Shm = "", "/dev/shm"
			},
			"host PID": func(d *draft) {
				d.pod.NamespaceOptions.Pid = runtimeapi.NamespaceMode_NODE
				d.security.NamespaceOptions.Pid = runtimeapi.NamespaceMode_NODE
			},
			"all of the host": func(d *draft) {
				node := &runtimeapi.NamespaceOption{Network: runtimeapi.NamespaceMode_NODE, Pid: runtimeapi.NamespaceMode_NODE, Ipc: runtimeapi.NamespaceMode_NODE}
				d.pod.NamespaceOptions, d.security.NamespaceOptions = node, node
				d.in.Namespaces, d.in.Files.Shm = ocispec.Namespaces{}, "/dev/shm"
			},
			"shared PID": func(d *draft) {
				d.pod.NamespaceOptions.Pid = runtimeapi.NamespaceMode_POD
				d.security.NamespaceOptions.Pid = runtimeapi.NamespaceMode_POD
				d.in.Namespaces.PID = d.p.pinned["pid"]
			},
			"PID of a target": func(d *draft) {
				d.security.NamespaceOptions.Pid = runtimeapi.NamespaceMode_TARGET
				d.security.NamespaceOptions.TargetId = "target"
				d.in.Namespaces.Target = d.p.pinned["pid"]
			},
		},
		"user namespace": {
			"plain":    func(d *draft) { d.mapped = true },
			"terminal": func(d *draft) { d.mapped, d.in.Config.Tty = true, true },
			"user":     func(d *draft) { d.mapped, d.in.User = true, user(1000, 2000) },
			"host network": func(d *draft) {
				d.mapped = true
				hostNetwork(d)
			},
			"seccomp": func(d *draft) { d.mapped, d.seccomp, d.security.NoNewPrivs = true, "default", true },
		},
	}
}

func mountFeatures() map[string]forms {
	with := func(source, at string, change func(*runtimeapi.Mount)) func(*draft) {
		return func(d *draft) { d.mount(source, at, change) }
	}
	propagation := func(p runtimeapi.MountPropagation) func(*runtimeapi.Mount) {
		return func(m *runtimeapi.Mount) { m.Propagation = p }
	}
	const toContainer, bidirectional = runtimeapi.MountPropagation_PROPAGATION_HOST_TO_CONTAINER, runtimeapi.MountPropagation_PROPAGATION_BIDIRECTIONAL
	readonly := func(m *runtimeapi.Mount) { m.Readonly = true }
	recursive := func(m *runtimeapi.Mount) { m.Readonly, m.RecursiveReadOnly = true, true }
	options := func(list ...string) func(*runtimeapi.Mount) {
		return func(m *runtimeapi.Mount) { m.MountOptions = list }
	}
	return map[string]forms{
		"volume": {
			"plain":              with("private", "/data", nil),
			"read-only":          with("private", "/data", readonly),
			"recursively":        with("private", "/data", recursive),
			"file":               with("private/file", "/etc/extra.conf", nil),
			"read-only file":     with("private/file", "/etc/extra.conf", readonly),
			"over a file":        with("private/file", "/etc/passwd", nil),
			"at a deep path":     with("private", "/very/deep/path/data", nil),
			"file at deep path":  with("private/file", "/very/deep/path/file", nil),
			"over tmp":           with("private", "/tmp", nil),
			"over hosts":         with("files/hosts", "/etc/hosts", readonly),
			"through a link":     with("private", "/conf/sub", nil),
			"at a link":          with("private", "/conf", nil),
			"at a dangling link": with("private", "/srv/dangling", nil),
			"file at a link":     with("private/file", "/var/run/file", nil),
			"noexec":             with("private", "/data", options("noexec")),
			"all options":        with("private", "/data", options("noexec", "nodev", "nosuid")),
			"options, read-only": func(d *draft) {
				d.mount("private", "/data", func(m *runtimeapi.Mount) { readonly(m); options("nosuid")(m) })
			},
			"to the container": with("shared", "/data", propagation(toContainer)),
			"of a slave":       with("slave", "/data", propagation(toContainer)),
			"both ways":        with("shared", "/data", propagation(bidirectional)),
			"both ways, read-only": func(d *draft) {
				d.mount("shared", "/data", func(m *runtimeapi.Mount) { readonly(m); m.Propagation = bidirectional })
			},
			"private of shared":     with("shared", "/data", nil),
			"of a read-only mount":  with("readonly", "/data", nil),
			"flags of its mount":    with("noexec", "/data", readonly),
			"in a volume":           func(d *draft) { d.mount("private", "/data", nil); d.mount("noexec", "/data/dir", nil) },
			"on a volume":           func(d *draft) { d.mount("private", "/data", nil); d.mount("noexec", "/data", nil) },
			"on shared memory":      with("private", "/dev/shm", nil),
			"in devices":            with("private", "/dev/data", nil),
			"file in devices":       with("private/file", "/dev/termination-log", nil),
			"at /sys":               with("/sys", "/sys", readonly),
			"in /sys":               with("private", "/sys/fs/cgroup/sub", nil),
			"cgroups of the host":   with("/sys/fs/cgroup", "/host/cgroup", readonly),
			"devices":               with("devices", "/dev", nil),
			"in /proc":              with("private", "/proc/data", nil),
			"on a setting":          with("private/file", "/proc/sys/kernel/domainname", nil),
			"on uptime":             with("private/file", "/proc/uptime", nil),
			"absent source":         with("absent", "/data", nil),
			"file over a directory": with("private/file", "/home", nil),
			"directory over a file": with("private", "/etc/passwd", nil),
			"root":                  with("private", "/", nil),
			"many": func(d *draft) {
				for i := range 20 {
					d.mount([]string{"private", "noexec", "readonly/dir", "shared/file", "private/file"}[i%5], fmt.Sprintf("/volumes/%c/%d", 'a'+i%3, i), []func(*runtimeapi.Mount){nil, readonly}[i%2])
				}
			},
		},
		"mounts of kubelets": {
			"service account": func(d *draft) {
				d.mount("private", "/var/run/secrets/kubernetes.io/serviceaccount", readonly)
				d.mount("files/hosts", "/etc/hosts", nil)
				d.mount("private/file", "/dev/termination-log", nil)
				d.seccomp = "default"
			},
		},
		"tmpfs": {
			"one": func(d *draft) { d.in.Config.Annotations[request.AnnotationTmpfs] = "/cache" },
			"two": func(d *draft) { d.in.Config.Annotations[request.AnnotationTmpfs] = "/tmp,/home/app" },
		},
		"image volumes": {
			"declared": func(d *draft) {
				d.in.ImageVolumes = []ocispec.ImageVolume{{Destination: "/var/lib/data", Source: d.top + "/private/dir"}}
			},
			"mounted": func(d *draft) {
				d.in.Config.Mounts = append(d.in.Config.Mounts, &runtimeapi.Mount{ContainerPath: "/image", Readonly: true, Image: &runtimeapi.ImageSpec{Image: "sha256:aa"}})
				d.in.Volumes[len(d.in.Config.Mounts)-1] = d.top + "/noexec"
			},
		},
		"id-mapped volume": {
			"own mapping": func(d *draft) {
				d.mapped = true
				d.mount("private", "/data", func(m *runtimeapi.Mount) {
					m.UidMappings, m.GidMappings = []*runtimeapi.IDMapping{{HostId: mappedRoot, Length: 65536}}, []*runtimeapi.IDMapping{{HostId: mappedRoot, Length: 65536}}
				})
			},
			"other mapping": func(d *draft) {
				d.mapped = true
				d.mount("private", "/data", func(m *runtimeapi.Mount) {
					m.UidMappings, m.GidMappings = []*runtimeapi.IDMapping{{HostId: 5000, Length: 65536}}, []*runtimeapi.IDMapping{{HostId: 5000, Length: 65536}}
				})
			},
		},
		"root filesystem": {
			"overlay": func(d *draft) { d.trial.overlay = true },
			"overlay, read-only": func(d *draft) {
				d.trial.overlay, d.security.ReadonlyRootfs = true, true
			},
			"absent": func(d *draft) { d.in.Rootfs += "-absent" },
			"empty": func(d *draft) {
				d.trial.prepare = func(_ *side, root string) error {
					entries, err := os.ReadDir(root)
					for _, e := range entries {
						err = errors.Join(err, os.RemoveAll(filepath.Join(root, e.Name())))
					}
					return err
				}
			},
			"shared mount": func(d *draft) {
				d.trial.overlay = true
				d.trial.prepare = func(_ *side, root string) error { return unix.Mount("", root, "", unix.MS_SHARED, "") }
			},
		},
	}
}

func deviceFeatures() map[string]forms {
	null := ocispec.Device{Path: "/dev/other", Source: "/dev/null", Type: "c", Major: 1, Minor: 3, Mode: 0o666, Access: "rwm"}
	at := func(change func(*ocispec.Device)) func(*draft) {
		return func(d *draft) {
			device := null
			change(&device)
			d.in.Devices = append(d.in.Devices, device)
		}
	}
	return map[string]forms{
		"device": {
			"moved":            at(func(*ocispec.Device) {}),
			"read only":        at(func(d *ocispec.Device) { d.Access = "r" }),
			"in a directory":   at(func(d *ocispec.Device) { d.Path = "/dev/sub/dir/other" }),
			"outside of /dev":  at(func(d *ocispec.Device) { d.Path = "/opt/other" }),
			"of a user":        at(func(d *ocispec.Device) { d.UID, d.GID, d.Mode = 1000, 2000, 0o640 }),
			"block":            at(func(d *ocispec.Device) { d.Type, d.Major, d.Minor, d.Path = "b", 7, 0, "/dev/loop0" }),
			"fuse":             at(func(d *ocispec.Device) { d.Major, d.Minor, d.Path, d.Source = 10, 229, "/dev/fuse", "/dev/fuse" }),
			"one of the usual": at(func(d *ocispec.Device) { d.Path, d.Access = "/dev/null", "r" }),
			"twice":            func(d *draft) { at(func(*ocispec.Device) {})(d); at(func(*ocispec.Device) {})(d) },
			"at a link": func(d *draft) {
				at(func(d *ocispec.Device) { d.Path = "/conf/other" })(d)
			},
			"with host devices": func(d *draft) {
				d.mount("devices", "/dev", nil)
				at(func(d *ocispec.Device) { d.Path = "/dev/null" })(d)
			},
			"in a user namespace": func(d *draft) {
				d.mapped = true
				at(func(*ocispec.Device) {})(d)
			},
		},
	}
}

func resourceFeatures() map[string]forms {
	limit := func(change func(*runtimeapi.LinuxContainerResources)) func(*draft) {
		return func(d *draft) { change(d.in.Config.Linux.Resources) }
	}
	update := func(res *specs.LinuxResources) func(*draft) {
		return func(d *draft) { d.trial.update = res }
	}
	return map[string]forms{
		"resources": {
			"shares": limit(func(r *runtimeapi.LinuxContainerResources) { r.CpuShares = 512 }),
			"quota":  limit(func(r *runtimeapi.LinuxContainerResources) { r.CpuPeriod, r.CpuQuota = 50000, 25000 }),
			"memory": limit(func(r *runtimeapi.LinuxContainerResources) { r.MemoryLimitInBytes = 64 << 20 }),
			"memory and swap": limit(func(r *runtimeapi.LinuxContainerResources) {
				r.MemoryLimitInBytes, r.MemorySwapLimitInBytes = 64<<20, 64<<20
			}),
			"4 MiB": limit(func(r *runtimeapi.LinuxContainerResources) { r.MemoryLimitInBytes = 4 << 20 }),
			"5 MiB": limit(func(r *runtimeapi.LinuxContainerResources) { r.MemoryLimitInBytes = 5 << 20 }),
			"6 MiB of a user": func(d *draft) {
				limit(func(r *runtimeapi.LinuxContainerResources) { r.MemoryLimitInBytes = 6 << 20 })(d)
				d.seccomp, d.in.User = "default", user(1000)
			},
			"too little memory": limit(func(r *runtimeapi.LinuxContainerResources) { r.MemoryLimitInBytes = 4096 }),
			"cpuset":            limit(func(r *runtimeapi.LinuxContainerResources) { r.CpusetCpus, r.CpusetMems = "0", "0" }),
			"absent CPU":        limit(func(r *runtimeapi.LinuxContainerResources) { r.CpusetCpus = "900" }),
			"score":             limit(func(r *runtimeapi.LinuxContainerResources) { r.OomScoreAdj = 500 }),
			"no score":          func(d *draft) { d.after = append(d.after, func(s *specs.Spec) { s.Process.OOMScoreAdj = nil }) },
			"low score":         limit(func(r *runtimeapi.LinuxContainerResources) { r.OomScoreAdj = -997 }),
			"all": limit(func(r *runtimeapi.LinuxContainerResources) {
				r.CpuShares, r.CpuPeriod, r.CpuQuota, r.MemoryLimitInBytes, r.CpusetCpus, r.OomScoreAdj = 2048, 100000, 150000, 128<<20, "0-1", 937
			}),
			"processes": func(d *draft) {
				d.after = append(d.after, func(s *specs.Spec) { n := int64(50); s.Linux.Resources.Pids = &specs.LinuxPids{Limit: &n} })
			},
			"nested group": func(d *draft) { d.in.CgroupsPath = groupToken + nestedGroup + "/" + d.trial.id },
		},
		"update": {
			"memory": update(&specs.LinuxResources{Memory: &specs.LinuxMemory{Limit: new(int64(96 << 20))}}),
			"cpu":    update(&specs.LinuxResources{CPU: &specs.LinuxCPU{Shares: new(uint64(300)), Quota: new(int64(30000)), Period: new(uint64(100000))}}),
		},
		"limits of processes": {
			"files":     rlimits("RLIMIT_NOFILE"),
			"all kinds": rlimits("RLIMIT_CORE", "RLIMIT_CPU", "RLIMIT_DATA", "RLIMIT_FSIZE", "RLIMIT_LOCKS", "RLIMIT_MEMLOCK", "RLIMIT_MSGQUEUE", "RLIMIT_NPROC", "RLIMIT_RSS", "RLIMIT_SIGPENDING", "RLIMIT_STACK"),
			"few files": func(d *draft) {
				d.in.Defaults.Rlimits = []specs.POSIXRlimit{{Type: "RLIMIT_NOFILE", Soft: 60, Hard: 100}}
			},
			"no core": func(d *draft) { d.in.Defaults.Rlimits = []specs.POSIXRlimit{{Type: "RLIMIT_CORE"}} },
			"bad": func(d *draft) {
				d.in.Defaults.Rlimits = []specs.POSIXRlimit{{Type: "RLIMIT_FSIZE", Soft: 2000, Hard: 1000}}
			},
			"unknown": func(d *draft) {
				d.in.Defaults.Rlimits = []specs.POSIXRlimit{{Type: "RLIMIT_NOTHING", Soft: 1, Hard: 1}}
			},
		},
	}
}

func rlimits(kinds ...string) func(*draft) {
	return func(d *draft) {
		for i, kind := range kinds {
			limit := specs.POSIXRlimit{Type: kind, Soft: uint64(8<<20 + i), Hard: uint64(8<<20 + 2*i)}
			switch kind {
			case "RLIMIT_NOFILE":
				limit.Soft, limit.Hard = 4096, 8192
			case "RLIMIT_DATA": // libcontainer's init needs more than 8 MiB
				limit.Soft, limit.Hard = 1<<30, 1<<31
			}
			d.in.Defaults.Rlimits = append(d.in.Defaults.Rlimits, limit)
		}
	}
}
