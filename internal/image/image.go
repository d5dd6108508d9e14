// Package image owns images on disk: references, pulls, imports, content,
// snapshots and the root filesystems of containers. It is built on containerd's
// libraries (content store, metadata, overlay snapshotter, resolver).
//
// It knows nothing of pods; what it removes is decided by its callers, and what
// they still use is told through Rootfs.
package image

import (
	"context"
	"io"
	"time"

	imagespec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/berthrun/berth/internal/sys/sysfile"
)

// Image is one image in the store.
type Image struct {
	// ID is the digest of its config, "sha256:<hex>".
	ID string
	// Tags are full references ("docker.io/library/busybox:1.36"); Digests are
	// the same by manifest digest ("docker.io/library/busybox@sha256:...").
	Tags, Digests []string
	// Size is the compressed size of all its content, in bytes.
	Size int64
	// Config is how the image wants to be run.
	Config imagespec.ImageConfig
	// OS, Architecture, Variant of the image's config.
	OS, Architecture, Variant string
	// Created is when the image was built.
	Created time.Time
	// ChainID is the digest of its layers together, which names its topmost
	// snapshot.
	ChainID string
	// Annotations are those of its manifest, none when they are too many to be told
	// in every list.
	Annotations map[string]string
	// Pinned images are never collected by the kubelet.
	Pinned bool
}

// Auth is what a registry is told about the caller. The zero value is anonymous.
type Auth struct {
	Username, Password string
	// Auth is base64 of "username:password", as in docker's config file.
	Auth string
	// ServerAddress limits the credentials to one registry, if set.
	ServerAddress string
	// IdentityToken is exchanged for an access token; RegistryToken is a bearer
	// token that is sent as it is.
	IdentityToken, RegistryToken string
}

// Progress is told how far a pull or an import is. Total is 0 while unknown.
type Progress struct {
	// Stage is "resolving", "fetching", "unpacking" or "done".
	Stage       string
	Done, Total int64
}

// Usage of one filesystem.
type Usage struct {
	Mountpoint string
	Bytes      int64
	Inodes     int64
	At         time.Time
}

// Store holds images. All methods are safe for concurrent use; errors carry a
// kind of package errs (NotFound, Invalid, Unavailable for a registry that does
// not answer, Unsupported for a wrong architecture, Exhausted for a full disk)
// and contain no credentials.
type Store interface {
	// Pull fetches ref by tag or digest, unpacks it, and returns its id. Pulls
	// of one reference with the same credentials are done once. A registry that
	// makes no progress ends the pull. progress may be nil.
	Pull(ctx context.Context, ref string, auth Auth, progress func(Progress)) (id string, err error)
	// Get finds an image by id, unambiguous id prefix, tag or digest reference,
	// as the kubelet sends them ("busybox" is docker.io/library/busybox:latest).
	// NotFound when there is none.
	Get(ctx context.Context, ref string) (*Image, error)
	// List returns all images, sorted by id.
	List(ctx context.Context) ([]Image, error)
	// Remove removes the image that ref names, with all its names, and what only
	// it used on disk. Nil when there is none. Snapshots that a Rootfs still
	// uses stay until its Release.
	Remove(ctx context.Context, ref string) error
	// Usage tells what images take on disk.
	Usage(ctx context.Context) (Usage, error)
	// Import reads a docker or OCI archive (plain, gzip or zstd), unpacks it and
	// returns the images that it named. name, if not "", names an image that
	// carries no name. Imported images are pinned when pin is set.
	Import(ctx context.Context, archive io.Reader, name string, pin bool, progress func(Progress)) ([]Image, error)
	// Export writes an archive of images, as Get finds them, that docker, podman, OCI tools
	// and Import read. Nothing is written when one is not there (NotFound).
	Export(ctx context.Context, refs []string, to io.Writer) error
}

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
	// Key is the root filesystem's, Name tells its volumes apart.
	Key, Name string
	// From is a directory that nobody writes to: the volume is a copy of it. "" makes
	// an empty one that belongs to UID and GID.
	From     string
	UID, GID int
	// Tell, if not nil, hears how far the copy is.
	Tell func(sysfile.Copied)
}

// UserMap tells how a user namespace sees files.
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
