package native

import (
	"context"

	"github.com/berthrun/berth/internal/image"
	"github.com/berthrun/berth/internal/ocispec"
	"github.com/berthrun/berth/internal/ocispec/request"
)

// feature is one part of a container: Create prepares it, Remove removes it.
type feature struct {
	name    string
	prepare func(e *Engine, ctx context.Context, c *creation) error
	// remove removes what prepare made, from the container's id alone, whether or not
	// prepare was called or has ended. It is nil where nothing is made, or what is made
	// goes with the sandbox or with another feature.
	remove func(e *Engine, ctx context.Context, id string) error
}

// features are all parts of a container, in the order in which Create prepares them.
// Remove goes the other way. The supervisor makes the container after the last one.
func features() []feature {
	return []feature{
		// First, as List finds the container by it until all else is removed.
		{"bundle", (*Engine).makeBundle, (*Engine).removeBundle},
		{"request", (*Engine).prepareRequest, nil},
		{"labels", (*Engine).prepareLabels, nil},
		{"mounted images", (*Engine).prepareVolumes, nil},
		{"root filesystem", (*Engine).prepareRootfs, (*Engine).removeRootfs},
		{"user", (*Engine).prepareUser, nil},
		{"mount sources", (*Engine).prepareSources, nil},
		{"devices", (*Engine).prepareDevices, nil},
		{"seccomp", (*Engine).prepareSeccomp, nil},
		{"AppArmor", (*Engine).prepareAppArmor, nil},
		{"volumes of the image", (*Engine).prepareImageVolumes, nil},
		{"OCI spec", (*Engine).prepareSpec, nil},
		{"CDI devices", (*Engine).prepareCDI, nil},
		{"log", (*Engine).prepareLog, nil},
		{"spec file", (*Engine).writeSpec, nil},
		{"warnings", (*Engine).warn, nil},
		// From here on files of the host change: what can be refused has been.
		{"missing mount sources", (*Engine).makeSources, (*Engine).removeSources},
		{"shared files", (*Engine).prepareSharedFiles, nil},
		{"volume labels", (*Engine).prepareVolumeLabels, nil},
	}
}

// prepareRequest takes from the request what needs no look at the host.
func (e *Engine) prepareRequest(_ context.Context, c *creation) (err error) {
	c.request = e.requestOf(c.containerSpec)
	c.in, err = e.inputOf(c.containerSpec)
	return err
}

func (e *Engine) prepareLabels(_ context.Context, c *creation) (err error) {
	c.labels, err = e.labelsOf(c.containerSpec)
	c.in.ProcessLabel, c.in.MountLabel = c.labels.Process, c.labels.Mount
	return err
}

func (e *Engine) prepareRootfs(ctx context.Context, c *creation) error {
	mounted, err := e.cfg.Rootfs.Prepare(ctx, image.RootfsSpec{
		Key: c.ID, ImageID: c.ImageID, Map: userMap(c.SandboxSpec, c.Sandbox), MountLabel: c.labels.Mount,
		Storage: request.StorageOf(c.Config),
	})
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
	c.in.Sources, c.missing, err = e.sourcesOf(ctx, c.Config.GetMounts(), c.Sandbox.UserNS)
	return err
}

func (e *Engine) makeSources(ctx context.Context, c *creation) error {
	return e.madeSources(c.ID).Make(ctx, c.missing)
}

func (e *Engine) removeSources(ctx context.Context, id string) error {
	return e.madeSources(id).Remove(ctx)
}

func (e *Engine) prepareDevices(ctx context.Context, c *creation) (err error) {
	c.in.Devices, err = e.devicesOf(ctx, c.Config)
	rules := e.rules().Devices
	c.in.AllDevices = isPrivileged(c.Config) && (!rules.PrivilegedWithoutHost || rules.PrivilegedAllAllowed)
	return err
}

func (e *Engine) prepareCDI(ctx context.Context, c *creation) error {
	return e.injectCDI(ctx, c.Config, c.oci)
}

func (e *Engine) prepareSeccomp(ctx context.Context, c *creation) (err error) {
	c.in.Seccomp, err = e.seccompOf(ctx, c.Config)
	return err
}

func (e *Engine) prepareAppArmor(ctx context.Context, c *creation) (err error) {
	c.in.AppArmor, err = e.apparmorOf(ctx, c.Config)
	return err
}

func (e *Engine) prepareImageVolumes(ctx context.Context, c *creation) (err error) {
	c.in.ImageVolumes, err = e.imageVolumesOf(ctx, c.containerSpec, c.in.Rootfs, c.labels)
	return err
}

func (e *Engine) prepareSpec(_ context.Context, c *creation) (err error) {
	c.oci, err = ocispec.Container(c.in)
	return err
}

func (e *Engine) writeSpec(_ context.Context, c *creation) error {
	return e.writeBundle(c.ID, c.oci)
}

func (e *Engine) warn(_ context.Context, c *creation) error {
	e.warnIgnored("container", c.ID, c.Config.GetAnnotations())
	e.warnPrivileged(c.ID, c.Config)
	e.warnTracer(c.containerSpec)
	e.warnBinary(c.ID, c.Config)
	return nil
}

func (e *Engine) prepareSharedFiles(_ context.Context, c *creation) error {
	return e.shareFiles(c.containerSpec, c.labels)
}

func (e *Engine) prepareVolumeLabels(ctx context.Context, c *creation) error {
	return e.relabelVolumes(ctx, c.containerSpec, c.in.Sources, c.labels)
}
