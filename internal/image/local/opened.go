package local

import (
	"context"
	"fmt"
	"io"

	imagespec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/image"
	"github.com/berthrun/berth/internal/sys/sysfile"
)

var (
	_ image.Store         = (*Images)(nil)
	_ image.TargetPuller  = (*Images)(nil)
	_ image.PlatformStore = (*Images)(nil)
	_ image.Catalog       = (*Images)(nil)
	_ image.Rootfs        = (*Images)(nil)
	_ image.Explainer     = (*Images)(nil)
	_ image.Auditor       = (*Images)(nil)
	_ image.Admitter      = (*Images)(nil)
	_ image.Limiter       = (*Images)(nil)
	_ image.Warner        = (*Images)(nil)
)

// publish ends the opening: the store is open, or failure says why not.
func (s *Images) publish() {
	s.rulesMu.Lock()
	defer s.rulesMu.Unlock()
	if s.failure == nil {
		s.store.SetPullRules(s.rules)
	}
	close(s.opened)
}

// isOpen reports whether the store is open. It does not wait.
func (s *Images) isOpen() bool {
	select {
	case <-s.opened:
		return s.failure == nil
	default:
		return false
	}
}

// Await returns when the store is open, or the reason why it cannot be opened.
func (s *Images) Await(ctx context.Context) error {
	select {
	case <-s.opened:
		return s.failure
	default:
	}
	select {
	case <-s.opened:
		return s.failure
	case <-ctx.Done():
		return fmt.Errorf("the image store is still being checked and opened: %w", context.Cause(ctx))
	}
}

// ready is Await for a request. The kind of a failure is not that of the request: a release, say, takes NotFound for
// success.
func (s *Images) ready(ctx context.Context) error {
	err := s.Await(ctx)
	if err != nil && ctx.Err() == nil {
		return fmt.Errorf("the image store could not be opened: %v: %w", err, errs.Unavailable) //nolint:errorlint // not of the cause's kind
	}
	return err
}

// Pull implements image.Store.
func (s *Images) Pull(ctx context.Context, ref string, auth image.Auth, progress func(image.Progress)) (string, error) {
	if err := s.ready(ctx); err != nil {
		return "", err
	}
	defer s.changed()
	return s.store.Pull(ctx, ref, auth, progress)
}

// PullFor implements image.TargetPuller.
func (s *Images) PullFor(ctx context.Context, target image.PullTarget, ref string, auth image.Auth, progress func(image.Progress)) (string, error) {
	if err := s.ready(ctx); err != nil {
		return "", err
	}
	defer s.changed()
	return s.store.PullFor(ctx, target, ref, auth, progress)
}

// Get implements image.Store.
func (s *Images) Get(ctx context.Context, ref string) (*image.Image, error) {
	if err := s.ready(ctx); err != nil {
		return nil, err
	}
	return s.store.Get(ctx, ref)
}

// GetFor implements image.PlatformStore.
func (s *Images) GetFor(ctx context.Context, platform, ref string) (*image.Image, error) {
	if err := s.ready(ctx); err != nil {
		return nil, err
	}
	return s.store.GetFor(ctx, platform, ref)
}

// Details implements image.Store.
func (s *Images) Details(ctx context.Context, ref string) (*imagespec.Image, error) {
	if err := s.ready(ctx); err != nil {
		return nil, err
	}
	return s.store.Details(ctx, ref)
}

// List implements image.Store.
func (s *Images) List(ctx context.Context) ([]image.Image, error) {
	if err := s.ready(ctx); err != nil {
		return nil, err
	}
	return s.store.List(ctx)
}

// Remove implements image.Store.
func (s *Images) Remove(ctx context.Context, ref string) error {
	if err := s.ready(ctx); err != nil {
		return err
	}
	defer s.changed()
	return s.store.Remove(ctx, ref)
}

// RemoveFor implements image.PlatformStore.
func (s *Images) RemoveFor(ctx context.Context, platform, ref string) error {
	if err := s.ready(ctx); err != nil {
		return err
	}
	defer s.changed()
	return s.store.RemoveFor(ctx, platform, ref)
}

// CountWritten has Usage use sum for what containers have written, where the kernel does not count it.
func (s *Images) CountWritten(sum func(context.Context) (image.Usage, error)) { s.written.Store(&sum) }

// Usage implements image.Store.
func (s *Images) Usage(ctx context.Context) (image.DiskUsage, error) {
	if err := s.ready(ctx); err != nil {
		return image.DiskUsage{}, err
	}
	usage, err := s.store.Usage(ctx)
	if err != nil {
		return image.DiskUsage{}, err
	}
	_, replaced := s.rootfs.Replaced()
	usage.Images[0].Bytes += replaced.Bytes
	usage.Images[0].Inodes += replaced.Inodes
	written, ok, err := s.rootfs.Written()
	if sum := s.written.Load(); err == nil && !ok && sum != nil {
		written, err = (*sum)(ctx)
	}
	if err != nil {
		return image.DiskUsage{}, fmt.Errorf("cannot add up what containers have written: %w", err)
	}
	containers := &usage.Containers[0]
	containers.Bytes, containers.Inodes = written.Bytes, written.Inodes
	return usage, nil
}

// Import implements image.Store.
func (s *Images) Import(ctx context.Context, archive io.Reader, name string, pin bool, progress func(image.Progress)) ([]image.Image, error) {
	if err := s.ready(ctx); err != nil {
		return nil, err
	}
	defer s.changed()
	images, err := s.store.Import(ctx, archive, name, pin, progress)
	if err == nil && pin {
		s.imports.Keep(images)
	}
	return images, err
}

// Export implements image.Store.
func (s *Images) Export(ctx context.Context, refs []string, to io.Writer) error {
	if err := s.ready(ctx); err != nil {
		return err
	}
	return s.store.Export(ctx, refs, to)
}

// Layers implements image.Catalog.
func (s *Images) Layers(ctx context.Context) ([]image.Layered, error) {
	if err := s.ready(ctx); err != nil {
		return nil, err
	}
	return s.store.Layers(ctx)
}

// Tag implements image.Catalog.
func (s *Images) Tag(ctx context.Context, ref string, names []string) error {
	if err := s.ready(ctx); err != nil {
		return err
	}
	defer s.changed()
	return s.store.Tag(ctx, ref, names)
}

// Explain implements image.Explainer.
func (s *Images) Explain(ctx context.Context, target image.PullTarget, ref string, auth image.Auth, try bool) (*image.Explanation, error) {
	if err := s.ready(ctx); err != nil {
		return nil, err
	}
	return s.store.Explain(ctx, target, ref, auth, try)
}

// Admit implements image.Admitter.
func (s *Images) Admit(ctx context.Context, namespace, ref, name string) error {
	if err := s.ready(ctx); err != nil {
		return err
	}
	return s.store.Admit(ctx, namespace, ref, name)
}

// DiskUse implements image.Auditor.
func (s *Images) DiskUse(ctx context.Context) (*image.DiskUse, error) {
	if err := s.ready(ctx); err != nil {
		return nil, err
	}
	return s.checker.DiskUse(ctx)
}

// Check implements image.Auditor.
func (s *Images) Check(ctx context.Context, repair bool, seen func(image.CheckUpdate)) (*image.CheckReport, error) {
	if err := s.ready(ctx); err != nil {
		return nil, err
	}
	defer s.changed()
	return s.checker.Check(ctx, repair, seen)
}

// Prepare implements image.Rootfs.
func (s *Images) Prepare(ctx context.Context, spec image.RootfsSpec) (*image.Mounted, error) {
	if err := s.ready(ctx); err != nil {
		return nil, err
	}
	return s.rootfs.Prepare(ctx, spec)
}

// MakeVolume implements image.Rootfs.
func (s *Images) MakeVolume(ctx context.Context, spec image.VolumeSpec) (string, error) {
	if err := s.ready(ctx); err != nil {
		return "", err
	}
	return s.rootfs.MakeVolume(ctx, spec)
}

// Release implements image.Rootfs.
func (s *Images) Release(ctx context.Context, key string) error {
	if err := s.ready(ctx); err != nil {
		return err
	}
	defer s.changed()
	return s.rootfs.Release(ctx, key)
}

// WritableUsage implements image.Rootfs.
func (s *Images) WritableUsage(ctx context.Context, key string, pace sysfile.Pace) (image.Usage, error) {
	if err := s.ready(ctx); err != nil {
		return image.Usage{}, err
	}
	return s.rootfs.WritableUsage(ctx, key, pace)
}

// Keys implements image.Rootfs. It does not wait until the store is open: a start compares the keys with the records
// of pods before its first answer. What the opening removes by itself may still be among them.
func (s *Images) Keys(context.Context) ([]string, error) { return s.cfg.rootfsPaths().Keys() }

// Snapshotter implements image.Rootfs.
func (s *Images) Snapshotter(key string) string {
	if !s.isOpen() {
		return image.OverlaySnapshotter
	}
	return s.rootfs.Snapshotter(key)
}

// Warnings implements image.Warner.
func (s *Images) Warnings() []string {
	if !s.isOpen() {
		return nil
	}
	all := s.imports.Failures()
	if s.copiesBecause != "" {
		all = append([]string{s.copiesBecause}, all...)
	}
	return all
}

// CanLimit implements image.Limiter.
func (s *Images) CanLimit() error { return s.cfg.rootfsPaths().CanLimit(s.cfg.FirstProject) }

// CanMap implements image.Rootfs.
func (s *Images) CanMap(userns string) error {
	if err := s.ready(context.Background()); err != nil {
		return err
	}
	return s.rootfs.CanMap(userns)
}
