package native

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/opencontainers/runtime-spec/specs-go"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berthrun/berth/internal/engine"
	"github.com/berthrun/berth/internal/engine/device"
	"github.com/berthrun/berth/internal/engine/hostpath"
	"github.com/berthrun/berth/internal/engine/ioclass"
	"github.com/berthrun/berth/internal/engine/native/checkpoint/restoring"
	"github.com/berthrun/berth/internal/engine/native/handler"
	"github.com/berthrun/berth/internal/engine/native/userns"
	"github.com/berthrun/berth/internal/engine/native/volume"
	"github.com/berthrun/berth/internal/engine/ocihooks"
	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/errs/ocierror"
	"github.com/berthrun/berth/internal/image"
	"github.com/berthrun/berth/internal/ocispec"
	"github.com/berthrun/berth/internal/ocispec/request"
	"github.com/berthrun/berth/internal/probe"
	"github.com/berthrun/berth/internal/supervisor"
)

// feature is one part of a container: Create prepares it, Remove removes it.
type feature struct {
	name    string
	prepare func(e *Engine, ctx context.Context, c *creation) error
	// remove removes what prepare made. It needs the container's id alone, whether or not
	// prepare was called or has ended. It is nil where prepare makes nothing, or where the
	// sandbox or another feature removes it.
	remove func(e *Engine, ctx context.Context, id string) error
}

// features are all parts of a container, in the order in which Create prepares them. Remove
// removes them in reverse order. After the last one the supervisor creates the container.
func features() []feature {
	return []feature{
		// First, since List finds the container by it until all else is removed.
		{"bundle", (*Engine).makeBundle, (*Engine).removeBundle},
		{"base spec", (*Engine).prepareBase, nil},
		{"request", (*Engine).prepareRequest, nil},
		{"labels", (*Engine).prepareLabels, nil},
		{"mounted images", (*Engine).mountImages, nil},
		{"root filesystem", (*Engine).prepareRootfs, (*Engine).removeRootfs},
		{"changes of a checkpoint", (*Engine).changeRootfs, nil},
		{"user", (*Engine).prepareUser, nil},
		{"mount sources", (*Engine).prepareSources, nil},
		{"devices", (*Engine).prepareDevices, nil},
		{"seccomp", (*Engine).prepareSeccomp, nil},
		{"AppArmor", (*Engine).prepareAppArmor, nil},
		{"volumes of the image", (*Engine).prepareImageVolumes, nil},
		{"OCI spec", (*Engine).prepareSpec, nil},
		{"classes of block IO and RDT", (*Engine).prepareClasses, nil},
		{"CDI devices", (*Engine).prepareCDI, nil},
		{"OCI hooks", (*Engine).prepareHooks, nil},
		// Last before the spec is final: plugins see, and may change, all of it.
		{"adjustment by NRI plugins", (*Engine).adjustSpec, nil},
		{"processes of a checkpoint", (*Engine).fitCheckpoint, nil},
		{"log", (*Engine).prepareLog, nil},
		{"spec file", (*Engine).writeSpec, nil},
		{"warnings", (*Engine).warn, nil},
		// From here on files of the host change. The features above have refused bad requests.
		{"missing mount sources", (*Engine).makeSources, (*Engine).removeSources},
		{"shared files", (*Engine).prepareSharedFiles, nil},
		{"volume labels", (*Engine).prepareVolumeLabels, nil},
	}
}

func (e *Engine) makeBundle(_ context.Context, c *creation) error { return e.bundles.Make(c.ID) }

func (e *Engine) removeBundle(_ context.Context, id string) error { return e.bundles.Remove(id) }

// prepareBase reads the OCI spec of the handler on which the container's is based.
func (e *Engine) prepareBase(ctx context.Context, c *creation) (err error) {
	c.base, err = e.baseOf(ctx, c.Sandbox.Handler)
	return err
}

// prepareRequest reads all that depends on the request alone.
func (e *Engine) prepareRequest(_ context.Context, c *creation) (err error) {
	c.request = e.requestOf(c.containerSpec)
	if c.in, err = e.inputOf(c.containerSpec); err != nil {
		return err
	}
	if allowed := ocispec.BaseCapabilities(c.base); allowed != nil {
		c.in.Defaults.Capabilities = allowed
	}
	return nil
}

func (e *Engine) prepareLabels(_ context.Context, c *creation) (err error) {
	c.labels, err = e.labelsOf(c.containerSpec)
	c.in.ProcessLabel, c.in.MountLabel = c.labels.Process, c.labels.Mount
	return err
}

// mountImages mounts the images that the request names. The sandbox keeps them.
func (e *Engine) mountImages(ctx context.Context, c *creation) (err error) {
	c.in.Volumes, err = volume.Images{Rootfs: e.cfg.Rootfs}.Mount(ctx, volume.Sandbox{
		ID: c.SandboxSpec.ID, Dir: e.sandboxPaths(c.SandboxSpec.ID).volumes,
		Map: userns.ImageMap(c.SandboxSpec.Config, c.Sandbox.UserNS), MountLabel: c.Sandbox.MountLabel,
		Snapshotter: c.Sandbox.Handler.SnapshotterName(),
	}, c.Config.GetMounts(), c.VolumeImages)
	if err != nil {
		return &engine.VolumeError{Err: err}
	}
	return nil
}

func (e *Engine) prepareRootfs(ctx context.Context, c *creation) error {
	spec := image.RootfsSpec{
		Key: c.ID, ImageID: c.ImageID, Map: userns.ImageMap(c.SandboxSpec.Config, c.Sandbox.UserNS), MountLabel: c.labels.Mount,
		Storage: request.StorageOf(c.Config), Snapshotter: c.Sandbox.Handler.SnapshotterName(),
	}
	if spec.Storage == "" {
		spec.Limit, _ = e.writableLimit(c.Sandbox.Handler)
	}
	spec.Progress = volume.Reporter(stageOf(c.containerSpec), "copy the image", c.ImageID)
	mounted, err := e.cfg.Rootfs.Prepare(ctx, spec)
	if err != nil {
		return err
	}
	c.in.Rootfs = mounted.Path
	return nil
}

func (e *Engine) removeRootfs(ctx context.Context, id string) error {
	return e.cfg.Rootfs.Release(ctx, id)
}

func (e *Engine) prepareUser(ctx context.Context, c *creation) (err error) {
	c.in.User, err = e.lookUpUser(ctx, c.containerSpec, c.in.Rootfs)
	return err
}

func (e *Engine) prepareSources(ctx context.Context, c *creation) (err error) {
	find := hostpath.Finder{Probes: e.probes, Claims: &e.claims, Rejected: e.rules().AbsentSources}
	c.in.Sources, c.missing, err = find.Find(ctx, c.Config.GetMounts(), c.Sandbox.UserNS)
	return err
}

func (e *Engine) makeSources(ctx context.Context, c *creation) error {
	return e.madeSources(c.ID).Make(ctx, c.missing)
}

func (e *Engine) removeSources(ctx context.Context, id string) error {
	return e.madeSources(id).Remove(ctx)
}

func (e *Engine) prepareDevices(ctx context.Context, c *creation) (err error) {
	rules := e.devicesOf(c.Sandbox)
	c.in.Devices, err = device.Finder{Probes: e.probes}.Of(ctx, rules, c.Config)
	c.in.AllDevices = isPrivileged(c.Config) && (!rules.PrivilegedWithoutHost || rules.PrivilegedAllAllowed)
	return err
}

func (e *Engine) prepareCDI(ctx context.Context, c *creation) error {
	return device.Finder{Probes: e.probes}.InjectCDI(ctx, &e.rules().Devices, c.Config, c.oci)
}

// foundHooks are the OCI hooks of the node, and the files that cannot be used.
type foundHooks struct {
	hooks  ocihooks.Hooks
	faults []*ocihooks.Fault
}

// readHooks reads the directories of a handler, nil for berth itself.
func (e *Engine) readHooks(ctx context.Context, h *handler.Handler) (found foundHooks, err error) {
	dirs := e.rules().HookDirs
	if h != nil && h.HookDirs != nil {
		dirs = h.HookDirs
	}
	if len(dirs) == 0 {
		return found, nil
	}
	return probe.Ask(ctx, e.probes, "read the OCI hooks in "+strings.Join(dirs, ", "), func() (found foundHooks, _ error) {
		found.hooks, found.faults = e.hooks.Read(dirs)
		return found, nil
	})
}

// hooksKey is the key of the configuration that names the directories of a handler.
func hooksKey(h *handler.Handler) string {
	if h != nil && h.HookDirs != nil {
		return "handlers." + h.Name + ".hooks_dirs"
	}
	return "runtime.hooks_dirs"
}

// prepareHooks adds the OCI hooks of the node. While a file of hooks is bad, no container is created: nobody knows
// which containers its hook is for, and they must not run without it.
func (e *Engine) prepareHooks(ctx context.Context, c *creation) error {
	found, err := e.readHooks(ctx, c.Sandbox.Handler)
	if err == nil {
		err = ocihooks.Join(found.faults)
	}
	if err != nil {
		return fmt.Errorf("%s of the configuration: %w", hooksKey(c.Sandbox.Handler), err)
	}
	found.hooks.Inject(c.oci, &ocihooks.Container{
		Annotations:   request.AllAnnotations(c.SandboxSpec.Config, c.Config),
		Command:       c.oci.Process.Args[0],
		HasBindMounts: slices.ContainsFunc(c.Config.GetMounts(), func(m *runtimeapi.Mount) bool { return m.GetImage() == nil }),
	})
	return nil
}

// withHook adds the file of the OCI hook that an error of a container is about. hooks are those of its spec.
func (e *Engine) withHook(ctx context.Context, hooks *specs.Hooks, err error) error {
	if _, ofHook := ocierror.Hook(err); !ofHook || hooks == nil {
		return err
	}
	ctx, stop := context.WithTimeout(context.WithoutCancel(ctx), time.Second) // the hook may have used the time of ctx
	defer stop()
	found, _ := e.readHooks(ctx, nil)
	all := slices.Clone(found.hooks)
	for _, named := range e.rules().Handlers.List()[1:] { // the default one has a name, too
		if named.Handler.HookDirs != nil {
			found, _ := e.readHooks(ctx, named.Handler)
			all = append(all, found.hooks...)
		}
	}
	return all.Named(err, hooks)
}

// blockIO returns what a class of block IO is for the devices of the host.
func (e *Engine) blockIO(ctx context.Context, class string) (*specs.LinuxBlockIO, error) {
	path := e.rules().BlockIOClasses
	return probe.Ask(ctx, e.probes, fmt.Sprintf("read class %q of block IO in %q", class, path), func() (*specs.LinuxBlockIO, error) {
		return ioclass.BlockIO(path, class)
	})
}

// prepareClasses applies the classes that annotations choose.
func (e *Engine) prepareClasses(ctx context.Context, c *creation) error {
	of := &ioclass.Container{
		Name: c.Config.GetMetadata().GetName(), Annotations: c.Config.GetAnnotations(), Pod: c.SandboxSpec.Config.GetAnnotations(),
	}
	if chosen := ioclass.BlockIOOf(of); chosen != nil {
		class, err := e.blockIO(ctx, chosen.Name)
		if err := e.classFault(c, chosen, err, e.rules().IgnoreNoBlockIO); err != nil {
			return err
		}
		if class != nil {
			c.oci.Linux.Resources.BlockIO = class
		}
	}
	if chosen := ioclass.RDTOf(of); chosen != nil {
		class, err := ioclass.RDT(ioclass.Resctrl, chosen.Name)
		if err := e.classFault(c, chosen, err, e.rules().IgnoreNoRDT); err != nil {
			return err
		}
		if class != nil {
			c.oci.Linux.IntelRdt = class
		}
	}
	return nil
}

// classFault adds the annotation to the error of a class. With ignore, a class where there are none is logged.
func (e *Engine) classFault(c *creation, chosen *ioclass.Chosen, err error, ignore bool) error {
	var notEnabled *ioclass.NotEnabledError
	switch {
	case err == nil:
		return nil
	case ignore && errors.As(err, &notEnabled):
		e.log.Warn("ignoring a class that a pod chooses", "container", c.ID, "annotation", chosen.Field, "error", err)
		return nil
	}
	return fmt.Errorf("%s: %w", chosen.Field, err)
}

// adjustSpec lets the caller change the spec.
func (e *Engine) adjustSpec(ctx context.Context, c *creation) error {
	if c.Adjust == nil {
		return nil
	}
	stageOf(c.containerSpec)("adjust the OCI spec", "the NRI plugins")
	defer stageOf(c.containerSpec)(stageCreate, stageEngine)
	devices := device.Finder{Probes: e.probes}
	if err := c.Adjust(ctx, c.oci, &engine.Names{
		CDI: func(names []string) error {
			return devices.InjectNames(ctx, &e.rules().Devices, "linux.CDI_devices of an NRI plugin", names, c.oci)
		},
		BlockIO: func(class string) (*specs.LinuxBlockIO, error) { return e.blockIO(ctx, class) },
		RDT:     func(class string) (*specs.LinuxIntelRdt, error) { return ioclass.RDT(ioclass.Resctrl, class) },
	}); err != nil {
		return err
	}
	return ocispec.Fit(c.oci, e.host)
}

func (e *Engine) prepareSeccomp(ctx context.Context, c *creation) (err error) {
	c.in.Seccomp, err = e.seccomp.Container(ctx, c.Config, e.seccompOf(c.Sandbox.Handler), &c.in.Defaults)
	return err
}

func (e *Engine) prepareAppArmor(ctx context.Context, c *creation) (err error) {
	c.in.AppArmor, err = e.appArmorProfile(ctx, request.AppArmorOf(c.Config))
	return err
}

func (e *Engine) prepareImageVolumes(ctx context.Context, c *creation) (err error) {
	declared := c.ImageConfig
	if e.rules().NoImageVolumes {
		declared.Volumes = nil
	}
	c.in.ImageVolumes, err = volume.Maker{Rootfs: e.cfg.Rootfs, Relabel: e.relabel, Log: e.log}.Make(ctx, &volume.Container{
		ID: c.ID, ImageID: c.ImageID, Image: declared, Config: c.Config, Rootfs: c.in.Rootfs,
		Owner: userns.Owner(c.SandboxSpec.Config), Labels: c.labels, Stage: stageOf(c.containerSpec),
	})
	if len(c.in.ImageVolumes) > 0 {
		stageOf(c.containerSpec)(stageCreate, stageEngine)
	}
	return err
}

func (e *Engine) prepareSpec(_ context.Context, c *creation) (err error) {
	if c.oci, err = ocispec.Container(c.in); err == nil && c.base != nil {
		ocispec.OnBase(c.oci, c.base)
	}
	return err
}

func (e *Engine) writeSpec(_ context.Context, c *creation) error {
	return e.bundles.Write(c.ID, c.oci)
}

func (e *Engine) warn(_ context.Context, c *creation) error {
	e.notices().Container(c.ContainerSpec, c.Sandbox.UserNS != "")
	return nil
}

func (e *Engine) prepareSharedFiles(_ context.Context, c *creation) error {
	return e.shareFiles(c.containerSpec, c.labels)
}

func (e *Engine) prepareVolumeLabels(ctx context.Context, c *creation) error {
	return e.relabelVolumes(ctx, c.containerSpec, c.in.Sources, c.labels)
}

// changeRootfs applies the changes of a checkpoint to the root filesystem, before anything is looked up in it.
func (e *Engine) changeRootfs(ctx context.Context, c *creation) error {
	if c.Restored == "" {
		return nil
	}
	changer, can := e.cfg.Rootfs.(image.Changer)
	switch {
	case !can || isPrivileged(c.Config) || request.StorageOf(c.Config) != "" || c.Sandbox.UserNS != "":
		return fmt.Errorf("a checkpoint is not restored into a privileged container, one that keeps its root filesystem, or one in a user namespace: %w", errs.Unsupported)
	}
	return restoring.Files(c.Restored).Change(ctx, c.in.Rootfs, changer)
}

// fitCheckpoint writes the images for CRIU by the spec, which is final, and lets the supervisor restore them.
func (e *Engine) fitCheckpoint(ctx context.Context, c *creation) error {
	if c.Restored == "" {
		return nil
	}
	if c.oci.Hooks != nil {
		return fmt.Errorf("a checkpoint is not restored with OCI hooks: %w", errs.Unsupported)
	}
	files := restoring.Files(c.Restored)
	// One at a time: an archive decides how much memory this takes.
	if err := e.fits.Acquire(ctx, 1); err != nil {
		return context.Cause(ctx)
	}
	err := files.Fit(ctx, c.oci)
	e.fits.Release(1)
	if err != nil {
		return err
	}
	rules := e.rules()
	c.request.Restore = &supervisor.Restore{Images: files.Images(), Work: files.Work(), CRIU: rules.CRIU}
	c.request.StartTimeout = restoreTimeout
	c.request.Handler = rules.restorer(c.Sandbox.Handler).Program()
	return nil
}

// restoreTimeout bounds the work of CRIU, which reads the whole memory of the processes.
const restoreTimeout = 5 * time.Minute
