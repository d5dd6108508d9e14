package image

import (
	"context"

	"github.com/berthrun/berth/internal/sys/sysfile"
)

// OverlaySnapshotter is containerd's name for layers that the kernel's overlay joins.
const OverlaySnapshotter = "overlayfs"

// Rootfs prepares root filesystems of containers from images.
type Rootfs interface {
	// Prepare makes and mounts (one overlay mount) the root filesystem that spec
	// asks for. Calling it again for the same key mounts the same filesystem again
	// if it is not mounted. Kind Unsupported when ids cannot be mapped here.
	Prepare(ctx context.Context, spec RootfsSpec) (*Mounted, error)
	// MakeVolume makes a directory that lies apart from the root filesystem of a key
	// and lasts as long, and returns its path. It ends soon after ctx does; what is
	// there by then goes with the root filesystem. Kind NotFound without a root
	// filesystem, Exists when there is a volume of that name; but in a Storage, what is
	// there is taken as it is.
	MakeVolume(ctx context.Context, spec VolumeSpec) (path string, err error)
	// Release unmounts and removes the root filesystem of key, and its volumes; what is
	// in a Storage stays there. Nil when there is none, half made ones included.
	Release(ctx context.Context, key string) error
	// WritableUsage adds up what the container of key has written, its volumes included.
	// pace, if not nil, is called now and then, and may wait. An error of it ends the walk and
	// is returned, with what was counted by then.
	WritableUsage(ctx context.Context, key string, pace sysfile.Pace) (Usage, error)
	// Keys lists every key of which anything is left.
	Keys(ctx context.Context) ([]string, error)
	// Snapshotter names what holds the layers and what containers write, as tools for
	// containerd know it: OverlaySnapshotter.
	Snapshotter() string
	// CanMap reports whether Prepare can show root filesystems to user namespaces,
	// with the one at userns as an example: nil, or why not, of kind Unsupported.
	CanMap(userns string) error
}

// RootfsSpec says which root filesystem to prepare.
type RootfsSpec struct {
	// Key names it, ImageID is the id of the image that it is made from.
	Key, ImageID string
	// Map shows it to a user namespace; nil for the host's.
	Map *UserMap
	// ReadOnly is for a volume: nobody writes to it.
	ReadOnly bool
	// MountLabel is the SELinux label of all its files, "" for none.
	MountLabel string
	// Storage is a directory in which what is written is kept when the root filesystem is
	// released, its volumes included, and from which a later one of the same layers goes
	// on; "" keeps nothing. It is made where it is missing. Kind State when another root
	// filesystem has it, or it is of other layers; Unsupported together with Map, and on a
	// file system that takes no overlay.
	Storage string
}

// VolumeSpec says which volume to make.
type VolumeSpec struct {
	// Key is the root filesystem's, Name is unique among its volumes.
	Key, Name string
	// From is a directory that nobody writes to: the volume is a copy of it. "" makes
	// an empty one that belongs to UID and GID.
	From     string
	UID, GID int
	// Tell, if not nil, hears how far the copy is.
	Tell func(sysfile.Copied)
}

// UserMap says how a user namespace sees files.
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
