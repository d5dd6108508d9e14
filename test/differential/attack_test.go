//go:build integration

package differential

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// attacks are root filesystems, volumes and requests that have fooled container runtimes. What must hold
// for every container, see sound, must hold for them: no file of the host changes, and the container
// does not reach any. Both starters must also treat them alike.
func attacks() map[string]func(*draft) {
	all := map[string]func(*draft){}
	for _, group := range []map[string]func(*draft){linkAttacks(), systemAttacks(), maskAttacks(), consoleAttacks(), procAttacks(), directoryAttacks()} {
		for name, apply := range group {
			all[name] = apply
		}
	}
	return all
}

// attackTimeout bounds a create that a FIFO of the attacker's stops.
const attackTimeout = 5 * time.Second

// TestSameAttacks starts a part of them in both supervisors.
func TestSameAttacks(t *testing.T) {
	newPair(t).cases(t, "a", attackCases(), stepInCI)
}

// attackCases are attacks as cases of a corpus.
func attackCases() map[string]func(*draft) {
	all := attacks()
	for name, apply := range all {
		all[name] = func(d *draft) {
			d.trial.timeout, d.trial.mayDiffer = attackTimeout, mayDiffer(name)
			apply(d)
		}
	}
	return all
}

// ownPrograms is why containers may differ that execute the program of the process that becomes theirs.
const ownPrograms = "each starter has a program of its own"

// mayDiffer says why the starters need not treat a case alike, "" where they must.
func mayDiffer(attack string) string {
	const (
		numbers = "which descriptors a starter has open is its own affair"
		looks   = "libcontainer looks at files of the container that berth's init does not need"
	)
	switch {
	case strings.Contains(attack, "descriptor"), strings.Contains(attack, "/proc/self/fd"), strings.HasSuffix(attack, "a link to an open file"):
		return numbers
	case attack == "procfs without a file system", attack == "masked paths are links", strings.HasPrefix(attack, "/etc/passwd is"):
		return looks
	case strings.HasPrefix(attack, "/dev/null of the image is a") && strings.Contains(attack, "link"):
		return "berth's init makes no device behind a link"
	case strings.HasPrefix(attack, "program ") && strings.HasSuffix(attack, "/exe"):
		return ownPrograms
	case attack == "terminal, /dev/ptmx is a link to itself":
		return "libcontainer waits until the time is over"
	}
	return ""
}

// things are what an attacker puts in the place of a file or a directory of the root filesystem.
func things() map[string]func(root, path string) error {
	link := func(target func(root string) string) func(root, path string) error {
		return func(root, path string) error { return os.Symlink(target(root), path) }
	}
	return map[string]func(root, path string) error{
		"a link to the host": link(func(root string) string { return filepath.Join(filepath.Dir(root), "outside") }),
		"a link above the root": link(func(root string) string {
			return strings.Repeat("../", 12) + filepath.Join(filepath.Dir(root), "outside")
		}),
		"a link in the root":         link(func(string) string { return "/srv" }),
		"a link to procfs":           link(func(string) string { return "/proc/self/root" }),
		"a link to an open file":     link(func(string) string { return "/proc/self/fd/7" }),
		"a link to a process's root": link(func(string) string { return "/proc/1/root" + "/etc" }),
		"a dangling link":            link(func(string) string { return "/nowhere/to/be/found" }),
		"a link to itself":           link(func(string) string { return "loop" }),
		"a file":                     func(_, path string) error { return os.WriteFile(path, []byte("a file\n"), 0o644) },
		"a FIFO":                     func(_, path string) error { return unix.Mkfifo(path, 0o666) },
		"a device":                   func(_, path string) error { return unix.Mknod(path, unix.S_IFCHR|0o666, int(unix.Mkdev(1, 5))) },
		"a socket":                   func(_, path string) error { return unix.Mknod(path, unix.S_IFSOCK|0o666, 0) },
	}
}

// replace puts a thing in a place of the root filesystem before the container is created.
func (d *draft) replace(place string, thing func(root, path string) error) {
	before := d.trial.prepare
	d.trial.prepare = func(s *side, root string) error {
		if before != nil {
			if err := before(s, root); err != nil {
				return err
			}
		}
		path := filepath.Join(root, place)
		return errors.Join(os.RemoveAll(path), os.MkdirAll(filepath.Dir(path), 0o755), thing(root, path))
	}
}

// linkAttacks replace mount points (CVE-2021-30465, CVE-2024-45310).
func linkAttacks() map[string]func(*draft) {
	all := map[string]func(*draft){}
	for name, thing := range things() {
		all["mount on "+name] = func(d *draft) { d.replace("data", thing); d.mount("private", "/data", nil) }
		all["mount below "+name] = func(d *draft) { d.replace("data", thing); d.mount("private", "/data/sub/dir", nil) }
		all["mount a file on "+name] = func(d *draft) { d.replace("data", thing); d.mount("private/file", "/data", nil) }
		all["mount a file below "+name] = func(d *draft) { d.replace("data", thing); d.mount("private/file", "/data/sub/file", nil) }
	}
	return all
}

// systemAttacks replace the directories in which the runtime mounts (CVE-2023-27561, CVE-2023-28642,
// CVE-2026-41579).
func systemAttacks() map[string]func(*draft) {
	all := map[string]func(*draft){}
	for name, thing := range things() {
		for _, place := range []string{"dev", "proc", "sys", "etc"} {
			all["/"+place+" is "+name] = func(d *draft) { d.replace(place, thing) }
		}
	}
	for name, thing := range things() {
		all["/etc/hosts is "+name] = func(d *draft) { d.replace("etc/hosts", thing) }
		all["/etc/passwd is "+name] = func(d *draft) {
			d.replace("etc/passwd", thing)
			d.after = append(d.after, func(s *specs.Spec) { s.Process.Env = []string{"PATH=/bin"} }) // HOME is looked up
		}
	}
	return all
}

// deviceDirectory mounts a directory of the attacker's on /dev, with a thing in a place of it.
func deviceDirectory(d *draft, place string, thing func(root, path string) error) {
	d.mount("devices", "/dev", nil)
	before := d.trial.prepare
	d.trial.prepare = func(s *side, root string) error {
		if before != nil {
			if err := before(s, root); err != nil {
				return err
			}
		}
		path := filepath.Join(filepath.Dir(root), "devices", place)
		return errors.Join(os.RemoveAll(path), thing(root, path))
	}
}

func linkTo(target string) func(root, path string) error {
	return func(_, path string) error { return os.Symlink(target, path) }
}

// maskAttacks replace the null device, which covers masked paths (CVE-2025-31133).
func maskAttacks() map[string]func(*draft) {
	all := map[string]func(*draft){}
	for name, thing := range things() {
		all["/dev/null is "+name] = func(d *draft) { deviceDirectory(d, "null", thing) }
		all["/dev/null of the image is "+name] = func(d *draft) {
			d.replace("dev/null", thing)
			d.after = append(d.after, func(s *specs.Spec) {
				s.Mounts = slices.DeleteFunc(s.Mounts, func(m specs.Mount) bool { return strings.HasPrefix(m.Destination, "/dev") })
			})
		}
	}
	for _, target := range []string{"/proc/sys/kernel/core_pattern", "/proc/sysrq-trigger", "/proc/self/exe"} {
		all["/dev/null is a link to "+target] = func(d *draft) { deviceDirectory(d, "null", linkTo(target)) }
	}
	all["masked paths are links"] = func(d *draft) {
		d.replace("masked", linkTo("/proc/sys/kernel"))
		d.security.MaskedPaths = append(d.security.MaskedPaths, "/masked", "/masked/hostname")
		d.security.ReadonlyPaths = append(d.security.ReadonlyPaths, "/masked", "/masked/domainname")
	}
	return all
}

// consoleAttacks replace what becomes /dev/console (CVE-2025-52565).
func consoleAttacks() map[string]func(*draft) {
	all := map[string]func(*draft){}
	for name, thing := range things() {
		for _, place := range []string{"console", "pts", "ptmx"} {
			all["terminal, /dev/"+place+" is "+name] = func(d *draft) {
				d.in.Config.Tty = true
				deviceDirectory(d, place, thing)
			}
		}
	}
	all["terminal, /dev/console is a link to a setting"] = func(d *draft) {
		d.in.Config.Tty = true
		deviceDirectory(d, "console", linkTo("/proc/sys/kernel/core_pattern"))
	}
	return all
}

// procAttacks put files of the attacker's where the runtime writes to procfs (CVE-2019-16884, CVE-2025-52881).
func procAttacks() map[string]func(*draft) {
	ownNetwork := func(s *specs.Spec) {
		for i := range s.Linux.Namespaces {
			if s.Linux.Namespaces[i].Type == specs.NetworkNamespace {
				s.Linux.Namespaces[i].Path = ""
			}
		}
		s.Linux.Sysctl = map[string]string{"net.core.somaxconn": "99"}
	}
	return map[string]func(*draft){
		"volume on /proc":           func(d *draft) { d.mount("private", "/proc", nil) },
		"volume on /proc/sys":       func(d *draft) { d.mount("private", "/proc/sys", nil) },
		"volume on /proc/self/attr": func(d *draft) { d.mount("private", "/proc/self/attr", nil) },
		"volume on /sys/kernel":     func(d *draft) { d.mount("private", "/sys/kernel", nil) },
		"procfs of the host":        func(d *draft) { d.mount("/proc", "/proc", nil) },
		"setting covered by a file": func(d *draft) {
			d.mount("private/file", "/proc/sys/net/core/somaxconn", nil)
			d.after = append(d.after, ownNetwork)
		},
		"settings covered by a mount of the spec": func(d *draft) {
			d.after = append(d.after, ownNetwork, func(s *specs.Spec) {
				s.Mounts = append(s.Mounts, specs.Mount{Destination: "/proc/sys/net", Type: "bind", Source: d.top + "/private", Options: []string{"bind"}})
			})
		},
		"procfs seen through a link": func(d *draft) {
			d.replace("elsewhere", linkTo("/proc/sys"))
			d.mount("private", "/elsewhere/net", nil)
		},
		"procfs without a file system": func(d *draft) {
			d.after = append(d.after, func(s *specs.Spec) { s.Mounts = s.Mounts[1:]; s.Linux.MaskedPaths, s.Linux.ReadonlyPaths = nil, nil })
		},
		"score and user of a covered procfs": func(d *draft) {
			d.in.User = user(1000)
			d.mount("private/file", "/proc/self/oom_score_adj", nil)
		},
	}
}

// directoryAttacks work in a directory that is not the container's (CVE-2024-21626, CVE-2016-9962).
func directoryAttacks() map[string]func(*draft) {
	all := map[string]func(*draft){}
	for _, fd := range []int{3, 5, 6, 7, 8, 9, 10, 11} {
		all[fmt.Sprint("works in descriptor ", fd)] = func(d *draft) { d.in.Config.WorkingDir = fmt.Sprint("/proc/self/fd/", fd) }
		all[fmt.Sprint("works above descriptor ", fd)] = func(d *draft) { d.in.Config.WorkingDir = fmt.Sprintf("/proc/self/fd/%d/../../..", fd) }
	}
	all["works in a link to a descriptor"] = func(d *draft) { d.replace("work", linkTo("/proc/self/fd/8")); d.in.Config.WorkingDir = "/work" }
	all["works in a link to the host"] = func(d *draft) {
		d.replace("work", things()["a link to the host"])
		d.in.Config.WorkingDir = "/work"
	}
	all["works in the init's root"] = func(d *draft) { d.in.Config.WorkingDir = "/proc/1/root" }
	all["works in another process of the host"] = func(d *draft) {
		d.pod.NamespaceOptions.Pid = runtimeapi.NamespaceMode_NODE
		d.security.NamespaceOptions.Pid = runtimeapi.NamespaceMode_NODE
		d.in.Config.WorkingDir = "/proc/1/cwd"
	}
	for _, program := range []string{"/proc/self/exe", "/proc/self/fd/6", "/proc/1/exe", "/proc/self/root/bin/probe"} {
		all["program "+program] = func(d *draft) { d.in.Config.Command = []string{program, "wait"} }
		all["program links to "+program] = func(d *draft) {
			d.replace("bin/start", linkTo(program))
			d.in.Config.Command = []string{"/bin/start", "wait"}
		}
		all["program is interpreted by "+program] = func(d *draft) {
			d.replace("bin/start", func(_, path string) error { return os.WriteFile(path, []byte("#!"+program+"\n"), 0o755) })
			d.in.Config.Command = []string{"/bin/start", "wait"}
		}
	}
	return all
}
