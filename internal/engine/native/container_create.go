package native

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/opencontainers/runtime-spec/specs-go"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berthrun/berth/internal/engine"
	"github.com/berthrun/berth/internal/engine/native/hostpath"
	"github.com/berthrun/berth/internal/engine/native/probe"
	"github.com/berthrun/berth/internal/engine/native/selinux"
	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/image"
	"github.com/berthrun/berth/internal/ocispec"
	"github.com/berthrun/berth/internal/supervisor"
	"github.com/berthrun/berth/internal/sys/cgroup"
)

// Create mounts the root filesystem, looks up what the spec depends on, computes
// it, and has the supervisor make the container.
func (e *Engine) Create(ctx context.Context, spec *engine.ContainerSpec) (*engine.Container, error) {
	e.warmer.Warm()
	spec, err := e.annotated(spec)
	if err != nil {
		return nil, fmt.Errorf("cannot create container %s: %w", spec.ID, err)
	}
	labels, err := e.labelsOf(spec)
	if err != nil {
		return nil, fmt.Errorf("cannot create container %s: %w", spec.ID, err)
	}
	volumes, err := e.volumesOf(ctx, spec)
	if err != nil {
		return nil, &engine.VolumeError{Err: fmt.Errorf("cannot create container %s: %w", spec.ID, err)}
	}
	rootfs, err := e.cfg.Rootfs.Prepare(ctx, image.RootfsSpec{
		Key: spec.ID, ImageID: spec.ImageID, Map: userMap(spec.SandboxSpec, spec.Sandbox), MountLabel: labels.Mount,
		Storage: ocispec.StorageOf(spec.Config),
	})
	if err != nil {
		return nil, err
	}
	in, missing, err := e.inputOf(ctx, spec, rootfs.Path, labels)
	if err != nil {
		return nil, fmt.Errorf("cannot create container %s: %w", spec.ID, err)
	}
	in.Volumes = volumes
	if in.ImageVolumes, err = e.imageVolumesOf(ctx, spec, rootfs.Path, labels); err != nil {
		return nil, fmt.Errorf("cannot create container %s: %w", spec.ID, err)
	}
	ociSpec, err := ocispec.Container(in)
	if err != nil {
		return nil, fmt.Errorf("cannot create container %s: %w", spec.ID, err)
	}
	if err := e.injectCDI(ctx, spec.Config, ociSpec); err != nil {
		return nil, fmt.Errorf("cannot create container %s: %w", spec.ID, err)
	}
	request, err := e.requestOf(ctx, spec)
	if err != nil {
		return nil, fmt.Errorf("cannot create container %s: %w", spec.ID, err)
	}
	if err := e.writeBundle(spec.ID, ociSpec); err != nil {
		return nil, err
	}
	e.warnIgnored("container", spec.ID, spec.Config.GetAnnotations())
	e.warnPrivileged(spec.ID, spec.Config)
	e.warnTracer(spec)
	e.warnBinary(spec.ID, spec.Config)
	if err := e.madeSources(spec.ID).Make(ctx, missing); err != nil {
		return nil, fmt.Errorf("cannot create container %s: %w", spec.ID, err)
	}
	if err := e.shareFiles(spec, labels); err != nil {
		return nil, fmt.Errorf("cannot create container %s: %w", spec.ID, err)
	}
	if err := e.relabelVolumes(ctx, spec, in.Sources, labels); err != nil {
		return nil, fmt.Errorf("cannot create container %s: %w", spec.ID, err)
	}
	container := &engine.Container{User: userOf(in.User)}
	made, err := e.cfg.Supervisor.Create(ctx, request)
	var fault *supervisor.ProgramError
	switch {
	case errors.As(err, &fault):
		container.StartError = fault.Text
		return container, e.madeSources(spec.ID).Keep()
	case err != nil:
		return nil, refusedContainer(spec.Config, err)
	}
	if err := e.madeSources(spec.ID).Keep(); err != nil {
		return nil, err
	}
	e.cgroups.put(spec.ID, made.CgroupPaths)
	e.meter.Watch(spec.ID, cgroup.Paths(made.CgroupPaths))
	return container, nil
}

// annotated is a request with what its pod asks for by annotations.
func (e *Engine) annotated(spec *engine.ContainerSpec) (*engine.ContainerSpec, error) {
	config, err := ocispec.WithAnnotations(spec.Config, spec.SandboxSpec.Config, e.rules().AllowedAnnotations)
	changed := *spec
	changed.Config = config
	return &changed, err
}

// The stage that the caller was in, which a longer one gives way to again.
const (
	stageCreate = "create container"
	stageEngine = "the engine"
)

// stageOf hears the stages of a Create, whether or not anybody listens.
func stageOf(spec *engine.ContainerSpec) func(name, waitsFor string) {
	if spec.Stage == nil {
		return func(string, string) {}
	}
	return spec.Stage
}

func userOf(user ocispec.User) *engine.User {
	groups := make([]int64, len(user.Groups))
	for i, gid := range user.Groups {
		groups[i] = int64(gid)
	}
	return &engine.User{UID: int64(user.UID), GID: int64(user.GID), Groups: groups}
}

func (e *Engine) requestOf(ctx context.Context, spec *engine.ContainerSpec) (*supervisor.CreateRequest, error) {
	request := &supervisor.CreateRequest{
		ID:            spec.ID,
		Bundle:        e.bundleDir(spec.ID),
		SystemdCgroup: e.cfg.CgroupDriver == driverSystemd,
		Stdin:         spec.Config.GetStdin(),
		StdinOnce:     spec.Config.GetStdinOnce(),
	}
	if spec.LogPath == "" {
		return request, nil
	}
	request.MaxLogLine, request.LogRate = e.rules().MaxLogLine, e.rules().LogRate
	request.LogDir = spec.SandboxSpec.Config.GetLogDirectory()
	var err error
	request.LogPath, err = filepath.Rel(request.LogDir, spec.LogPath)
	if err != nil || !filepath.IsLocal(request.LogPath) {
		return nil, fmt.Errorf("config.log_path: %q is not below the sandbox's log directory %q: %w", spec.LogPath, request.LogDir, errs.Invalid)
	}
	_, err = probe.Ask(ctx, e.probes, "make the log directory "+filepath.Dir(spec.LogPath), func() (struct{}, error) {
		return struct{}{}, makeLogDir(request.LogDir, filepath.Dir(request.LogPath))
	})
	if err != nil {
		return nil, fmt.Errorf("cannot make the log directory: %w", err)
	}
	return request, nil
}

// makeLogDir makes the sandbox's log directory and, beneath it, the one of a
// container's log. A kubelet has made both already; other clients rely on us.
func makeLogDir(dir, below string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	root, err := os.OpenRoot(dir) // links that lead out of it are not followed
	if err != nil {
		return err
	}
	defer root.Close()
	err = root.MkdirAll(below, 0o755)
	var errno syscall.Errno
	if err != nil && (!errors.As(err, &errno) || errno == syscall.ENOTDIR || errno == syscall.ELOOP || errno == syscall.ENAMETOOLONG) {
		// Without a number of the kernel's it is a path that leads out.
		err = fmt.Errorf("config.log_path: %w: %w", err, errs.Invalid)
	}
	return err
}

// inputOf gathers all that the spec depends on. missing are the mount sources that are
// still to be made.
func (e *Engine) inputOf(ctx context.Context, spec *engine.ContainerSpec, rootfs string, labels selinux.Labels) (in ocispec.Input, missing []hostpath.Missing, err error) {
	hostname, err := hostnameOf(spec.SandboxSpec.Config)
	if err != nil {
		return in, nil, err
	}
	in = ocispec.Input{
		ID:            spec.ID,
		SandboxID:     spec.SandboxSpec.ID,
		Config:        spec.Config,
		SandboxConfig: spec.SandboxSpec.Config,
		Image:         spec.ImageConfig,
		Rootfs:        rootfs,
		Hostname:      hostname,
		CgroupsPath:   e.cgroupsPath(spec.Sandbox.CgroupParent, spec.ID),
		Namespaces: ocispec.Namespaces{
			User: spec.Sandbox.UserNS, Net: spec.Sandbox.NetNS, IPC: spec.Sandbox.IPCNS, UTS: spec.Sandbox.UTSNS, PID: spec.Sandbox.PIDNS,
		},
		UserNamespace: ocispec.UserNamespaceOf(spec.SandboxSpec.Config),
		Defaults:      e.rules().Defaults,
		Annotations:   e.annotationsOf(spec),
		Host:          e.host,
	}
	if in.Files, err = filesOf(spec.SandboxSpec.Dir, e.sandboxPaths(spec.SandboxSpec.ID).shm, spec.Sandbox.IPCNS == ""); err != nil {
		return in, nil, err
	}
	if ocispec.SharesCgroupns(spec.Config, spec.SandboxSpec.Config) {
		if in.Host.CgroupOptions, err = e.tree.Options(); err != nil {
			return in, nil, err
		}
	}
	if spec.TargetPID != 0 {
		in.Namespaces.Target = fmt.Sprintf("/proc/%d/ns/pid", spec.TargetPID)
	}
	if in.User, err = e.lookUpUser(ctx, spec, rootfs); err != nil {
		return in, nil, err
	}
	if in.Sources, missing, err = e.sourcesOf(ctx, spec.Config.GetMounts(), spec.Sandbox.UserNS); err != nil {
		return in, nil, err
	}
	in.ProcessLabel, in.MountLabel = labels.Process, labels.Mount
	if in.Devices, err = e.devicesOf(ctx, spec.Config); err != nil {
		return in, nil, err
	}
	devices := e.rules().Devices
	in.AllDevices = isPrivileged(spec.Config) && (!devices.PrivilegedWithoutHost || devices.PrivilegedAllAllowed)
	if in.Seccomp, err = e.seccompOf(ctx, spec.Config); err != nil {
		return in, nil, err
	}
	in.AppArmor, err = e.apparmorOf(ctx, spec.Config)
	return in, missing, err
}

// annotationsOf are those of the requests that are passed on to hooks.
func (e *Engine) annotationsOf(spec *engine.ContainerSpec) map[string]string {
	rules := e.rules()
	passed := ocispec.PassedAnnotations(spec.SandboxSpec.Config.GetAnnotations(), rules.PodAnnotations)
	maps.Copy(passed, ocispec.PassedAnnotations(spec.Config.GetAnnotations(), rules.ContainerAnnotations))
	return passed
}

// bundleFile is the OCI spec in a bundle.
const bundleFile = "config.json"

func (e *Engine) writeBundle(id string, spec *specs.Spec) error {
	data, err := json.Marshal(spec)
	if err != nil {
		return fmt.Errorf("cannot write the bundle of %s: %w", id, err)
	}
	dir := e.bundleDir(id)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("cannot make the bundle of %s: %w", id, err)
	}
	// The environment is in it.
	if err := os.WriteFile(filepath.Join(dir, bundleFile), data, 0o600); err != nil {
		return fmt.Errorf("cannot write the bundle of %s: %w", id, err)
	}
	return nil
}

// readProcess reads a container's own process from its bundle. Kind NotFound when
// there is no bundle.
func (e *Engine) readProcess(id string) (*specs.Process, error) {
	var spec struct {
		Process *specs.Process `json:"process"`
	}
	if err := e.readBundle(id, &spec); err != nil {
		return nil, err
	}
	if spec.Process == nil {
		return nil, fmt.Errorf("the bundle of container %s has no process", id)
	}
	return spec.Process, nil
}

func (e *Engine) hasBundle(id string) bool {
	_, err := os.Lstat(e.bundleDir(id))
	return err == nil
}

func (e *Engine) removeBundle(id string) error {
	if id == "" || strings.ContainsRune(id, '/') {
		return fmt.Errorf("cannot remove the bundle of %q: %w", id, errs.Invalid)
	}
	if err := os.RemoveAll(e.bundleDir(id)); err != nil {
		return fmt.Errorf("cannot remove the bundle of %s: %w", id, err)
	}
	return nil
}

// isPrivileged reports whether the request is for a privileged container.
func isPrivileged(config *runtimeapi.ContainerConfig) bool {
	return config.GetLinux().GetSecurityContext().GetPrivileged()
}

// readBundle decodes what a container's bundle says. Kind NotFound when there is no
// bundle.
func (e *Engine) readBundle(id string, spec any) error {
	data, err := os.ReadFile(filepath.Join(e.bundleDir(id), bundleFile))
	if errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("container %s: %w", id, errs.NotFound)
	}
	if err == nil {
		err = json.Unmarshal(data, spec)
	}
	if err != nil {
		return fmt.Errorf("cannot read the bundle of container %s: %w", id, err)
	}
	return nil
}
