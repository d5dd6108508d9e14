package native

import (
	"context"
	"errors"
	"fmt"
	"maps"

	"github.com/opencontainers/runtime-spec/specs-go"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berthrun/berth/internal/engine"
	"github.com/berthrun/berth/internal/engine/device"
	"github.com/berthrun/berth/internal/engine/native/handler"
	"github.com/berthrun/berth/internal/engine/podcgroup"
	"github.com/berthrun/berth/internal/engine/podfiles"
	"github.com/berthrun/berth/internal/engine/seccomp"
	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/ocispec"
	"github.com/berthrun/berth/internal/ocispec/request"
	"github.com/berthrun/berth/internal/probe"
	"github.com/berthrun/berth/internal/supervisor"
	"github.com/berthrun/berth/internal/sys/sysfile"
)

// inputOf is the part of the spec's input that the request, the sandbox and the host
// determine.
func (e *Engine) inputOf(spec *containerSpec) (in ocispec.Input, err error) {
	hostname, err := podfiles.Hostname(spec.SandboxSpec.Config)
	if err != nil {
		return in, err
	}
	in = ocispec.Input{
		ID:            spec.ID,
		SandboxID:     spec.SandboxSpec.ID,
		Config:        spec.Config,
		SandboxConfig: spec.SandboxSpec.Config,
		Image:         spec.ImageConfig,
		Restored:      spec.Restored != "",
		Hostname:      hostname,
		CgroupsPath:   e.podCgroups.ContainerPath(spec.Sandbox.CgroupParent, spec.ID),
		Namespaces: ocispec.Namespaces{
			User: spec.Sandbox.UserNS, Net: spec.Sandbox.NetNS, IPC: spec.Sandbox.IPCNS, UTS: spec.Sandbox.UTSNS, PID: spec.Sandbox.PIDNS,
		},
		UserNamespace: request.UserNamespaceOf(spec.SandboxSpec.Config),
		Defaults:      e.rules().Defaults,
		Annotations:   e.annotationsOf(spec),
		Host:          e.host,
	}
	in.CgroupWritable = spec.Sandbox.Handler != nil && spec.Sandbox.Handler.CgroupWritable
	in.Host.RecursiveReadOnly, _ = e.featuresOf(spec.Sandbox.Handler, e.programs.Of(spec.Sandbox.Handler))
	if in.Files, err = podfiles.Mounted(spec.SandboxSpec.Dir, e.sandboxPaths(spec.SandboxSpec.ID).shm, spec.Sandbox.IPCNS == ""); err != nil {
		return in, err
	}
	if request.SharesCgroupns(spec.Config, spec.SandboxSpec.Config) {
		if in.Host.CgroupOptions, err = e.tree.Options(); err != nil {
			return in, err
		}
	}
	if spec.TargetPID != 0 {
		in.Namespaces.Target = fmt.Sprintf("/proc/%d/ns/pid", spec.TargetPID)
	}
	return in, nil
}

// annotationsOf are the annotations of both requests that are passed on to hooks.
func (e *Engine) annotationsOf(spec *containerSpec) map[string]string {
	container := e.rules().ContainerAnnotations
	if h := spec.Sandbox.Handler; h != nil && h.ContainerAnnotations != nil {
		container = h.ContainerAnnotations
	}
	passed := e.annotationsOfPod(spec.SandboxSpec.Config, spec.Sandbox.Handler)
	maps.Copy(passed, request.PassedAnnotations(spec.Config.GetAnnotations(), container))
	return passed
}

// annotationsOfPod are the annotations of a pod that are passed on to hooks and runtimes.
func (e *Engine) annotationsOfPod(config *runtimeapi.PodSandboxConfig, h *handler.Handler) map[string]string {
	allowed := e.rules().PodAnnotations
	if h != nil && h.PodAnnotations != nil {
		allowed = h.PodAnnotations
	}
	return request.PassedAnnotations(config.GetAnnotations(), allowed)
}

// seccompOf returns which seccomp profiles the containers of a handler get.
func (e *Engine) seccompOf(h *handler.Handler) *seccomp.Rules {
	rules := e.rules().Seccomp
	if h != nil && h.SeccompProfile != "" {
		rules.Default, rules.Key = h.SeccompProfile, "handlers."+h.Name+".seccomp_profile"
	}
	return &rules
}

// baseOf reads the OCI spec that those of a handler's containers are based on, nil for none.
func (e *Engine) baseOf(ctx context.Context, h *handler.Handler) (*specs.Spec, error) {
	if h == nil || h.BaseSpec == "" {
		return nil, nil //nolint:nilnil // no base is no failure
	}
	return probe.Ask(ctx, e.probes, "read the base spec "+h.BaseSpec, h.Base)
}

// devicesOf returns which devices the containers of a sandbox get.
func (e *Engine) devicesOf(sb *sandbox) *device.Rules {
	rules := e.rules().Devices
	if h := sb.Handler; h != nil && h.PrivilegedWithoutHost != nil {
		rules.PrivilegedWithoutHost = *h.PrivilegedWithoutHost
	}
	if h := sb.Handler; h != nil && h.PrivilegedAllAllowed != nil {
		rules.PrivilegedAllAllowed = *h.PrivilegedAllAllowed
	}
	return &rules
}

// isPrivileged reports whether the request is for a privileged container.
func isPrivileged(config *runtimeapi.ContainerConfig) bool {
	return config.GetLinux().GetSecurityContext().GetPrivileged()
}

// requestOf is the request to the supervisor, but for the log.
func (e *Engine) requestOf(spec *containerSpec) supervisor.CreateRequest {
	return supervisor.CreateRequest{
		ID:            spec.ID,
		Bundle:        e.bundles.Dir(spec.ID),
		SystemdCgroup: e.cfg.CgroupDriver == podcgroup.Systemd,
		Stdin:         spec.Config.GetStdin(),
		StdinOnce:     spec.Config.GetStdinOnce(),
		NoOwnInit:     e.rules().NoOwnInit,
		Handler:       spec.Sandbox.Handler.Program(),
	}
}

// lookUpUser resolves the container's user in the image's own files, which may be hostile.
func (e *Engine) lookUpUser(ctx context.Context, spec *containerSpec, rootfs string) (ocispec.User, error) {
	type userFiles struct{ passwd, group []byte }
	files, err := probe.Ask(ctx, e.probes, "read the users of "+rootfs, func() (userFiles, error) {
		passwd, err := readUserFile(rootfs, "etc/passwd")
		if err != nil {
			return userFiles{}, err
		}
		group, err := readUserFile(rootfs, "etc/group")
		return userFiles{passwd, group}, err
	})
	if err != nil {
		return ocispec.User{}, err
	}
	return ocispec.ResolveUser(spec.Config, spec.ImageConfig, files.passwd, files.group)
}

// readUserFile returns nil when the image has no such file, or something else in
// its place. One byte more than the limit is read, so that a cut is seen.
func readUserFile(rootfs, name string) ([]byte, error) {
	data, err := sysfile.ReadInRoot(rootfs, name, ocispec.MaxUserFile+1)
	if errors.Is(err, errs.NotFound) || errors.Is(err, errs.Invalid) {
		return nil, nil
	}
	return data, err
}

func userOf(user ocispec.User) *engine.User {
	groups := make([]int64, len(user.Groups))
	for i, gid := range user.Groups {
		groups[i] = int64(gid)
	}
	return &engine.User{UID: int64(user.UID), GID: int64(user.GID), Groups: groups}
}
