package rootfs

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/containerd/containerd/v2/core/mount"
	"github.com/containerd/errdefs"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/image"
	"github.com/berthrun/berth/internal/probe"
	"github.com/berthrun/berth/internal/sys/sysfile"
	"github.com/berthrun/berth/internal/sys/sysmount"
)

// A root filesystem of a proxy snapshotter has a directory as the others have, for its record and its volumes. What the
// container writes into it is in a snapshot of the snapshotter, which package snapshotters removes when the record is gone:
// a release needs no answer of the snapshotter.

// mountTimeout bounds the mount of a root filesystem: its lower directories may be FUSE mounts that hang.
const mountTimeout = 30 * time.Second

// canBeOf reports whether a snapshotter can make a root filesystem. That of berth's own has the layers alone, over which
// this package mounts overlays.
func (m *Manager) canBeOf(name string, spec image.RootfsSpec) bool {
	if m.proxies.Own(name) != nil {
		return !m.copies
	}
	return spec.Map == nil && spec.Storage == "" && spec.Limit == 0
}

// whyNotOf says why canBeOf is false.
func (m *Manager) whyNotOf(name string) string {
	if m.proxies.Own(name) != nil {
		return "root filesystems are copies here (image.snapshotter), which its layers cannot be below"
	}
	return "it can neither map ids, nor keep or limit what is written"
}

// withMounts mounts the layers of a root filesystem that berth's own snapshotter has, and returns where they are.
func (m *Manager) withMounts(ctx context.Context, key string, u use) (use, error) {
	own := m.proxies.Own(u.Proxy)
	if own == nil {
		return u, nil
	}
	lower, err := own.Use(ctx, key, u.Chain)
	if errdefs.IsNotFound(err) {
		m.proxies.Wake() // it notes which images have lost their layers
		// The kind is not NotFound: that would mean that the image is missing.
		return u, fmt.Errorf("the snapshotter %s does not have the layers of image %s any more: %v; pull the image again: %w", u.Proxy, u.Image, err, errs.Unavailable) //nolint:errorlint // see above
	}
	if err != nil {
		return u, fmt.Errorf("the snapshotter %s cannot mount the layers of image %s: %w", u.Proxy, u.Image, err)
	}
	u.lower, u.lowerRoot = lower, own.State
	return u, nil
}

// mountProxy mounts the root filesystem that a snapshotter prepares.
func (m *Manager) mountProxy(ctx context.Context, spec image.RootfsSpec, u use, target string) error {
	proxy, err := m.proxies.Find(u.Proxy)
	if err != nil {
		return err
	}
	mounts, err := proxy.Prepare(ctx, spec.Key, u.Chain)
	if errors.Is(err, errs.NotFound) {
		m.proxies.Wake() // it notes which images have lost their layers
		// The kind is not NotFound: that would mean that the image is missing.
		return fmt.Errorf("%v; pull the image again: %w", errs.Message(err), errs.Unavailable)
	}
	if err != nil {
		return err
	}
	if err := os.Mkdir(target, 0o700); err != nil && !errors.Is(err, os.ErrExist) {
		return err
	}
	for i := range mounts {
		if spec.ReadOnly {
			mounts[i].Options = append(mounts[i].Options, "ro")
		}
		if spec.MountLabel != "" && mounts[i].Type == "overlay" {
			mounts[i].Options = append(mounts[i].Options, fmt.Sprintf("context=%q", spec.MountLabel))
		}
	}
	_, err = probe.AskWithin(ctx, &m.probes, mountTimeout, "mount the root filesystem of "+spec.Key+" from the snapshotter "+u.Proxy, func() (struct{}, error) {
		if err := mount.All(mounts, target); err != nil {
			return struct{}{}, fmt.Errorf("cannot mount what the snapshotter %s has prepared: %w", u.Proxy, err)
		}
		mounted, err := sysmount.IsMountPoint(target)
		if err == nil && !mounted { // a container would see an empty directory of the host
			err = fmt.Errorf("the mounts that the snapshotter %s has prepared are not on %s", u.Proxy, target)
		}
		return struct{}{}, err
	})
	return err
}

// HasRootfs implements snapshotters.Users.
func (m *Manager) HasRootfs(key string) bool {
	_, ok := m.use(key)
	return ok
}

// Snapshotter implements image.Rootfs.
func (m *Manager) Snapshotter(key string) string {
	u, _ := m.use(key)
	switch {
	case u.Proxy != "":
		return u.Proxy
	case u.Copied != nil:
		return image.NativeSnapshotter
	}
	return image.OverlaySnapshotter
}

// writtenUsage adds up what the container of key has written, in a snapshotter and in this store. It walks no tree where the
// kernel counts. The snapshotter is called before the first call of pace.
func (m *Manager) writtenUsage(ctx context.Context, key string, pace sysfile.Pace) (sysfile.Usage, error) {
	u, known := m.use(key)
	elsewhere, err := m.proxyUsage(ctx, key, u.Proxy)
	if err != nil {
		return sysfile.Usage{}, err
	}
	var used sysfile.Usage
	quota, counted, err := m.counted(m.containerDir(key))
	if known && u.Storage == "" && counted && err == nil {
		used = sysfile.Usage{Bytes: quota.Bytes, Inodes: quota.Inodes}
	} else {
		used, err = sysfile.UsageOf(ctx, pace, m.writtenDirs(key)...)
	}
	used = u.Copied.written(used)
	return sysfile.Usage{Bytes: used.Bytes + elsewhere.Bytes, Inodes: used.Inodes + elsewhere.Inodes}, err
}

// proxyUsage returns what a container has written into its root filesystem of a snapshotter, nothing if the name of that is "".
func (m *Manager) proxyUsage(ctx context.Context, key, name string) (used sysfile.Usage, err error) {
	proxy, err := m.proxies.Find(name)
	if err != nil || proxy == nil || proxy.IsOwn() {
		return used, err
	}
	used.Bytes, used.Inodes, err = proxy.Usage(ctx, key)
	return used, err
}
