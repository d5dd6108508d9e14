// Package criuimage makes image files of CRIU from those of an archive that nobody trusts.
//
// CRIU restores what its images say: users, capabilities, namespaces, mounts, open files. So CRIU never reads the
// files of an archive. Fit decodes each of them, refuses what exceeds the request or is not on its lists, and encodes
// what is left. What the request decides does not come from the archive at all: namespaces, cgroups, mounts, seccomp
// filters, security labels, limits. The content of memory and of pipes is copied as it is.
package criuimage

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"

	"github.com/checkpoint-restore/go-criu/v8/crit/images/mnt"
	"github.com/checkpoint-restore/go-criu/v8/crit/images/pstree"
	"github.com/opencontainers/runtime-spec/specs-go"

	criucore "github.com/checkpoint-restore/go-criu/v8/crit/images/criu-core"

	"github.com/berthrun/berth/internal/engine/native/checkpoint/mountplan"
	"github.com/berthrun/berth/internal/errs"
)

// Request is what the restored processes may have.
type Request struct {
	// Spec is the OCI spec of the request, with all that was added to it.
	Spec *specs.Spec
	// Rootfs is the root filesystem on the host, as it will be when the processes go on. Nothing changes it meanwhile.
	Rootfs string
	Limits Limits
}

// Limits are the highest hard limits of processes, by the number of the resource, where the request has none: those of
// a container that is not restored.
type Limits func(resource int) (hard uint64)

// Fitted is what Fit has written.
type Fitted struct {
	// Stdio are the names of descriptors 0 to 2 of the init, as runc has them in descriptors.json.
	Stdio [3]string
	// Tasks is how many processes there are, without those that have ended.
	Tasks int
}

// fitting is the state of one Fit.
type fitting struct {
	*Request
	ctx      context.Context //nolint:containedctx // the life of one Fit
	from, to string
	allowed  rights
	// names are the files of the archive that have not been read yet.
	names map[string]bool

	tree  []*pstree.PstreeEntry
	cores map[uint32]*criucore.CoreEntry
	ids   map[uint32]*criucore.TaskKobjIdsEntry
	files map[uint32]file
	// planned are the mounts of the request, archived those of the archive.
	planned  []mountplan.Mount
	archived []*mnt.MntEntry
	shared   map[uint64]bool
	pages    map[uint32]bool
	fdinfos  map[uint32]bool
	// mapped are the files in memory that the user may open.
	mapped map[mapping]bool
	// pipes are the pipes by their ids.
	pipes map[uint32]bool
	stdio [3]string
	alive int
	// left is how much more may be decoded and kept.
	left size
}

// mapping is a file in memory, and the flags with which it is open.
type mapping struct{ file, flags uint32 }

// prefix is where the images are in an archive. Errors name entries by it.
const prefix = "checkpoint/"

// dropped are the files that are not restored, and whose content does not matter: CRIU's figures, descriptions of the
// host, and what berth writes from the request.
var dropped = regexp.MustCompile(`^(stats-dump|stats-restore|descriptors\.json|cpuinfo\.img|seccomp\.img|cgroup\.img|` +
	`(netns|pidns|userns|utsns)-[0-9]+\.img|ipcns-var-[0-9]+\.img|tmpfs-dev-[0-9]+\.tar\.gz\.img)$`)

// known are the files that Fit reads.
var known = regexp.MustCompile(`^((inventory|pstree|files|pipes-data|timens-0)\.img|` +
	`(core|ids|mm|fs|fdinfo|pagemap|pagemap-shmem|pages|mountpoints)-[0-9]{1,10}\.img)$`)

// Fit reads the image files in the directory from, which has regular files only. It writes those for CRIU into the empty
// directory to, and moves files with memory there. The error is of kind Invalid for a file that CRIU has not written, or
// that exceeds the request, and Unsupported for what berth does not restore. It names the entry of the archive. Fit takes
// some hundred megabytes of memory at most.
func Fit(ctx context.Context, from, to string, r *Request) (*Fitted, error) {
	f := &fitting{
		Request: r, ctx: ctx, from: from, to: to, names: map[string]bool{},
		cores: map[uint32]*criucore.CoreEntry{}, ids: map[uint32]*criucore.TaskKobjIdsEntry{}, files: map[uint32]file{},
		shared: map[uint64]bool{}, pages: map[uint32]bool{}, fdinfos: map[uint32]bool{}, pipes: map[uint32]bool{},
		mapped: map[mapping]bool{}, left: size{parts: maxKeptParts, bytes: maxKeptBytes},
	}
	f.allowed = rightsOf(r.Spec)
	if err := f.list(); err != nil {
		return nil, err
	}
	for _, step := range []func() error{
		f.readTree, f.checkInventory, f.readMounts, f.readFiles, f.fitTasks, f.fitShared, f.fitPipes, f.fitClocks, f.leftOver,
		f.writeNamespaces, f.writeMounts,
	} {
		if err := step(); err != nil {
			return nil, err
		}
	}
	return &Fitted{Stdio: f.stdio, Tasks: f.alive}, nil
}

// list finds the files, and refuses those that are on no list.
func (f *fitting) list() error {
	entries, err := os.ReadDir(f.from)
	if err != nil {
		return fmt.Errorf("cannot read the images: %w", err)
	}
	for _, entry := range entries {
		name := entry.Name()
		switch {
		case !entry.Type().IsRegular():
			return bad(prefix+name, "it is not a regular file")
		case dropped.MatchString(name):
		case known.MatchString(name):
			f.names[name] = true
		default:
			if err := f.checkEmpty(name); err != nil {
				return err
			}
		}
	}
	return nil
}

// checkEmpty accepts a file without a message: CRIU writes one for each kind of which there may be something.
func (f *fitting) checkEmpty(name string) error {
	info, err := os.Lstat(filepath.Join(f.from, name))
	if err != nil {
		return err
	}
	if info.Size() > headerSize {
		return unsupported(prefix+name, "what such an image has is not restored")
	}
	return nil
}

// open reads a file that must be there, and returns its messages.
func (f *fitting) open(name, kind string) (*image, error) {
	if !f.names[name] {
		return nil, bad(prefix+name, "it is missing")
	}
	delete(f.names, name)
	path := filepath.Join(f.from, name)
	info, err := os.Lstat(path)
	if err != nil {
		return nil, err
	}
	if info.Size() > maxImage {
		return nil, bad(prefix+name, "it has %d bytes, more than %d", info.Size(), maxImage)
	}
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	in, err := newImage(prefix+name, kind, data)
	if err == nil {
		in.ctx = f.ctx
	}
	return in, err
}

// openKept is open for a file whose messages are kept until all files are written.
func (f *fitting) openKept(name, kind string) (*image, error) {
	in, err := f.open(name, kind)
	if err == nil {
		in.left = &f.left
	}
	return in, err
}

// move moves a file with content that is not decoded.
func (f *fitting) move(name string) error {
	if !f.names[name] {
		return bad(prefix+name, "it is missing")
	}
	delete(f.names, name)
	return os.Rename(filepath.Join(f.from, name), filepath.Join(f.to, name))
}

// leftOver refuses files that belong to nothing.
func (f *fitting) leftOver() error {
	var names []string
	for name := range f.names {
		names = append(names, name)
	}
	if len(names) == 0 {
		return nil
	}
	slices.Sort(names)
	return bad(prefix+names[0], "it belongs to no process of the archive")
}

// at is the path of a file for CRIU.
func (f *fitting) at(format string, args ...any) string {
	return filepath.Join(f.to, fmt.Sprintf(format, args...))
}

// oneOf reports whether the spec has a namespace of a kind, and the path of one that exists, "" for a new one.
func oneOf(spec *specs.Spec, kind specs.LinuxNamespaceType) (path string, has bool) {
	for _, ns := range spec.Linux.Namespaces {
		if ns.Type == kind {
			return ns.Path, true
		}
	}
	return "", false
}

// CheckSpec refuses requests whose containers are not restored.
func CheckSpec(spec *specs.Spec) error {
	refuse := func(why string) error {
		return fmt.Errorf("a checkpoint is not restored %s: %w", why, errs.Unsupported)
	}
	_, hasUser := oneOf(spec, specs.UserNamespace)
	mntPath, hasMnt := oneOf(spec, specs.MountNamespace)
	pidPath, hasPid := oneOf(spec, specs.PIDNamespace)
	cgroupPath, _ := oneOf(spec, specs.CgroupNamespace)
	switch {
	case hasUser:
		return refuse("in a pod with a user namespace")
	case !hasMnt || mntPath != "" || cgroupPath != "":
		return refuse("without a mount namespace of its own")
	case !hasPid || pidPath != "":
		return refuse("in the PID namespace of its pod, of another container or of the host")
	case spec.Process.Terminal:
		return refuse("on a terminal (config.tty)")
	case spec.Process.Scheduler != nil || spec.Process.IOPriority != nil:
		return refuse("with a scheduler or a priority of block IO")
	case spec.Linux.Seccomp != nil && spec.Linux.Seccomp.ListenerPath != "":
		return refuse("with a seccomp profile that has a listener")
	case spec.Linux.IntelRdt != nil:
		return refuse("with an RDT class")
	case spec.Linux.Personality != nil:
		return refuse("with a personality")
	}
	return nil
}
