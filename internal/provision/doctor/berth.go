package doctor

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/berthrun/berth/internal/doctor"
	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/finding"
	"github.com/berthrun/berth/internal/hoststoml"
	"github.com/berthrun/berth/internal/provision"
)

// berthConfig reports what `berth config check` does: a configuration that `berth serve` refuses, and files that it names
// and that cannot be used.
func berthConfig(_ context.Context, m *Machine, r *doctor.Report) error {
	b := m.Berth
	if b.Fault != nil && b.File == "" {
		r.Add(problem, "flags", fmt.Sprintf("berth does not start with these flags: %v", b.Fault), "give the flags of its `berth serve`")
	} else if b.Fault != nil {
		r.Add(problem, b.File, fmt.Sprintf("berth does not start with %s: %v", b.File, b.Fault), "correct it; berth config check "+b.File+" reports every fault")
	}
	for _, fault := range b.FileFaults {
		r.Add(problem, b.File, fmt.Sprintf("%s names a file that berth cannot use: %s", b.File, errs.Message(fault)), "correct the file, or the key in "+b.File+"; then restart berth")
	}
	for _, fault := range b.CredentialFaults {
		r.Add(problem, b.File, fault, "correct the file with the credentials, or image.credential_files in "+b.File)
	}
	if b.Unused != "" {
		r.Add(warning, b.File, b.Unused, "remove these keys from "+b.File)
	}
	if b.File == "" && b.Fault == nil && len(b.FileFaults)+len(b.CredentialFaults) == 0 {
		r.Add(finding.OK, "", "there is no file; the defaults are in force", "")
	}
	return nil
}

// berthPrograms checks for the supervisor.
func berthPrograms(_ context.Context, m *Machine, r *doctor.Report) error {
	if m.Berth.Engine == "docker" {
		return nil
	}
	const name = "berth-supervisor"
	if m.Berth.Supervisor == "" {
		r.Add(problem, name, name+" is neither beside berth nor in PATH: berth does not start", "install it beside berth, or set runtime.supervisor")
		return nil
	}
	info, err := m.host.Files().Stat(m.Berth.Supervisor)
	switch {
	case errors.Is(err, errs.NotFound):
		r.Add(problem, m.Berth.Supervisor, fmt.Sprintf("runtime.supervisor is %s, which is not there: berth does not start", m.Berth.Supervisor), "install it there, or correct runtime.supervisor in "+m.Berth.File)
	case err != nil:
		return err
	case info.Type == 0 && info.Mode&0o111 == 0:
		r.Add(problem, m.Berth.Supervisor, m.Berth.Supervisor+" is not executable: berth does not start", "chmod 755 "+m.Berth.Supervisor)
	}
	return nil
}

// longestSocket is how long the path of a unix socket may be: the kernel's sun_path has 108 bytes, the last of which is 0.
const longestSocket = len(unix.RawSockaddrUnix{}.Path) - 1

// berthSocket checks who can command berth.
func berthSocket(_ context.Context, m *Machine, r *doctor.Report) error {
	socket := m.Berth.Socket
	if len(socket) > longestSocket {
		r.Add(problem, socket, fmt.Sprintf("the path of berth's socket has %d bytes, %d more than a socket can have: berth does not start: %s", len(socket), len(socket)-longestSocket, socket),
			"a shorter path as listen in berth.toml")
		return nil
	}
	info, err := m.host.Files().Stat(socket)
	if err != nil {
		return errs.IgnoreNotFound(err)
	}
	if info.UID != 0 || info.Mode&0o002 != 0 {
		r.Add(problem, socket, fmt.Sprintf("%s belongs to user %d and has mode %#o: a user of the machine can run containers as root", socket, info.UID, info.Mode.Perm()),
			"chown root "+socket+" && chmod 660 "+socket+"; berth's key group names the group that may use it")
	}
	return nil
}

// imageStore checks the file system of images and root filesystems.
func imageStore(_ context.Context, m *Machine, r *doctor.Report) error {
	if m.Berth.Engine == "docker" {
		return nil
	}
	mounts, err := m.host.Kernel().Mounts()
	if err != nil {
		return err
	}
	const move = "root in berth.toml on a local disk with ext4, xfs or btrfs"
	at := mountOf(mounts, m.Berth.Root)
	said := fmt.Sprintf("%s is on %s (%s)", m.Berth.Root, at.Type, at.Path)
	switch {
	case slices.Contains([]string{"nfs", "nfs4", "cifs", "smb3", "9p", "virtiofs", "vfat", "exfat", "ceph"}, at.Type), strings.HasPrefix(at.Type, "fuse"), at.Type == "overlay":
		withoutOverlays(m, r, said, move)
	case at.Type == "tmpfs", at.Type == "ramfs":
		r.Add(warning, m.Berth.Root, said+": images take memory, and are gone after a reboot", move)
	}
	if slices.Contains(at.Options, "ro") {
		r.Add(problem, m.Berth.Root, said+" with the option ro: berth cannot write",
			"dmesg says whether the kernel made it so after an error of the disk; else remove ro of "+at.Path+" in /etc/fstab, and mount -o remount,rw "+at.Path)
	}
	if slices.Contains(at.Options, "noexec") {
		r.Add(problem, m.Berth.Root, said+" with the option noexec: no program of a container starts", "remove noexec of "+at.Path+" in /etc/fstab, and mount -o remount,exec "+at.Path)
	}
	return writableLimits(m, r)
}

// withoutOverlays reports a file system that cannot hold the directories of overlays.
func withoutOverlays(m *Machine, r *doctor.Report, said, move string) {
	switch m.Berth.Snapshotter {
	case "native":
	case "overlay":
		r.Add(problem, m.Berth.Root, said+", which cannot hold overlays, and image.snapshotter is overlay: berth does not start", move+", or image.snapshotter = \"auto\"")
	default:
		r.Add(warning, m.Berth.Root, said+", which cannot hold overlays: each container takes time and space for a copy of its image", move)
	}
}

// writableLimits checks whether limits of what containers write hold.
func writableLimits(m *Machine, r *doctor.Report) error {
	if len(m.Berth.WritableLimits) == 0 || m.CanLimit == nil || !provision.Exists(m.host.Files(), m.Berth.Root) {
		return nil
	}
	fault := m.CanLimit(m.Berth.Root)
	if fault != nil && !errors.Is(fault, errs.Unsupported) {
		return fault
	}
	if fault != nil {
		r.Add(problem, m.Berth.Root, fmt.Sprintf("%s, and no pod with such a limit starts: %s", strings.Join(m.Berth.WritableLimits, ", "), errs.Message(fault)),
			"root in berth.toml on a file system with project quotas (docs/running.md#limits-of-what-containers-write), or no such limit")
	}
	return nil
}

// registries checks the hosts.toml of each registry.
func registries(_ context.Context, m *Machine, r *doctor.Report) error {
	if m.Berth.Engine == "docker" {
		return nil
	}
	for _, dir := range m.Berth.RegistryDirs {
		names, err := m.host.Files().ReadDir(dir)
		if err != nil && !errors.Is(err, errs.NotFound) {
			return err
		}
		for _, name := range names {
			file := path.Join(dir, name, hoststoml.Name)
			data, err := read(m.host, file)
			if err != nil {
				unreadable(m.host.Files(), r, path.Join(dir, name), err)
				continue
			}
			described := hoststoml.Describe(data)
			described.CheckFiles(path.Dir(file), func(path string) ([]byte, error) {
				data, err := read(m.host, path)
				if errors.Is(err, errs.NotFound) {
					err = fs.ErrNotExist
				}
				return data, err
			})
			for _, fault := range described.AllFaults() {
				fix := "correct it, or remove " + path.Dir(file)
				if fault.File != "" {
					fix = "put the file there, or correct " + file
				}
				r.Add(problem, file, fmt.Sprintf("%s: images of %s are not pulled", fault.At(file), name), fix)
			}
			for _, fault := range described.AllWarnings() {
				r.Add(warning, file, fault.At(file), "correct it, or remove it from "+file)
			}
		}
	}
	return nil
}

// unreadable reports the entry of a registry whose hosts.toml cannot be read. A directory with certificates alone has none.
func unreadable(files provision.Files, r *doctor.Report, entry string, err error) {
	name := path.Base(entry)
	info, statErr := files.Stat(entry)
	switch {
	case statErr == nil && info.Type == 0 && mayBeHost(name):
		r.Add(problem, entry, fmt.Sprintf("%s is a file, and not a directory with a %s: images of %s are not pulled", entry, hoststoml.Name, name),
			"make it a directory with a "+hoststoml.Name+", or remove it")
	case statErr == nil && info.Type == 0, errors.Is(err, errs.NotFound):
	default:
		file := path.Join(entry, hoststoml.Name)
		r.Add(problem, file, fmt.Sprintf("%s cannot be read: %s: images of %s are not pulled", file, errs.Message(err), name), "make it a file, or remove "+entry)
	}
}

// mayBeHost reports whether an entry of a directory of registries can be of a registry, and is not a note of people such as
// README.md.
func mayBeHost(name string) bool {
	return name == "_default" || name == "localhost" || strings.ContainsAny(name, ".:") && name == strings.ToLower(name)
}
