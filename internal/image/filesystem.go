package image

import (
	"context"
	"os"

	"github.com/berthrun/berth/internal/sys/sysfile"
)

// OverlaySnapshotter is containerd's name for layers that the kernel mounts as an overlay, NativeSnapshotter the one for layers
// that are copied.
const (
	OverlaySnapshotter = "overlayfs"
	NativeSnapshotter  = "native"
	// ErofsSnapshotter is the name of the snapshotter of berth's own that has the layers as EROFS images. It is used as a proxy
	// snapshotter is, but its root filesystems are berth's overlays: they can have mapped ids, storages and limits.
	ErofsSnapshotter = "erofs"
)

// Rootfs prepares root filesystems of containers from images.
type Rootfs interface {
	// Prepare makes and mounts (one mount) the root filesystem of spec. Calling it
	// again for the same key mounts the same filesystem again if it is not mounted. Kind
	// Unsupported if ids cannot be mapped here, Unavailable if a proxy snapshotter does not answer.
	Prepare(ctx context.Context, spec RootfsSpec) (*Mounted, error)
	// MakeVolume makes a directory outside the root filesystem of a key that is removed with
	// it, and returns its path. It returns soon after ctx ends; Release then removes the part
	// that was made. Kind NotFound without a root filesystem, Exists if there is a volume of
	// that name. In a Storage it returns the existing volume instead.
	MakeVolume(ctx context.Context, spec VolumeSpec) (path string, err error)
	// Release unmounts and removes the root filesystem of key and its volumes, also a partly
	// created one. A Storage keeps its content. It returns nil if there is none.
	Release(ctx context.Context, key string) error
	// WritableUsage adds up what the container of key has written, its volumes included. It walks no
	// tree where the kernel counts that.
	// pace, if not nil, is called before a walk and from time to time, and may block. If it returns an error,
	// WritableUsage stops and returns the error with the sum so far.
	WritableUsage(ctx context.Context, key string, pace sysfile.Pace) (Usage, error)
	// Keys returns every key that has a root filesystem or a part of one.
	Keys(ctx context.Context) ([]string, error)
	// Snapshotter returns the name by which tools for containerd know the kind of layers below the root filesystem of
	// a key: OverlaySnapshotter, NativeSnapshotter, or the name of a proxy snapshotter.
	Snapshotter(key string) string
	// CanMap returns nil if Prepare can map root filesystems into user namespaces, and else
	// an error of kind Unsupported. userns is the path of one to try.
	CanMap(userns string) error
}

// Limiter is an optional interface of a Rootfs: it limits what containers write.
type Limiter interface {
	// CanLimit returns nil if RootfsSpec.Limit can hold, and else an error of kind Unsupported with the reason. It
	// does not wait until a store is open.
	CanLimit() error
}

// Warner is an optional interface of a Rootfs: it knows what is unusual about it.
type Warner interface {
	// Warnings are what users of the host should know, one sentence each. It does not wait until a store is open.
	Warnings() []string
}

// Changer is an optional interface of a Rootfs: it applies changes that nobody trusts.
type Changer interface {
	// Change unpacks a tar archive over a root filesystem that is mounted at a path, in a confined process. Names stay
	// below the path, and links lead nowhere else. work is a directory of the caller for the helper. Kinds: Invalid
	// for a bad archive, Exhausted for a full disk.
	Change(ctx context.Context, rootfs string, changes *os.File, work string) error
}

// RootfsSpec is the root filesystem to prepare.
type RootfsSpec struct {
	// Key names it, ImageID is the id of the image that it is made from.
	Key, ImageID string
	// Map is the user namespace that sees it; nil for the host's.
	Map *UserMap
	// ReadOnly mounts it read-only, for an image volume.
	ReadOnly bool
	// MountLabel is the SELinux label of all its files, "" for none.
	MountLabel string
	// Snapshotter is the proxy snapshotter that is to make it. If the image's layers are not there, they are used where they
	// are. "" is the store's own layers, if it has them.
	Snapshotter string
	// Storage is a directory that keeps what is written, volumes included, when the root
	// filesystem is released. A later one of the same layers starts from it. "" keeps
	// nothing. Prepare makes the directory if it is missing. Kind State if another root
	// filesystem uses it, or it belongs to other layers; Unsupported together with Map, and
	// on a file system that cannot be the upper layer of an overlay.
	Storage string
	// Progress, if not nil, is called with the progress of a root filesystem that is a copy of the layers.
	Progress func(sysfile.Copied)
	// Limit is how many bytes may be written to it, volumes included, and what a copy has of the image not, 0 for any number; see Limiter. It does not
	// hold for a Storage, and not for a root filesystem that is prepared again. Kind Unsupported where it cannot hold.
	Limit int64
}

// VolumeSpec is the volume to make.
type VolumeSpec struct {
	// Key is the root filesystem's, Name is unique among its volumes.
	Key, Name string
	// From is a directory that does not change: the volume is a copy of it. "" makes an
	// empty one that belongs to UID and GID.
	From     string
	UID, GID int
	// Progress, if not nil, is called with the progress of the copy.
	Progress func(sysfile.Copied)
}

// UserMap is how a user namespace sees files.
type UserMap struct {
	// UserNS is the path of the namespace. UID and GID are the host's numbers of
	// its root.
	UserNS   string
	UID, GID int
}

// Mounted is a mounted root filesystem.
type Mounted struct {
	// Path is the mount point.
	Path string
}
