package ocicommand

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"

	"github.com/opencontainers/runtime-spec/specs-go"
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/supervisor/ownstart/finish"
	"github.com/berthrun/berth/internal/supervisor/server/ociruntime"
	"github.com/berthrun/berth/internal/sys/cgroup"
)

const (
	// criuConfig is the annotation by which runc finds a file with options of CRIU.
	criuConfig = "org.criu.config"
	// criuName is the name by which runc finds CRIU in its PATH.
	criuName = "criu"
	// stopped lets CRIU leave the processes stopped: they go on when the container is started.
	stopped = "leave-stopped\n"
)

// prepareRestore writes what CRIU needs, and returns the arguments and the environment of the program. The images that
// depend on the supervisor are written here: the filters of the spec's seccomp profile, and the container's cgroups.
//
// The program runs in a mount namespace of its own. runc mounts the root filesystem below its own state, and volumes on it;
// CRIU mounts cgroups below its work directory. When one of them was killed, these mounts would stay on the host, and the
// removal of those directories would remove what is mounted there. runc makes no session keyring for a container that it
// restores: the processes would have the supervisor's, with its keys.
func (r *Runtime) prepareRestore(ctx context.Context, f files, p *ociruntime.Plan) (args, env []string, err error) {
	filter, err := r.all.base.Filter(ctx, p.Spec.Linux.Seccomp)
	if err != nil {
		return nil, nil, err
	}
	members, err := membersOf(p.Cgroups)
	if err != nil {
		return nil, nil, err
	}
	bin := filepath.Join(f.dir, "bin")
	if err := os.Mkdir(bin, 0o700); err != nil {
		return nil, nil, fmt.Errorf("cannot make a directory for CRIU: %w", err)
	}
	if err := os.Symlink(p.Restore.CRIU, filepath.Join(bin, criuName)); err != nil {
		return nil, nil, fmt.Errorf("cannot link CRIU: %w", err)
	}
	written := map[string][]byte{
		f.criuConfig(): []byte(stopped),
		filepath.Join(p.Restore.Images, "cgroup.img"): cgroupImage(members, hasNamespace(p.Spec, specs.CgroupNamespace)),
	}
	if filter != nil {
		written[filepath.Join(p.Restore.Images, "seccomp.img")] = seccompImage(filter)
	}
	for name, data := range written {
		if err := os.WriteFile(name, data, 0o600); err != nil {
			return nil, nil, fmt.Errorf("cannot write a file for CRIU: %w", errs.OfDisk(err))
		}
	}
	env = environment()
	env[0] = "PATH=" + bin + ":" + env[0][len("PATH="):]
	return []string{"restore", "--detach", "--image-path", p.Restore.Images, "--work-path", p.Restore.Work, "--manage-cgroups-mode", "soft"}, env, nil
}

func (f files) criuConfig() string { return filepath.Join(f.dir, "criu.conf") }

func hasNamespace(spec *specs.Spec, kind specs.LinuxNamespaceType) bool {
	for _, ns := range spec.Linux.Namespaces {
		if ns.Type == kind {
			return true
		}
	}
	return false
}

// goOn lets the processes of a restored container go on. They may do so already.
func goOn(ctx context.Context, paths cgroup.Paths) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if err := paths.Signal(syscall.SIGCONT); errors.Is(err, errs.NotFound) {
		return fmt.Errorf("its init has ended: %w", errs.State)
	} else if err != nil {
		return err
	}
	return nil
}

// The magic numbers of image files of CRIU: of all, and of two kinds.
const (
	imageMagic   = 0x54564319
	seccompMagic = 0x64413049
	cgroupMagic  = 0x59383330
)

// The numbers of CRIU's own set of cgroups, which is not written, and of the container's.
const containerSet = 2

// image returns an image file of one message.
func image(magic uint32, message []byte) []byte {
	data := binary.LittleEndian.AppendUint32(nil, imageMagic)
	data = binary.LittleEndian.AppendUint32(data, magic)
	data = binary.LittleEndian.AppendUint32(data, uint32(len(message))) //nolint:gosec // some kilobytes
	return append(data, message...)
}

func appendBytes(b []byte, field protowire.Number, value []byte) []byte {
	return protowire.AppendBytes(protowire.AppendTag(b, field, protowire.BytesType), value)
}

func appendNumber(b []byte, field protowire.Number, value uint64) []byte {
	return protowire.AppendVarint(protowire.AppendTag(b, field, protowire.VarintType), value)
}

// seccompImage has one filter, the first: seccomp_entry { seccomp_filter { filter = 1, flags = 3 } = 1 }.
func seccompImage(f *finish.Filter) []byte {
	filter := appendNumber(appendBytes(nil, 1, f.Program), 3, uint64(f.Flags))
	return image(seccompMagic, appendBytes(nil, 1, filter))
}

// cgroupImage has one set of cgroups, and no content of cgroups: they have the limits of the request already. With a
// namespace, the processes see the container's cgroup as the root.
//
//	cgroup_entry { cg_set_entry { id = 1, cg_member_entry { name = 1, path = 2, cgns_prefix = 3 } = 2 } = 1,
//	               cg_controller_entry { cnames = 1 } = 2 }
func cgroupImage(members []member, namespace bool) []byte {
	set := appendNumber(nil, 1, containerSet)
	var controllers []byte
	for _, m := range members {
		name := ""
		var controller []byte
		for i, c := range m.controllers {
			if i > 0 {
				name += ","
			}
			name += c
			controller = appendBytes(controller, 1, []byte(c))
		}
		member := appendBytes(appendBytes(nil, 1, []byte(name)), 2, []byte(m.path))
		if namespace && m.own {
			member = appendNumber(member, 3, uint64(len(m.path)))
		}
		set = appendBytes(set, 2, member)
		controllers = appendBytes(controllers, 2, controller)
	}
	return image(cgroupMagic, append(appendBytes(nil, 1, set), controllers...))
}
