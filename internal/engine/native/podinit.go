package native

import (
	"context"
	"errors"
	"fmt"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/berthrun/berth/internal/engine"
	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/ocispec"
	"github.com/berthrun/berth/internal/ocispec/request"
	"github.com/berthrun/berth/internal/supervisor"
	"github.com/berthrun/berth/internal/sys/sysns"
)

// startPodInit starts the init of a PID namespace that the sandbox's containers
// share, as a container with the sandbox's own id, and pins the namespace.
func (e *Engine) startPodInit(ctx context.Context, spec *engine.SandboxSpec, paths sandboxPaths, sb *sandbox) error {
	if e.cfg.PodInit == "" {
		return fmt.Errorf("config.linux.security_context.namespace_options.pid: POD needs an init, and none is configured: %w", errs.Unsupported)
	}
	rootfs, err := e.podInitRoot(ctx)
	if err != nil {
		return err
	}
	ids, err := ownIDs()
	if err != nil {
		return err
	}
	filter, err := e.podInitFilter()
	if err != nil {
		return err
	}
	// Under berth's own: an operator's is written for the pod's programs.
	profile, err := e.appArmorHost().Profile(ctx, request.AppArmorProfile{Default: true})
	if err != nil {
		return err
	}
	ociSpec := ocispec.PodInit{
		SandboxID:     spec.ID,
		SandboxConfig: spec.Config,
		UserNamespace: request.UserNamespaceOf(spec.Config),
		IDs:           ids,
		Rootfs:        rootfs,
		CgroupsPath:   e.cgroupsPath(sb.CgroupParent, spec.ID),
		Namespaces:    ocispec.Namespaces{User: sb.UserNS, Net: sb.NetNS, IPC: sb.IPCNS, UTS: sb.UTSNS},
		ProcessLabel:  sb.ProcessLabel,
		MountLabel:    sb.MountLabel,
		AppArmor:      profile,
		Seccomp:       filter,
	}.Spec()
	if err := e.writeBundle(spec.ID, ociSpec); err != nil {
		return err
	}
	_, err = e.cfg.Supervisor.Create(ctx, &supervisor.CreateRequest{
		ID: spec.ID, Bundle: e.bundleDir(spec.ID), SystemdCgroup: e.cfg.CgroupDriver == driverSystemd,
	})
	if err != nil {
		return fmt.Errorf("cannot make the pod's init: %w", err)
	}
	if sb.Pid, err = e.cfg.Supervisor.Start(ctx, spec.ID); err != nil {
		return fmt.Errorf("cannot start the pod's init: %w", err)
	}
	if err := e.awaitConfined(ctx, sb.Pid); err != nil {
		return err
	}
	sb.PodInit = podInitSealed
	if err := sysns.Pin(fmt.Sprintf("/proc/%d/ns/pid", sb.Pid), paths.pid); err != nil {
		return err
	}
	sb.PIDNS = paths.pid
	return nil
}

// podInitFilter is the default filter of a process without capabilities, whatever the
// sandbox asks for: a profile on the node is written for the pod's programs, and may
// lack what the init needs. It is nil where the kernel has no filters.
func (e *Engine) podInitFilter() (*specs.LinuxSeccomp, error) {
	if !e.host.Seccomp {
		return nil, nil //nolint:nilnil // no filter is no failure
	}
	return e.seccomp.defaultProfile(nil)
}

func (e *Engine) removePodInit(ctx context.Context, id string) error {
	if !e.hasBundle(id) {
		return nil
	}
	return errors.Join(e.cfg.Supervisor.Remove(ctx, id), e.removeBundle(ctx, id))
}
