package native

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berthrun/berth/internal/engine"
	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/ocispec"
	"github.com/berthrun/berth/internal/ocispec/request"
	"github.com/berthrun/berth/internal/sys/cgroup"
)

// cgroupParent is where the sandbox's containers live: a path (cgroupfs) or a
// slice (systemd). own is true when it is this sandbox's alone, because the
// request named none.
func (e *Engine) cgroupParent(spec *engine.SandboxSpec) (parent string, own bool, err error) {
	asked := spec.Config.GetLinux().GetCgroupParent()
	isSlice := strings.HasSuffix(asked, ".slice")
	switch {
	case e.cfg.CgroupDriver == driverSystemd && asked == "":
		return e.podSlice(spec.ID), true, nil
	case e.cfg.CgroupDriver == driverSystemd && !isSlice:
		return "", false, fmt.Errorf("config.linux.cgroup_parent: %q is no slice, but the cgroup driver is systemd: %w", asked, errs.Invalid)
	case e.cfg.CgroupDriver == driverSystemd:
		return path.Base(asked), false, nil
	case asked == "":
		return path.Join(e.cfg.DefaultParent, spec.ID), true, nil
	case isSlice:
		return "", false, fmt.Errorf("config.linux.cgroup_parent: %q is a slice, but the cgroup driver is cgroupfs: %w", asked, errs.Invalid)
	}
	return path.Join("/", asked), false, nil
}

// makeCgroupParent makes the parent where nobody has, and writes down that it is
// ours to remove before it does. A slice of ours bears the sandbox's id, and tells
// it by that.
func (e *Engine) makeCgroupParent(ctx context.Context, spec *engine.SandboxSpec, paths sandboxPaths) (string, error) {
	parent, own, err := e.cgroupParent(spec)
	if err != nil {
		return "", err
	}
	if e.cfg.CgroupDriver == driverSystemd {
		if own {
			err = e.startSlice(ctx, parent)
		}
		return parent, err
	}
	top := e.cfg.DefaultParent
	if !own {
		e.mu.Lock()
		defer e.mu.Unlock()
		if top = e.tree.Missing(parent); top == "" {
			top = e.ownParents[parent]
		}
		if top == "" {
			return parent, nil
		}
		// Others may use it as well; whoever is last removes it.
		e.ownParents[parent] = top
	}
	if err := os.WriteFile(paths.ownCgroup, []byte(top+"\n"+parent), 0o600); err != nil {
		return "", fmt.Errorf("cannot write down the sandbox's cgroup: %w", err)
	}
	return parent, e.tree.Make(parent)
}

// removeCgroupParent removes what makeCgroupParent made.
func (e *Engine) removeCgroupParent(ctx context.Context, id string, paths sandboxPaths, last bool) error {
	if e.cfg.CgroupDriver == driverSystemd {
		return e.stopSlice(ctx, e.podSlice(id))
	}
	top, parent, err := readOwnCgroup(paths.ownCgroup)
	if err != nil || parent == "" {
		return err
	}
	if path.Base(parent) == id {
		if err := e.removeBusy(ctx, parent); err != nil {
			return err
		}
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.tree.RemoveEmpty(parent, top)
	if !e.tree.Exists(parent) {
		delete(e.ownParents, parent)
	} else if !last {
		return nil // exited containers have cgroups in it until they are removed
	}
	// What somebody makes at this path from now on is not the sandbox's.
	if err := errs.IgnoreNotExist(os.Remove(paths.ownCgroup)); err != nil {
		return fmt.Errorf("cannot forget the sandbox's cgroup: %w", err)
	}
	return nil
}

// busyPatience bounds the wait for processes that were killed and leave a cgroup.
const busyPatience = 2 * time.Second

// removeBusy removes a cgroup. A container whose start failed is recorded as exited
// when its init has been killed, which may be a moment before the init is gone.
func (e *Engine) removeBusy(ctx context.Context, parent string) error {
	ctx, stop := context.WithTimeout(ctx, busyPatience)
	defer stop()
	for {
		err := e.tree.Remove(parent)
		if err == nil || !errors.Is(err, errs.State) {
			return err
		}
		select {
		case <-ctx.Done():
			return err
		case <-time.After(5 * time.Millisecond):
		}
	}
}

// readOwnCgroup returns "" when nothing was written down.
func readOwnCgroup(file string) (top, parent string, err error) {
	data, err := os.ReadFile(file)
	if errors.Is(err, os.ErrNotExist) {
		return "", "", nil
	}
	if err != nil {
		return "", "", fmt.Errorf("cannot read which cgroup is the sandbox's: %w", err)
	}
	top, parent, ok := strings.Cut(string(data), "\n")
	if !ok || !path.IsAbs(top) || !path.IsAbs(parent) {
		return "", "", nil // killed while it was written: nothing was made yet
	}
	return top, parent, nil
}

// findOwnParents reads which parents are ours, after a restart.
func (e *Engine) findOwnParents() error {
	files, err := filepath.Glob(filepath.Join(e.sandboxesDir(), "*", filepath.Base(e.sandboxPaths("").ownCgroup)))
	if err != nil {
		return fmt.Errorf("cannot list the sandboxes: %w", err)
	}
	for _, file := range files {
		top, parent, err := readOwnCgroup(file)
		if err != nil {
			return err
		}
		if parent != "" && top != e.cfg.DefaultParent {
			e.ownParents[parent] = top
		}
	}
	return nil
}

// cgroupsPath is linux.cgroupsPath of a container.
func (e *Engine) cgroupsPath(parent, id string) string {
	if e.cfg.CgroupDriver == driverSystemd {
		return parent + ":" + e.cfg.CgroupPrefix + ":" + id
	}
	return path.Join(parent, id)
}

// UpdateSandbox changes the limits of the pod's cgroup, as the kubelet that made it
// does, all of them or none. The cgroup of all pods, which is no pod's, is left alone.
func (e *Engine) UpdateSandbox(ctx context.Context, sb *engine.Sandbox, res *runtimeapi.LinuxContainerResources) error {
	return e.limitSandbox(ctx, sb, request.FieldUpdateSandbox, res)
}

// limitSandbox is UpdateSandbox with limits that are in a request's field.
func (e *Engine) limitSandbox(ctx context.Context, sb *engine.Sandbox, field string, res *runtimeapi.LinuxContainerResources) error {
	limits, err := ocispec.Update(field, res, e.host)
	if err != nil {
		return err
	}
	if limits.Memory != nil && res.GetMemorySwapLimitInBytes() == 0 {
		// A pod's containers may swap, each as far as its own limit says.
		limits.Memory.Swap = nil
	}
	slice := ""
	if e.cfg.CgroupDriver == driverSystemd {
		slice = sb.CgroupParent
	}
	if slice == "-.slice" || path.Clean("/"+sb.CgroupParent) == "/" {
		return fmt.Errorf("the sandbox has no cgroup of its own: %w", errs.State)
	}
	paths, err := e.podCgroup(sb.CgroupParent)
	if err != nil {
		return err
	}
	if err := cgroup.Limit(ctx, paths, slice, limits); err != nil {
		return refusedLimit(field, err)
	}
	return nil
}

// limitOwnCgroup limits the cgroup of a sandbox whose request names none: else the
// kubelet does it.
func (e *Engine) limitOwnCgroup(ctx context.Context, spec *engine.SandboxSpec, sb *engine.Sandbox) error {
	res := spec.Config.GetLinux().GetResources()
	if res == nil || spec.Config.GetLinux().GetCgroupParent() != "" {
		return nil
	}
	return e.limitSandbox(ctx, sb, request.FieldCreate, res)
}

// podCgroup is the sandbox's cgroup in each hierarchy.
func (e *Engine) podCgroup(parent string) (cgroup.Paths, error) {
	if e.cfg.CgroupDriver == driverSystemd {
		var err error
		if parent, err = cgroup.SlicePath(parent); err != nil {
			return nil, err
		}
	}
	return e.tree.Paths(parent), nil
}

// MarkSandbox implements engine.Marker. The mark is written down before it is made.
func (e *Engine) MarkSandbox(_ context.Context, ref engine.SandboxRef, pid int) error {
	if ref.Sandbox.Pid != 0 {
		return nil // its own process has a cgroup of that name
	}
	paths := e.sandboxPaths(ref.Spec.ID)
	parent := ref.Sandbox.CgroupParent
	name := ref.Spec.ID
	if e.cfg.CgroupDriver == driverSystemd {
		slice, err := cgroup.SlicePath(parent)
		if err != nil {
			return err
		}
		parent, name = slice, e.cfg.CgroupPrefix+"-"+name+".scope"
	}
	mark := path.Join(parent, name)
	text := strconv.Itoa(pid) + "\n" + mark
	e.marking.Lock()
	defer e.marking.Unlock()
	if have, err := os.ReadFile(paths.mark); err == nil && string(have) == text && e.tree.Exists(mark) {
		return nil
	}
	if err := e.removeMark(paths); err != nil || pid == 0 || !e.tree.Exists(parent) {
		return err
	}
	err := os.WriteFile(paths.mark, []byte(text), 0o600)
	if errors.Is(err, os.ErrNotExist) {
		return nil // the sandbox has gone meanwhile
	}
	if err != nil {
		return fmt.Errorf("cannot write down the mark of a sandbox: %w", err)
	}
	return e.tree.Make(mark)
}

// unmark removes the mark of a sandbox. Nil when there is none.
func (e *Engine) unmark(paths sandboxPaths) error {
	e.marking.Lock()
	defer e.marking.Unlock()
	return e.removeMark(paths)
}

func (e *Engine) removeMark(paths sandboxPaths) error {
	data, err := os.ReadFile(paths.mark)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("cannot read the mark of a sandbox: %w", err)
	}
	if _, mark, ok := strings.Cut(string(data), "\n"); ok && path.IsAbs(mark) {
		if err := e.tree.Remove(mark); err != nil {
			return err
		}
	}
	return os.Remove(paths.mark)
}
