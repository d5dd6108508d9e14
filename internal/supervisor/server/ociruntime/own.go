package ociruntime

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/opencontainers/cgroups"
	"github.com/opencontainers/runc/libcontainer/configs"
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/supervisor/ownstart/allow"
	"github.com/berthrun/berth/internal/supervisor/ownstart/filter"
	"github.com/berthrun/berth/internal/supervisor/ownstart/finish"
	"github.com/berthrun/berth/internal/supervisor/ownstart/fork"
	"github.com/berthrun/berth/internal/supervisor/ownstart/order"
	"github.com/berthrun/berth/internal/supervisor/ownstart/program"
	"github.com/berthrun/berth/internal/supervisor/server/ociruntime/ownplan"
	"github.com/berthrun/berth/internal/sys/cgroup"
)

// OwnName is the name of berth's own starter, for people.
const OwnName = "own"

// ownStarter starts containers with berth's own init where package allow allows it, and has libcontainer
// start all others. Both use the configuration that libcontainer makes of the spec, and write the same
// state.
type ownStarter struct {
	*libcontainerStarter
	// refusal is why no container of this host can have berth's init, "" for no reason.
	refusal string
	filters *filter.Cache
	// program is opened for the first container.
	program func() (*fork.Program, error)
}

// ownPlan is the payload of a plan for berth's own init.
type ownPlan struct {
	*libcontainerPlan
	order   *order.Create
	process *specs.Process
	// systemd is true when systemd makes the cgroup.
	systemd bool
}

func (o *ownStarter) plan(p *Plan, spec *specs.Spec, request *PlanRequest) error {
	if err := o.libcontainerStarter.plan(p, spec, request); err != nil {
		return err
	}
	facts := allow.Facts{Host: o.refusal}
	if request.NoOwnInit {
		facts.Host = "own_init is false in berth's configuration"
	}
	ok, reason := allow.Create(spec, facts)
	if ok {
		reason = o.planOwn(p, spec, request.Systemd)
	}
	p.Reason = reason
	return nil
}

// planOwn adds the order to a plan of libcontainer's, or returns why not.
func (o *ownStarter) planOwn(p *Plan, spec *specs.Spec, systemd bool) (reason string) {
	if _, err := o.program(); err != nil {
		return err.Error()
	}
	plan := p.payload.(*libcontainerPlan)
	hierarchies, err := hierarchiesOf(p.Cgroups)
	if err != nil {
		return err.Error()
	}
	built, err := ownplan.Build(plan.config, &ownplan.Host{Hierarchies: hierarchies, Core: hasCore()})
	if err != nil {
		return err.Error()
	}
	if size := spec.Process.ConsoleSize; size != nil {
		built.Width, built.Height = int(size.Width), int(size.Height)
	}
	p.payload = &ownPlan{plan, built, spec.Process, systemd}
	p.Starter = OwnName
	return ""
}

func (o *ownStarter) create(ctx context.Context, p *Plan, io *StdIO) (pid int, err error) {
	own, ok := p.payload.(*ownPlan)
	if !ok {
		return o.libcontainerStarter.create(ctx, p, io)
	}
	seccomp, err := o.filters.Get(ctx, own.config.Seccomp)
	if err == nil {
		own.order.Process, err = finish.FromSpec(own.process, seccomp)
	}
	if errors.Is(err, errs.Unsupported) {
		p.payload, p.Starter, p.Reason = own.libcontainerPlan, Name, err.Error()
		return o.libcontainerStarter.create(ctx, p, io)
	}
	if err != nil {
		return 0, err
	}
	own.order.Process.OOMScoreAdj = own.config.OomScoreAdj
	own.order.Process.Keyring, own.order.Process.KeyringAccess = keyringOf(p.ID, own.config.Namespaces.Contains(configs.NEWUSER))
	return o.startOwn(ctx, p, own, io)
}

// keyringOf returns the name of the session keyring of a container, and who may search it: its user, or
// everybody where the keyring belongs to a user that the user namespace does not have.
func keyringOf(id string, inUserNamespace bool) (name string, access uint32) {
	const userSearch, otherSearch = 0x80000, 0x8
	if inUserNamespace {
		return "_ses." + id, otherSearch
	}
	return "_ses." + id, userSearch
}

// openProgram returns the program of children. dir is the state directory.
func openProgram(dir string) (*fork.Program, error) {
	exe, err := program.Open(dir)
	if err != nil {
		return nil, err
	}
	children := fork.New(exe, dir)
	return children, children.Prepare()
}

// ownRefusal returns why this host cannot have berth's own init, "" for no reason.
func ownRefusal(host *Host) string {
	// Without CAP_SYS_PTRACE, a container could have all that a child has, and trace it in the
	// moment before it protects itself.
	for _, name := range []string{"CAP_SYS_PTRACE", "CAP_SYS_ADMIN", "CAP_SYS_CHROOT", "CAP_MKNOD", "CAP_CHOWN", "CAP_DAC_OVERRIDE"} {
		if !host.Bounding[name] {
			return "the supervisor lacks " + name
		}
	}
	if os.Geteuid() != 0 {
		return "the supervisor does not run as root"
	}
	// A link of /proc shows each process its own root as "/".
	var root unix.Statx_t
	if err := unix.Statx(unix.AT_FDCWD, "/", 0, 0, &root); err != nil || root.Attributes&unix.STATX_ATTR_MOUNT_ROOT == 0 {
		return "the supervisor has another root than its mount namespace"
	}
	ids, err := os.ReadFile("/proc/self/uid_map")
	if err != nil {
		return err.Error()
	}
	if !slices.Equal(strings.Fields(string(ids)), []string{"0", "0", "4294967295"}) {
		return "the supervisor runs in a user namespace"
	}
	return missingCalls()
}

// missingCalls returns which system calls of berth's init the host lacks, "" for none: an old kernel has
// not all of them (mount_setattr is the last one, of Linux 5.12), and a filter may refuse them.
func missingCalls() string {
	err := unix.MountSetattr(-1, "", unix.AT_EMPTY_PATH, &unix.MountAttr{})
	if errors.Is(err, unix.ENOSYS) || errors.Is(err, unix.EPERM) {
		return "the kernel refuses mount_setattr"
	}
	for name, open := range map[string]func() (int, error){
		"fsopen":    func() (int, error) { return unix.Fsopen("tmpfs", unix.FSOPEN_CLOEXEC) },
		"open_tree": func() (int, error) { return unix.OpenTree(unix.AT_FDCWD, "/", unix.OPEN_TREE_CLOEXEC) },
		"openat2": func() (int, error) {
			return unix.Openat2(unix.AT_FDCWD, "/", &unix.OpenHow{Flags: unix.O_PATH | unix.O_CLOEXEC, Resolve: unix.RESOLVE_IN_ROOT})
		},
	} {
		fd, err := open()
		if err != nil {
			return fmt.Sprintf("the kernel refuses %s: %v", name, err)
		}
		unix.Close(fd)
	}
	return ""
}

// hierarchiesOf returns what a container in these cgroups sees of cgroup v1; nil on v2.
func hierarchiesOf(paths cgroup.Paths) ([]ownplan.Hierarchy, error) {
	if cgroups.IsCgroup2UnifiedMode() {
		return nil, nil
	}
	mounts, err := cgroups.GetCgroupMounts(false)
	if err != nil {
		return nil, fmt.Errorf("cannot find the cgroup hierarchies: %w", err)
	}
	all := make([]ownplan.Hierarchy, 0, len(mounts))
	for _, m := range mounts {
		if len(m.Subsystems) == 0 {
			continue
		}
		name := m.Subsystems[0]
		dir, known := paths[name]
		if !known {
			dir, known = paths[cgroups.CgroupNamePrefix+name]
		}
		if !known { // the container stays in the supervisor's
			if dir, err = cgroups.GetOwnCgroupPath(name); err != nil {
				return nil, fmt.Errorf("cannot find the cgroup of %s: %w", name, err)
			}
		}
		all = append(all, ownplan.Hierarchy{Name: filepath.Base(m.Mountpoint), Dir: dir})
	}
	return all, nil
}

// hasCore is true when the kernel has /proc/kcore.
func hasCore() bool {
	_, err := os.Stat("/proc/kcore")
	return err == nil
}

// cloneFlags are the kinds of namespaces that a child is born into.
func cloneFlags() map[configs.NamespaceType]int {
	return map[configs.NamespaceType]int{
		configs.NEWPID:    unix.CLONE_NEWPID,
		configs.NEWIPC:    unix.CLONE_NEWIPC,
		configs.NEWUTS:    unix.CLONE_NEWUTS,
		configs.NEWNET:    unix.CLONE_NEWNET,
		configs.NEWCGROUP: unix.CLONE_NEWCGROUP,
	}
}
