package containers

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/supervisor"
	"github.com/berthrun/berth/internal/supervisor/server/ocicommand"
	"github.com/berthrun/berth/internal/supervisor/server/ociruntime"
	"github.com/berthrun/berth/internal/supervisor/server/ociruntime/hooks"
	"github.com/berthrun/berth/internal/supervisor/server/shim"
	"github.com/berthrun/berth/internal/sys/sysproc"
)

// runtime makes a container and starts processes in it. Signals, output and the end of the
// processes do not depend on it. The methods are those of ociruntime.Runtime, but for these:
// release lets the process that was started be reaped, if this process is not its parent, and is
// called once the process is open. Resume completes a Start that a predecessor has begun; fifo is
// what that one gave to Starting.Hold, nil when it is lost or when there was none. The pid of an exec
// is 0 when it has ended already, and only Await knows how.
type runtime interface {
	// Prints reports whether Create may write to the container's streams itself.
	Prints() bool
	// Check returns an error of kind Unavailable when what makes containers is not there. It may look at a file system
	// that hangs, as long as ctx allows.
	Check(ctx context.Context) error
	Plan(spec *specs.Spec, request *ociruntime.PlanRequest) (*ociruntime.Plan, error)
	Create(ctx context.Context, p *ociruntime.Plan, io *ociruntime.StdIO) (pid int, release func(), err error)
	Start(ctx context.Context, s *ociruntime.Starting) error
	Resume(ctx context.Context, s *ociruntime.Starting, fifo *os.File) error
	Exec(ctx context.Context, e *ociruntime.Exec) (pid int, release func(), err error)
	Update(ctx context.Context, id string, res *specs.LinuxResources) error
	// Holders returns processes outside of the container that have its streams open.
	Holders(id string) []int
	// Local reports whether the kernel knows of the ends of all processes what Await does.
	Local() bool
	// Await returns when a process that the runtime has started has ended, and what the runtime knows of
	// its end. The kernel knows what the runtime does not.
	Await(ctx context.Context, w *ociruntime.Watched) (*ociruntime.Ended, error)
	// Flush returns when the whole output of a process that has ended is in its streams, and what the runtime
	// knows of its end by then, also with an error. It may be repeated, but then the runtime may not know it any more.
	Flush(ctx context.Context, w *ociruntime.Watched) (*ociruntime.Ended, error)
	// Signal sends a signal to the init of a container, to all its processes, or to an exec. done is false where the
	// kernel has these processes: then the caller finds them by pidfd and cgroup. Kind NotFound when they have ended.
	Signal(ctx context.Context, s *ociruntime.Signalled) (done bool, err error)
	// Began reports whether an exec of a predecessor, which did not record its process, has begun as far
	// as the runtime knows, and its pid, 0 when it has ended. sent is false when the predecessor has sent nothing to
	// Exec.Pidfd. An error means that the exec may have begun, and is not to be run again.
	Began(ctx context.Context, id, exec string, sent bool) (pid int, began bool, err error)
}

// errNoRestore is the error of a restore by a runtime that is not a program with runc's command line.
var errNoRestore = fmt.Errorf("only OCI runtimes that are programs restore checkpoints: %w", errs.Unsupported)

// runtimeOf returns the runtime of the containers of a handler, nil for the supervisor's own.
func (s *Set) runtimeOf(handler *supervisor.Handler) (runtime, error) {
	if handler == nil {
		return ownRuntime{local{}, s.runtime}, nil
	}
	if !filepath.IsAbs(handler.Path) || !filepath.IsAbs(handler.Root) || filepath.Clean(handler.Root) == "/" {
		return nil, fmt.Errorf("handler %q: its path %q and its root %q must be absolute: %w", handler.Name, handler.Path, handler.Root, errs.Invalid)
	}
	if handler.IsSandbox && handler.Protocol == supervisor.ProtocolCommand {
		return nil, fmt.Errorf("handler %q: only a shim can be the sandbox itself: %w", handler.Name, errs.Unsupported)
	}
	switch handler.Protocol {
	case supervisor.ProtocolCommand:
		return programRuntime{local{}, s.programs.Of(ocicommand.Program{Name: handler.Name, Path: handler.Path, Args: handler.Args, Root: handler.Root})}, nil
	case supervisor.ProtocolShim, supervisor.ProtocolSandbox:
		api := handler.Protocol == supervisor.ProtocolSandbox
		return shimRuntime{s.shims.Of(shim.Handler{
			Name: handler.Name, Path: handler.Path, Root: handler.Root, Options: handler.Options,
			IsSandbox: handler.IsSandbox || api, SandboxAPI: api,
		})}, nil
	}
	return nil, fmt.Errorf("handler %q: this supervisor has no protocol %q: %w", handler.Name, handler.Protocol, errs.Unsupported)
}

// runtime returns what made the container.
func (c *Container) runtime() (runtime, error) { return c.set.runtimeOf(c.snapshot().Request.Handler) }

// local are the processes of a runtime that has none of its own: the kernel knows all of them.
type local struct{}

func (local) Local() bool { return true }

func (local) Holders(string) []int { return nil }

func (local) Await(ctx context.Context, w *ociruntime.Watched) (*ociruntime.Ended, error) {
	if w.Pidfd == nil {
		return &ociruntime.Ended{}, nil
	}
	if err := sysproc.AwaitExit(ctx, w.Pidfd); err != nil {
		return nil, err
	}
	return &ociruntime.Ended{}, nil
}

func (local) Flush(context.Context, *ociruntime.Watched) (*ociruntime.Ended, error) {
	return &ociruntime.Ended{}, nil
}

func (local) Signal(context.Context, *ociruntime.Signalled) (done bool, err error) {
	return false, nil
}

func (local) Began(context.Context, string, string, bool) (pid int, began bool, err error) {
	return 0, false, nil
}

// ownRuntime is the supervisor itself: it is the parent of what it starts.
type ownRuntime struct {
	local
	*ociruntime.Runtime
}

func (o ownRuntime) Prints() bool { return false }

func (o ownRuntime) Check(context.Context) error { return nil }

func (o ownRuntime) Plan(spec *specs.Spec, request *ociruntime.PlanRequest) (*ociruntime.Plan, error) {
	if request.Restore != nil {
		return nil, errNoRestore
	}
	plan, err := o.Runtime.Plan(spec, request)
	if err == nil {
		plan.Hooks = hooks.KeptOf(spec)
	}
	return plan, err
}

func (o ownRuntime) Create(ctx context.Context, p *ociruntime.Plan, io *ociruntime.StdIO) (pid int, release func(), err error) {
	pid, err = o.Runtime.Create(ctx, p, io)
	return pid, func() {}, err
}

func (o ownRuntime) Exec(ctx context.Context, e *ociruntime.Exec) (pid int, release func(), err error) {
	pid, err = o.Runtime.Exec(ctx, e)
	return pid, func() {}, err
}

func (o ownRuntime) Resume(ctx context.Context, s *ociruntime.Starting, fifo *os.File) error {
	if fifo != nil {
		return o.FinishStart(ctx, s, fifo)
	}
	if s.Pidfd == nil {
		// It has ended, in the program or before: only its exit code can say.
		return nil
	}
	return o.StartAgain(ctx, s)
}

func (o ownRuntime) Update(_ context.Context, id string, res *specs.LinuxResources) error {
	return o.Runtime.Update(id, res)
}

// programRuntime is the program of a handler.
type programRuntime struct {
	local
	*ocicommand.Runtime
}

func (p programRuntime) Prints() bool { return true }

func (p programRuntime) Resume(ctx context.Context, s *ociruntime.Starting, _ *os.File) error {
	if s.Pidfd == nil {
		return nil // see ownRuntime
	}
	return p.Runtime.Resume(ctx, s)
}

// shimRuntime is the shim of a handler.
type shimRuntime struct{ *shim.Runtime }

func (s shimRuntime) Plan(spec *specs.Spec, request *ociruntime.PlanRequest) (*ociruntime.Plan, error) {
	if request.Restore != nil {
		return nil, errNoRestore
	}
	return s.Runtime.Plan(spec, request)
}

func (shimRuntime) Local() bool { return false }

func (s shimRuntime) Prints() bool { return true }

func (s shimRuntime) Resume(ctx context.Context, started *ociruntime.Starting, _ *os.File) error {
	return s.Runtime.Resume(ctx, started)
}

// runtimeIDs returns every id of which a runtime has state.
func (s *Set) runtimeIDs() ([]string, error) {
	ids, err := s.runtime.IDs()
	if err != nil {
		return nil, err
	}
	more, err := s.programs.IDs()
	if err != nil {
		return nil, err
	}
	shims, err := s.shims.IDs()
	if err != nil {
		return nil, err
	}
	all := slices.Concat(ids, more, shims)
	slices.Sort(all)
	return slices.Compact(all), nil
}
