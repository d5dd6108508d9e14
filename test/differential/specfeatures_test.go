//go:build integration

package differential

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
)

// changed changes the spec that a draft becomes.
func changed(change func(*specs.Spec)) func(*draft) {
	return func(d *draft) { d.after = append(d.after, change) }
}

// specFeatures are fields of the OCI spec that no request of CRI sets. Both starters must treat them
// alike.
func specFeatures() map[string]forms {
	with := changed
	own := func(kinds ...specs.LinuxNamespaceType) func(*specs.Spec) {
		return func(s *specs.Spec) {
			var list []specs.LinuxNamespace
			for _, ns := range s.Linux.Namespaces {
				for _, kind := range kinds {
					if ns.Type == kind {
						ns.Path = ""
					}
				}
				list = append(list, ns)
			}
			s.Linux.Namespaces = list
		}
	}
	return map[string]forms{
		"spec": {
			"umask":          with(func(s *specs.Spec) { mask := uint32(0o077); s.Process.User.Umask = &mask }),
			"own namespaces": with(own(specs.NetworkNamespace, specs.IPCNamespace, specs.UTSNamespace)),
			"hostname":       with(func(s *specs.Spec) { own(specs.UTSNamespace)(s); s.Hostname = "named" }),
			"domain name":    with(func(s *specs.Spec) { own(specs.UTSNamespace)(s); s.Hostname, s.Domainname = "named", "example.org" }),
			"sysctl of net": with(func(s *specs.Spec) {
				own(specs.NetworkNamespace)(s)
				s.Linux.Sysctl = map[string]string{"net.ipv4.ip_forward": "1", "net.core.somaxconn": "77"}
			}),
			"sysctl of IPC": with(func(s *specs.Spec) {
				own(specs.IPCNamespace)(s)
				s.Linux.Sysctl = map[string]string{"kernel.shmmax": "65536", "fs.mqueue.msg_max": "20", "kernel.sem": "10 20 30 40"}
			}),
			"sysctl of a host": with(func(s *specs.Spec) { s.Linux.Sysctl = map[string]string{"kernel.pid_max": "40000"} }),
			"absent sysctl": with(func(s *specs.Spec) {
				own(specs.NetworkNamespace)(s)
				s.Linux.Sysctl = map[string]string{"net.ipv4.absent": "1"}
			}),
			"bad sysctl": with(func(s *specs.Spec) {
				own(specs.NetworkNamespace)(s)
				s.Linux.Sysctl = map[string]string{"net.ipv4.ip_forward": "words"}
			}),
			"gone namespace":  with(func(s *specs.Spec) { aNamespace(s).Path = "/absent/namespace" }),
			"wrong namespace": with(func(s *specs.Spec) { aNamespace(s).Path = "/proc/self/ns/uts" }),
			"no mounts": with(func(s *specs.Spec) {
				s.Mounts = s.Mounts[:min(3, len(s.Mounts))]
				s.Linux.MaskedPaths, s.Linux.ReadonlyPaths = nil, nil
			}),
			"no process":      with(func(s *specs.Spec) { s.Process.Args = nil }),
			"no capabilities": with(func(s *specs.Spec) { s.Process.Capabilities = nil }),
			"unknown capability": with(func(s *specs.Spec) {
				if s.Process.Capabilities == nil {
					s.Process.Capabilities = &specs.LinuxCapabilities{}
				}
				permitted := s.Process.Capabilities.Permitted
				s.Process.Capabilities.Permitted = append(slices.Clone(permitted[:min(1, len(permitted))]), "CAP_ABSENT")
			}),
			"scheduler": with(func(s *specs.Spec) { s.Process.Scheduler = &specs.Scheduler{Policy: specs.SchedBatch, Nice: 5} }),
			"io priority": with(func(s *specs.Spec) {
				s.Process.IOPriority = &specs.LinuxIOPriority{Class: specs.IOPRIO_CLASS_BE, Priority: 6}
			}),
			"personality":     with(func(s *specs.Spec) { s.Linux.Personality = &specs.LinuxPersonality{Domain: specs.PerLinux32} }),
			"root slave":      with(func(s *specs.Spec) { s.Linux.RootfsPropagation = "rslave" }),
			"root shared":     with(func(s *specs.Spec) { s.Linux.RootfsPropagation = "rshared" }),
			"root unbindable": with(func(s *specs.Spec) { s.Linux.RootfsPropagation = "runbindable" }),
			"root private":    with(func(s *specs.Spec) { s.Linux.RootfsPropagation = "private" }),
			"time namespace": with(func(s *specs.Spec) {
				s.Linux.Namespaces = append(s.Linux.Namespaces, specs.LinuxNamespace{Type: specs.TimeNamespace})
				s.Linux.TimeOffsets = map[string]specs.LinuxTimeOffset{"boottime": {Secs: 1000}}
			}),
			"block weight": with(func(s *specs.Spec) { w := uint16(300); s.Linux.Resources.BlockIO = &specs.LinuxBlockIO{Weight: &w} }),
			"device rules": with(func(s *specs.Spec) {
				major, any := int64(10), int64(-1)
				s.Linux.Resources.Devices = append(s.Linux.Resources.Devices, specs.LinuxDeviceCgroup{Allow: true, Type: "c", Major: &major, Minor: &any, Access: "rw"},
					specs.LinuxDeviceCgroup{Allow: false, Type: "c", Major: &major, Access: "w"})
			}),
			"FIFO": with(func(s *specs.Spec) {
				s.Linux.Devices = append(s.Linux.Devices, specs.LinuxDevice{Path: "/dev/fifo", Type: "p"})
			}),
			"exec affinity": with(func(s *specs.Spec) { s.Process.ExecCPUAffinity = &specs.CPUAffinity{Initial: "0", Final: "0"} }),
			"hook": with(func(s *specs.Spec) {
				s.Hooks = &specs.Hooks{CreateRuntime: []specs.Hook{{Path: "/bin/true", Args: []string{"true"}}}}
			}),
			"hooks after the start": with(func(s *specs.Spec) {
				hook := []specs.Hook{{Path: "/bin/true", Args: []string{"true"}}}
				s.Hooks = &specs.Hooks{Poststart: hook, Poststop: hook}
			}),
			"failing hook after the start": with(func(s *specs.Spec) {
				s.Hooks = &specs.Hooks{Poststart: []specs.Hook{{Path: "/bin/false", Args: []string{"false"}}}}
			}),
			"failing hook": with(func(s *specs.Spec) {
				s.Hooks = &specs.Hooks{CreateRuntime: []specs.Hook{{Path: "/bin/false", Args: []string{"false"}}}}
			}),
		},
	}
}

// specMountFeatures are mounts of the OCI spec that no request of CRI makes.
func specMountFeatures() map[string]forms {
	with := changed
	mount := func(m specs.Mount) func(*draft) {
		return func(d *draft) {
			m.Source = strings.Replace(m.Source, topToken, d.top, 1)
			with(func(s *specs.Spec) { s.Mounts = append(s.Mounts, m) })(d)
		}
	}
	return map[string]forms{
		"mount of the spec": {
			"tmpfs options": mount(specs.Mount{Destination: "/t", Type: "tmpfs", Source: "tmpfs", Options: []string{"size=1m", "mode=0711", "uid=1000", "gid=1000", "nr_inodes=100", "noatime", "ro"}}),
			"tmpfs copy":    mount(specs.Mount{Destination: "/etc", Type: "tmpfs", Source: "tmpfs", Options: []string{"tmpcopyup"}}),
			"tmpfs copy of all kinds": func(d *draft) {
				mount(specs.Mount{Destination: "/kinds", Type: "tmpfs", Source: "tmpfs", Options: []string{"tmpcopyup", "ro", "nosuid"}})(d)
				d.trial.prepare = func(_ *side, root string) error {
					top := filepath.Join(root, "kinds")
					return errors.Join(os.MkdirAll(filepath.Join(top, "dir/below"), 0o750), os.Chmod(top, 0o1777),
						os.WriteFile(filepath.Join(top, "dir/large"), bytes.Repeat([]byte("0123456789abcdef"), 200_000), 0o640),
						os.Chown(filepath.Join(top, "dir/large"), 1000, 2000), os.WriteFile(filepath.Join(top, "set"), []byte("x"), 0o755),
						os.Chmod(filepath.Join(top, "set"), 0o755|os.ModeSetuid|os.ModeSticky), os.Symlink("/etc/passwd", filepath.Join(top, "link")),
						unix.Mknod(filepath.Join(top, "loop"), unix.S_IFBLK|0o620, int(unix.Mkdev(7, 0))))
				}
			},
			"tmpfs copy through a link":     mount(specs.Mount{Destination: "/conf", Type: "tmpfs", Source: "tmpfs", Options: []string{"tmpcopyup"}}),
			"tmpfs copy to an absent place": mount(specs.Mount{Destination: "/absent/place", Type: "tmpfs", Source: "tmpfs", Options: []string{"tmpcopyup"}}),
			"tmpfs copy of a file":          mount(specs.Mount{Destination: "/etc/passwd", Type: "tmpfs", Source: "tmpfs", Options: []string{"tmpcopyup"}}),
			"tmpfs copy of a FIFO": func(d *draft) {
				mount(specs.Mount{Destination: "/kinds", Type: "tmpfs", Source: "tmpfs", Options: []string{"tmpcopyup"}})(d)
				d.trial.prepare = func(_ *side, root string) error {
					return errors.Join(os.Mkdir(filepath.Join(root, "kinds"), 0o755), unix.Mkfifo(filepath.Join(root, "kinds/fifo"), 0o644))
				}
			},
			"tmpfs shared":    mount(specs.Mount{Destination: "/t", Type: "tmpfs", Source: "tmpfs", Options: []string{"shared"}}),
			"bind options":    mount(specs.Mount{Destination: "/b", Type: "bind", Source: topToken + "/noexec", Options: []string{"bind", "exec", "dev", "relatime", "ro"}}),
			"bind, not deep":  mount(specs.Mount{Destination: "/b", Type: "bind", Source: topToken + "/private", Options: []string{"bind"}}),
			"unbindable":      mount(specs.Mount{Destination: "/b", Type: "bind", Source: topToken + "/private", Options: []string{"rbind", "runbindable"}}),
			"slave alone":     mount(specs.Mount{Destination: "/b", Type: "bind", Source: topToken + "/shared", Options: []string{"rbind", "slave"}}),
			"no links":        mount(specs.Mount{Destination: "/b", Type: "bind", Source: topToken + "/private", Options: []string{"rbind", "nosymfollow", "nodiratime"}}),
			"recursive":       mount(specs.Mount{Destination: "/b", Type: "bind", Source: topToken + "/private", Options: []string{"rbind", "rro", "rnosuid", "rnoexec"}}),
			"unknown option":  mount(specs.Mount{Destination: "/b", Type: "tmpfs", Source: "tmpfs", Options: []string{"nothing=1"}}),
			"unknown type":    mount(specs.Mount{Destination: "/b", Type: "nothing", Source: "none"}),
			"proc in a place": mount(specs.Mount{Destination: "/other/proc", Type: "proc", Source: "proc"}),
			"second devpts":   mount(specs.Mount{Destination: "/dev/pts2", Type: "devpts", Source: "devpts", Options: []string{"newinstance"}}),
			"tmpfs on proc":   mount(specs.Mount{Destination: "/proc", Type: "tmpfs", Source: "tmpfs"}),
			"tmpfs in proc":   mount(specs.Mount{Destination: "/proc/scsi", Type: "tmpfs", Source: "tmpfs"}),
			"relative":        mount(specs.Mount{Destination: "rel/path", Type: "tmpfs", Source: "tmpfs"}),
			"with dots":       mount(specs.Mount{Destination: "/a/../../b", Type: "tmpfs", Source: "tmpfs"}),
			"read-only dev":   with(func(s *specs.Spec) { s.Mounts[1].Options = append(s.Mounts[1].Options, "ro") }),
			"hidepid":         with(func(s *specs.Spec) { s.Mounts[0].Options = append(s.Mounts[0].Options, "hidepid=2") }),
			"id-mapped": mount(specs.Mount{
				Destination: "/b", Type: "bind", Source: topToken + "/private", Options: []string{"bind", "idmap"},
				UIDMappings: []specs.LinuxIDMapping{{HostID: 5000, Size: 1000}}, GIDMappings: []specs.LinuxIDMapping{{HostID: 5000, Size: 1000}},
			}),
		},
	}
}

// aNamespace returns one of a container's namespaces that is not its mount namespace, if it has another: other
// features of a random container may leave few.
func aNamespace(s *specs.Spec) *specs.LinuxNamespace {
	return &s.Linux.Namespaces[min(2, len(s.Linux.Namespaces)-1)]
}
