package native

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"syscall"
	"time"

	"google.golang.org/protobuf/proto"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berthrun/berth/internal/engine"
	"github.com/berthrun/berth/internal/engine/ioclass"
	"github.com/berthrun/berth/internal/engine/native/handler"
	"github.com/berthrun/berth/internal/engine/native/selinux"
	"github.com/berthrun/berth/internal/engine/notice"
	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/image"
	"github.com/berthrun/berth/internal/ocispec/request"
	"github.com/berthrun/berth/internal/probe"
)

// hostWarnings are the features of pods that this host does not allow.
func (e *Engine) hostWarnings(ctx context.Context) []string {
	var warnings []string
	if warning := e.apparmor.Warning(); warning != "" && !e.rules().AppArmorOff {
		warnings = append(warnings, warning)
	}
	if err := e.userns.Supported(); err != nil {
		warnings = append(warnings, "pods cannot have user namespaces: "+errs.Message(err))
	}
	if !e.host.RecursiveReadOnly {
		warnings = append(warnings, "mounts cannot be made read-only with all below them: the kernel is older than 5.12")
	}
	if e.cfg.SELinux == selinux.Off && selinux.Host.Enabled(selinux.Host{}) {
		warnings = append(warnings, "SELinux is enabled, but the configuration says that containers and their files are not labelled")
	}
	if warner, can := e.cfg.Rootfs.(image.Warner); can {
		warnings = append(warnings, warner.Warnings()...)
	}
	warnings = append(warnings, e.handlerWarnings(e.rules())...)
	return append(warnings, e.fileWarnings(ctx)...)
}

// fileWarnings are the faults of files that the configuration names: OCI hooks, and base specs of handlers. A file
// system that hangs delays Status for a moment only.
func (e *Engine) fileWarnings(ctx context.Context) []string {
	ctx, stop := context.WithTimeout(ctx, time.Second)
	defer stop()
	warnings := e.hookWarnings(ctx, nil)
	if path := e.rules().BlockIOClasses; path != "" {
		if _, err := probe.Ask(ctx, e.probes, "read the classes of block IO in "+path, func() (any, error) { return "", ioclass.CheckBlockIO(path) }); err != nil {
			warnings = append(warnings, errs.Message(err))
		}
	}
	for _, named := range e.rules().Handlers.List()[1:] { // the default one has a name, too
		if named.Handler.HookDirs != nil {
			warnings = append(warnings, e.hookWarnings(ctx, named.Handler)...)
		}
		if _, err := e.baseOf(ctx, named.Handler); err != nil {
			warnings = append(warnings, errs.Message(err))
		}
		if err := e.checkCgroups(named.Handler); err != nil {
			warnings = append(warnings, errs.Message(err))
		}
		if named.Handler.WritableLimit != nil {
			warnings = append(warnings, e.limitWarnings(ctx, named.Handler)...)
		}
	}
	return append(warnings, e.limitWarnings(ctx, nil)...)
}

// limitWarnings reports a limit of what containers of a handler write, nil for berth itself, that cannot hold.
func (e *Engine) limitWarnings(ctx context.Context, h *handler.Handler) []string {
	if bytes, _ := e.writableLimit(h); bytes == 0 {
		return nil
	}
	if _, err := probe.Ask(ctx, e.probes, "look for project quotas", func() (any, error) { return "", e.checkLimit(h) }); err != nil {
		return []string{errs.Message(err)}
	}
	return nil
}

// writableLimit returns how many bytes a container of a handler may write to its root filesystem, 0 for any number, and the
// key of the configuration that says so.
func (e *Engine) writableLimit(h *handler.Handler) (bytes int64, key string) {
	if h != nil && h.WritableLimit != nil {
		return *h.WritableLimit, "handlers." + h.Name + ".writable_limit"
	}
	return e.rules().WritableLimit, "defaults.writable_limit"
}

// withLimit adds to the error of a full disk the limit of what the container writes, if it has one: what berth itself writes for
// it, such as the volumes of its image, counts.
func (e *Engine) withLimit(spec *containerSpec, err error) error {
	if !errors.Is(err, syscall.EDQUOT) && !errors.Is(err, syscall.ENOSPC) {
		return err
	}
	bytes, key := e.writableLimit(spec.Sandbox.Handler)
	if bytes == 0 || request.StorageOf(spec.Config) != "" {
		return err
	}
	return fmt.Errorf("%w; %s is %d bytes", err, key, bytes)
}

// checkLimit returns an error of kind Unsupported when the limit of what containers of a handler write cannot hold.
func (e *Engine) checkLimit(h *handler.Handler) error {
	bytes, key := e.writableLimit(h)
	if bytes == 0 {
		return nil
	}
	limiter, can := e.cfg.Rootfs.(image.Limiter)
	if !can {
		return fmt.Errorf("%s of the configuration is %d, and this image store cannot limit what containers write: %w", key, bytes, errs.Unsupported)
	}
	if err := limiter.CanLimit(); err != nil {
		return fmt.Errorf("%s of the configuration is %d, and berth cannot limit what containers write: %w", key, bytes, err)
	}
	return nil
}

// hookWarnings are the faults of the OCI hooks of a handler, nil for berth itself.
func (e *Engine) hookWarnings(ctx context.Context, h *handler.Handler) []string {
	found, err := e.readHooks(ctx, h)
	if err != nil {
		return []string{fmt.Sprintf("containers cannot be created: %s of the configuration: %s", hooksKey(h), errs.Message(err))}
	}
	warnings := make([]string, 0, len(found.faults))
	for _, fault := range found.faults {
		warnings = append(warnings, fmt.Sprintf("containers cannot be created: %s of the configuration: %s", hooksKey(h), errs.Message(fault)))
	}
	return warnings
}

// checkCgroups returns an error of kind Unsupported when the host cannot let the containers of a handler write their
// cgroups.
func (e *Engine) checkCgroups(h *handler.Handler) error {
	if h.CgroupWritable && !e.host.CgroupV2 {
		return fmt.Errorf("handler %q: cgroup_writable needs a host with cgroup v2 alone: %w", h.Name, errs.Unsupported)
	}
	return nil
}

// handlerWarnings are the faults of handlers. As all that Status reports, they wait for no program, and for its file system a
// moment only.
func (e *Engine) handlerWarnings(rules *Rules) []string {
	var warnings []string
	for _, named := range rules.Handlers.List()[1:] { // the default one has a name, too
		if fault := e.programs.Last(named.Handler).Fault; fault != "" {
			warnings = append(warnings, fault)
		}
	}
	return warnings
}

func (e *Engine) notices() notice.Notices {
	rules := e.rules()
	return notice.Notices{Log: e.log, Allowed: rules.AllowedAnnotations, Host: e.host, Capabilities: rules.Defaults.Capabilities}
}

func (e *Engine) handlers() []*runtimeapi.RuntimeHandler {
	var list []*runtimeapi.RuntimeHandler
	for _, named := range e.rules().Handlers.List() {
		rro, userns := e.featuresOf(named.Handler, e.programs.Last(named.Handler))
		list = append(list, &runtimeapi.RuntimeHandler{Name: named.Name, Features: &runtimeapi.RuntimeHandlerFeatures{
			RecursiveReadOnlyMounts: rro, UserNamespaces: userns,
		}})
	}
	return list
}

// featuresOf returns whether containers of a handler can have recursive read-only mounts, and whether its
// pods can have user namespaces. facts are those of its program. nil is berth itself.
func (e *Engine) featuresOf(h *handler.Handler, facts handler.Facts) (recursiveReadOnly, userNamespaces bool) {
	recursiveReadOnly, userNamespaces = e.host.RecursiveReadOnly, e.userns.Supported() == nil
	if h.Program() == nil {
		return recursiveReadOnly, userNamespaces
	}
	return recursiveReadOnly && facts.RecursiveReadOnly, userNamespaces && facts.IDMapped
}

// handlerInfo describes the handlers for people.
func (e *Engine) handlerInfo() []engine.HandlerInfo {
	var all []engine.HandlerInfo
	for _, named := range e.rules().Handlers.List() {
		info := engine.HandlerInfo{Name: named.Name}
		if h := named.Handler; h != nil {
			facts := e.programs.Last(h)
			info.Kind, info.Path, info.Version, info.Fault, info.Pending = string(h.Kind), h.Path, facts.Version, facts.Fault, facts.Pending
			info.Snapshotter, info.Platform = h.Snapshotter, h.Platform
		}
		all = append(all, info)
	}
	return all
}

// checkpointInfo describes checkpoints for people. As all that Status reports, it waits for no program.
func (e *Engine) checkpointInfo() *engine.CheckpointInfo {
	rules := e.rules()
	if !rules.Checkpoints {
		return &engine.CheckpointInfo{}
	}
	facts := e.criu.Load().Last()
	restorer := e.programs.Last(&rules.Restorer)
	return &engine.CheckpointInfo{
		Enabled: true, Path: rules.CRIU, Version: facts.Version, Fault: facts.Fault,
		Runtime: &engine.HandlerInfo{
			Name: rules.Restorer.Name, Kind: string(rules.Restorer.Kind), Path: rules.Restorer.Path, Version: restorer.Version, Fault: restorer.Fault,
			Pending: restorer.Pending,
		},
	}
}

// withoutHandlers returns a request without the handlers that its images name and that exist: the pod's handler
// says where their layers are.
func (e *Engine) withoutHandlers(config *runtimeapi.ContainerConfig) *runtimeapi.ContainerConfig {
	named := func(image *runtimeapi.ImageSpec) bool { return image.GetRuntimeHandler() != "" }
	if !slices.ContainsFunc(imagesOf(config), named) {
		return config
	}
	config = proto.CloneOf(config)
	for _, image := range imagesOf(config) {
		if name := image.GetRuntimeHandler(); name != "" {
			if _, err := e.rules().Handlers.Find(name); err == nil {
				image.RuntimeHandler = ""
			}
		}
	}
	return config
}

// imagesOf returns the images of a request, nil among them where a mount has none.
func imagesOf(config *runtimeapi.ContainerConfig) []*runtimeapi.ImageSpec {
	images := []*runtimeapi.ImageSpec{config.GetImage()}
	for _, m := range config.GetMounts() {
		images = append(images, m.GetImage())
	}
	return images
}

// handlerOf returns the handler of a new sandbox, nil for berth itself. Kind Invalid when
// there is none, Unavailable when its program or base spec is missing, Unsupported when it lacks a feature.
func (e *Engine) handlerOf(ctx context.Context, spec *engine.SandboxSpec) (*handler.Handler, error) {
	h, err := e.rules().Handlers.Find(spec.Handler)
	if err != nil {
		return nil, err
	}
	facts := e.programs.Now(ctx, h)
	if err := e.programs.Check(ctx, h); err != nil {
		return nil, err
	}
	if facts.Broken {
		return nil, fmt.Errorf("unable to get OCI runtime: %s: %w", facts.Fault, errs.Unavailable)
	}
	if h.Program() != nil && request.HasUserNamespace(spec.Config) {
		if err := checkUserNamespace(h, facts, spec.Config); err != nil {
			return nil, err
		}
	}
	if err := e.checkCgroups(h); err != nil {
		return nil, err
	}
	if err := e.checkLimit(h); err != nil {
		return nil, err
	}
	if _, err := e.baseOf(ctx, h); err != nil {
		return nil, err
	}
	if h.Name == "" {
		return nil, nil //nolint:nilnil // berth itself, which most sandboxes have
	}
	return h, nil
}

// checkUserNamespace returns an error of kind Unsupported when a program lacks what a pod with a user namespace
// needs. /sys of its containers is the host's when they share its network: then only rro makes all of it
// read-only.
func checkUserNamespace(h *handler.Handler, facts handler.Facts, config *runtimeapi.PodSandboxConfig) error {
	lack := ""
	switch {
	case !facts.IDMapped:
		lack = "cannot map the ids of mounts"
	case request.HostNetwork(config) && !facts.RecursiveReadOnly:
		lack = "cannot make mounts read-only with all below them (rro), which /sys needs in pods with the host's network"
	default:
		return nil
	}
	if facts.Fault != "" {
		lack += " (" + facts.Fault + ")"
	}
	return fmt.Errorf("config.linux.security_context.namespace_options.userns_options: handler %q (%s) %s: %w", h.Name, h.Path, lack, errs.Unsupported)
}

func (e *Engine) features() *runtimeapi.RuntimeFeatures {
	return &runtimeapi.RuntimeFeatures{
		SupplementalGroupsPolicy:  true,
		UserNamespacesHostNetwork: e.userns.Supported() == nil,
		MountOptions:              true,
	}
}
