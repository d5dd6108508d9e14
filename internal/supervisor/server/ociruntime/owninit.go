package ociruntime

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/opencontainers/cgroups"
	"github.com/opencontainers/runc/libcontainer"
	"github.com/opencontainers/runc/libcontainer/configs"
	"golang.org/x/sys/unix"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/supervisor/ownstart/failure"
	"github.com/berthrun/berth/internal/supervisor/ownstart/fork"
	"github.com/berthrun/berth/internal/supervisor/ownstart/order"
	"github.com/berthrun/berth/internal/sys/cgroup"
	"github.com/berthrun/berth/internal/sys/sysfd"
	"github.com/berthrun/berth/internal/sys/sysproc"
)

// ownInit is an init of berth's own that is being started.
type ownInit struct {
	plan  *Plan
	own   *ownPlan
	root  string
	child *fork.Child
	// files are those of this process that the init gets or is born with.
	files []*os.File
	// sent are those that go with the order.
	sent []*os.File
	// stage has the mounts of the host for an init in a user namespace, or is nil.
	stage *fork.Stage
	// state is the file that becomes the container's state.
	state string
}

// startOwn creates a container with berth's own init. On error all that it has started is dead.
func (o *ownStarter) startOwn(ctx context.Context, p *Plan, own *ownPlan, stdio *StdIO) (pid int, err error) {
	if _, err := makeState(o.root, p.ID, own.config); err != nil {
		return 0, err
	}
	s := &ownInit{plan: p, own: own, root: o.root}
	defer func() {
		for _, f := range s.files {
			f.Close()
		}
		if s.stage != nil {
			s.stage.Close()
		}
	}()
	request, err := s.prepare(ctx, stdio)
	if err != nil {
		return 0, err
	}
	program, err := o.program()
	if err != nil {
		return 0, err
	}
	if err = s.begin(ctx, program, request); err != nil {
		o.zombies.reapSoon()
		if ctx.Err() != nil {
			return 0, fmt.Errorf("%w (%w)", cause(ctx), err)
		}
		var refused *fork.JoinError
		if errors.As(err, &refused) {
			return 0, fmt.Errorf("%w: %w", err, errs.Invalid)
		}
		return 0, err
	}
	// An init that hangs in a mount takes no signal: the conversation must end nevertheless.
	stop := context.AfterFunc(ctx, func() {
		_ = s.child.Conn.SetDeadline(time.Unix(1, 0)) // it fails on a closed socket only
	})
	if err = s.enterScope(); err == nil && request.User != nil {
		err = s.prepareOutside()
	}
	if err == nil {
		err = s.converse(ctx)
	}
	if !stop() && err == nil {
		err = ctx.Err()
	}
	if err != nil {
		s.child.Kill()
		if destroyErr := own.cgroups.Destroy(); destroyErr != nil {
			err = fmt.Errorf("%w; cannot remove the cgroup: %w", err, destroyErr)
		}
		if ctx.Err() != nil {
			return 0, fmt.Errorf("%w (%w)", cause(ctx), err)
		}
		return 0, err
	}
	s.child.Conn.Close()
	s.child.Pidfd.Close()
	return s.child.Pid, nil
}

// prepare makes what the init needs, and says how it begins.
func (s *ownInit) prepare(ctx context.Context, stdio *StdIO) (*fork.Request, error) {
	fifo, err := s.makeFifo()
	if err != nil {
		return nil, err
	}
	s.own.order.Fifo = s.send(fifo)
	request := &fork.Request{Role: order.RoleCreate, New: unix.CLONE_NEWNS}
	if err := s.standardStreams(request, stdio); err != nil {
		return nil, err
	}
	if err := s.namespaces(request); err != nil {
		return nil, err
	}
	if !s.own.systemd {
		if err := s.makeCgroups(request); err != nil {
			return nil, err
		}
	}
	if err := s.giveMounts(ctx, request); err != nil {
		return nil, err
	}
	return request, sysfd.CloseOnExecFrom(3)
}

// giveMounts lets the init use the host's mounts.
func (s *ownInit) giveMounts(ctx context.Context, request *fork.Request) error {
	if request.User != nil {
		var err error
		s.stage, err = s.newStage(ctx)
		request.Stage = s.stage
		return err
	}
	mounts, err := s.open("/proc/thread-self/ns/mnt", unix.O_RDONLY)
	if err != nil {
		return fmt.Errorf("cannot open the mount namespace: %w", err)
	}
	s.own.order.HostMounts = s.send(mounts)
	return nil
}

// newStage clones the mounts of the host that the container gets, and those without which the kernel makes
// no procfs and no sysfs in a user namespace: it shows there what the host's mount namespace shows.
func (s *ownInit) newStage(ctx context.Context) (*fork.Stage, error) {
	sources := s.own.order.Sources()
	var list []fork.Tree
	for _, source := range sources {
		list = append(list, fork.Tree{Path: source.Path, MapIDs: source.MapIDs, MapAll: source.MapAll})
	}
	list = append(list, fork.Tree{Path: "/proc"})
	if slices.ContainsFunc(s.own.order.Mounts, func(m order.Mount) bool { return !m.Bind && m.Type == "sysfs" }) {
		list = append(list, fork.Tree{Path: "/sys"})
	}
	stage, err := fork.NewStage(ctx, list)
	var refused *fork.StageError
	switch {
	case err == nil:
		return stage, nil
	case ctx.Err() != nil:
		return nil, fmt.Errorf("cannot open the container's mounts: %w", cause(ctx))
	case errors.As(err, &refused) && refused.Index < len(sources):
		return nil, s.own.order.SourceFailure(&sources[refused.Index], refused.Err).Err()
	}
	return nil, fmt.Errorf("cannot clone the mounts of the host: %w", err)
}

// prepareOutside does what the init may not do in a user namespace.
func (s *ownInit) prepareOutside() error {
	if err := s.own.order.Process.PrepareOutside(s.child.Pid); err != nil {
		return s.lost(err)
	}
	return nil
}

// open opens a file that is closed at the end.
func (s *ownInit) open(path string, flags int) (*os.File, error) {
	f, err := os.OpenFile(path, flags, 0)
	if err == nil {
		s.files = append(s.files, f)
	}
	return f, err
}

// send lets a file go with the order, and returns its number there.
func (s *ownInit) send(f *os.File) int {
	s.sent = append(s.sent, f)
	return len(s.sent) - 1
}

// makeFifo makes the FIFO on which the init will wait: see waiting.go.
func (s *ownInit) makeFifo() (*os.File, error) {
	path := filepath.Join(s.root, s.plan.ID, fifoName)
	if err := unix.Mkfifo(path, fifoMode); err != nil {
		return nil, fmt.Errorf("cannot make the FIFO of container %s: %w", s.plan.ID, err)
	}
	if err := os.Chmod(path, fifoMode); err != nil { // despite the umask
		return nil, err
	}
	uid, err := s.own.config.HostRootUID()
	if err != nil {
		return nil, err
	}
	gid, err := s.own.config.HostRootGID()
	if err != nil {
		return nil, err
	}
	if err := os.Lchown(path, uid, gid); err != nil {
		return nil, fmt.Errorf("cannot give the FIFO of container %s to its root: %w", s.plan.ID, err)
	}
	return s.open(path, unix.O_PATH)
}

// standardStreams sets the streams. With a console the init makes them.
func (s *ownInit) standardStreams(request *fork.Request, stdio *StdIO) error {
	for i, f := range []*os.File{stdio.Stdin, stdio.Stdout, stdio.Stderr} {
		if f == nil {
			access := os.O_WRONLY
			if i == 0 {
				access = os.O_RDONLY
			}
			var err error
			if f, err = s.open(os.DevNull, access); err != nil {
				return err
			}
		}
		request.Stdio[i] = f
	}
	if stdio.Console != nil {
		s.own.order.Console = s.send(stdio.Console)
	}
	return nil
}

// namespaces opens those to join.
func (s *ownInit) namespaces(request *fork.Request) error {
	flags := cloneFlags()
	for _, ns := range s.own.config.Namespaces {
		flag, known := flags[ns.Type]
		switch {
		case ns.Type == configs.NEWUSER:
			f, err := s.open(ns.Path, unix.O_RDONLY)
			if err != nil {
				return fmt.Errorf("namespace path: %w: %w", err, errs.Invalid)
			}
			request.User = f
		case !known: // the mount namespace, which every child has
		case ns.Path != "":
			f, err := s.open(ns.Path, unix.O_RDONLY)
			if err != nil {
				return fmt.Errorf("namespace path: %w: %w", err, errs.Invalid)
			}
			request.Join = append(request.Join, fork.Namespace{File: f, Kind: flag})
		case ns.Type != configs.NEWCGROUP: // that one the init makes once it is in its cgroups
			request.New |= uintptr(flag)
		}
	}
	return nil
}

// makeCgroups makes the cgroup that the init begins in: that of v2. To join it, a process would wait for a
// grace period. An init with little memory does that, since all that it needs before would count for the container.
func (s *ownInit) makeCgroups(request *fork.Request) error {
	dir, known := s.plan.Cgroups[""]
	if !known {
		return nil
	}
	unified := cgroups.IsCgroup2UnifiedMode()
	if unified {
		if err := s.applyCgroups(); err != nil {
			return err
		}
	} else {
		// It limits nothing: package cgroups goes on without it, too.
		_ = os.MkdirAll(dir, 0o755)
	}
	if unified && cgroup.LittleMemory(s.own.config.Cgroups.Memory) {
		procs, err := s.open(filepath.Join(dir, "cgroup.procs"), unix.O_WRONLY)
		if err != nil {
			return fmt.Errorf("cannot open the cgroup: %w", err)
		}
		s.own.order.Tasks = append(s.own.order.Tasks, s.send(procs))
		return nil
	}
	var err error
	request.Cgroup, err = s.open(dir, unix.O_PATH|unix.O_DIRECTORY)
	if !unified && errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("cannot open the cgroup: %w", err)
	}
	return nil
}

// applyCgroups makes all cgroups.
func (s *ownInit) applyCgroups() error {
	s.plan.Cgroups.InheritCpuset()
	const nobody = -1
	if err := s.own.cgroups.Apply(nobody); err != nil {
		return classify(fmt.Errorf("cannot make the cgroup: %w", err), "")
	}
	return s.plan.Cgroups.EndInheritance()
}

// begin starts the init, and makes the cgroups of v1 meanwhile: until Go runs in the init, more time passes
// than that takes. On error the init is dead.
func (s *ownInit) begin(ctx context.Context, program *fork.Program, request *fork.Request) error {
	started := make(chan error, 1)
	go func() {
		var err error
		s.child, err = program.Start(ctx, request)
		started <- err
	}()
	cgroupErr := s.makeMoreCgroups()
	if err := <-started; err != nil {
		return errors.Join(err, cgroupErr)
	}
	if cgroupErr != nil {
		s.child.Kill()
	}
	return cgroupErr
}

// makeMoreCgroups makes the cgroups of v1, and opens them for the init to join.
func (s *ownInit) makeMoreCgroups() error {
	if s.own.systemd || cgroups.IsCgroup2UnifiedMode() {
		return nil
	}
	if err := s.applyCgroups(); err != nil {
		return err
	}
	opened := make(map[string]bool)
	for controller, dir := range s.plan.Cgroups {
		if controller == "" || opened[dir] {
			continue // controllers share a hierarchy
		}
		opened[dir] = true
		tasks, err := s.open(filepath.Join(dir, "tasks"), unix.O_WRONLY)
		if optional(controller) && errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return fmt.Errorf("cannot open the cgroup: %w", err)
		}
		s.own.order.Tasks = append(s.own.order.Tasks, s.send(tasks))
	}
	return nil
}

// enterScope has systemd move the init to a scope of its own: systemd makes no scope without a process.
// The init does nothing before it has its order.
func (s *ownInit) enterScope() error {
	if !s.own.systemd {
		return nil
	}
	if err := s.own.cgroups.Apply(s.child.Pid); err != nil {
		return classify(fmt.Errorf("cannot make the cgroup: %w", err), "")
	}
	return nil
}

// optional is true for hierarchies of v1 that limit nothing: package cgroups goes on without them.
func optional(controller string) bool {
	return controller == "misc" || controller == cgroups.CgroupNamePrefix+"systemd"
}

// converse sends the order, and returns when the init waits for the start.
func (s *ownInit) converse(ctx context.Context) error {
	if err := s.child.Send(s.own.order.Encode(), s.sent); err != nil {
		return s.lost(err)
	}
	// The init may have failed meanwhile: then its own error says why.
	stateErr := s.writeState()
	for ready := false; ; {
		answer, err := s.child.Receive(ctx)
		var failed *failure.Failure
		switch {
		case errors.As(err, &failed):
			if failed.Part == failure.OfProgram || failed.Part == failure.OfDirectory {
				return &ProgramError{failed.Text}
			}
			return failed.Err()
		case stateErr != nil && (err != nil || answer != order.Joined):
			return stateErr
		case errors.Is(err, io.EOF) && ready:
			return s.checkWaits()
		case err != nil:
			return s.lost(err)
		}
		switch answer {
		case order.Joined:
		case order.Mounted:
			if err := s.own.cgroups.Set(s.own.config.Cgroups.Resources); err != nil {
				return classify(fmt.Errorf("cannot set the limits: %w", err), "")
			}
			s.letGo()
		case order.Ready:
			ready = true
			// Before the init goes on: without the state nobody would find it.
			if err := os.Rename(s.state, filepath.Join(filepath.Dir(s.state), stateName)); err != nil {
				return fmt.Errorf("cannot write the state of container %s: %w", s.plan.ID, err)
			}
			s.letGo()
		default:
			return fmt.Errorf("the init of container %s sent %q", s.plan.ID, answer)
		}
	}
}

// letGo lets the init continue. One that has ended meanwhile has said why: its answer is next.
func (s *ownInit) letGo() {
	_, _ = s.child.Conn.Write([]byte{order.Go})
}

// checkWaits returns an error when the init has ended: its end closes the socket, too.
func (s *ownInit) checkWaits() error {
	ended, err := sysproc.PidfdEnded(s.child.Pidfd)
	if err == nil && ended {
		err = s.lost(io.EOF)
	}
	return err
}

// lost is the error of an init that has ended without a word, as err shows.
func (s *ownInit) lost(err error) error {
	if kills, countErr := s.own.cgroups.OOMKillCount(); countErr == nil && kills > 0 {
		err := fmt.Errorf("container init was OOM-killed (memory limit too low?): %w", errs.Invalid)
		return &errs.Fault{Cause: errs.CauseLimit, Path: "memory.max", Err: err}
	}
	// Somebody has killed it, or the host had no room for its threads: another attempt may succeed.
	return fmt.Errorf("the init of container %s ended while it was created: %w: %w", s.plan.ID, err, errs.Unavailable)
}

// writeState writes the state in runc's format to a file beside its place.
func (s *ownInit) writeState() error {
	pid := s.child.Pid
	proc, err := sysproc.ReadProc(pid)
	if err != nil {
		return s.lost(err)
	}
	descriptors := make([]string, 3)
	for i := range descriptors {
		if descriptors[i], err = os.Readlink(fmt.Sprintf("/proc/%d/fd/%d", pid, i)); err != nil {
			return s.lost(err)
		}
	}
	state := &libcontainer.State{
		BaseState: libcontainer.BaseState{
			ID:                   s.plan.ID,
			InitProcessPid:       pid,
			InitProcessStartTime: proc.Start,
			Created:              time.Now().UTC(),
			Config:               *s.own.config,
		},
		CgroupPaths:         s.own.cgroups.GetPaths(),
		NamespacePaths:      make(map[configs.NamespaceType]string),
		ExternalDescriptors: descriptors,
	}
	for _, kind := range configs.NamespaceTypes() {
		if configs.IsNamespaceSupported(kind) {
			ns := configs.Namespace{Type: kind}
			state.NamespacePaths[kind] = ns.GetPath(pid)
		}
	}
	encoded, err := json.Marshal(state)
	if err != nil {
		return fmt.Errorf("cannot encode the state of container %s: %w", s.plan.ID, err)
	}
	f, err := os.CreateTemp(filepath.Join(s.root, s.plan.ID), "state-")
	if err != nil {
		return fmt.Errorf("cannot write the state of container %s: %w", s.plan.ID, err)
	}
	s.state = f.Name()
	_, err = f.Write(encoded)
	if err := errors.Join(err, f.Close()); err != nil {
		return fmt.Errorf("cannot write the state of container %s: %w", s.plan.ID, err)
	}
	return nil
}

// Names and access of files in the state directory of a container, as runc has them.
const (
	fifoName  = "exec.fifo"
	fifoMode  = 0o622
	stateName = "state.json"
)
