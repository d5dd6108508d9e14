// Package image is the contract of an image store: images by their names, and root
// filesystems of containers made from them. Package local implements it on the disk of this
// host; callers other than the one that opens it know this package alone.
//
// A store knows nothing of pods. Its callers decide which images it removes; Rootfs keeps the
// layers that containers still use.
package image

import (
	"context"
	"io"
	"time"

	"github.com/opencontainers/go-digest"
	imagespec "github.com/opencontainers/image-spec/specs-go/v1"
)

// Image is one image in the store.
type Image struct {
	// ID is the image's id, which the store chooses. Callers compare ids and pass them on, and
	// do not parse them. An image that is removed and pulled again has the same id.
	ID string
	// Tags are full references ("docker.io/library/busybox:1.36"); Digests are
	// the same by manifest digest ("docker.io/library/busybox@sha256:...").
	Tags, Digests []string
	// Size is the compressed size of all its content, in bytes.
	Size int64
	// Config is the image's configuration for containers: command, environment, user, ports.
	Config imagespec.ImageConfig
	// OS, Architecture, Variant of the image's config.
	OS, Architecture, Variant string
	// Created is when the image was built.
	Created time.Time
	// ChainID is the digest of its layers together, for people and tools; "" in a store that
	// has none.
	ChainID string
	// Annotations are those of its manifest, none when they are too many to be sent in every list. Names of an image may
	// have different manifests: an image that is found by a name has those of the name, any other those that the
	// manifests of all its names have.
	Annotations map[string]string
	// Artifact is set for an OCI artifact, which has files to mount, and neither a configuration nor a platform. Nobody
	// changes it.
	Artifact *Artifact
	// Encrypted is how many of its layers are encrypted in its registry. They lie unpacked in the store.
	Encrypted int
	// Pinned images are never collected by the kubelet.
	Pinned bool
	// Snapshotters are the names of the proxy snapshotters that have its layers; see PullTarget. Lazy is set if only they
	// have them, so that the store may lack their content.
	Snapshotters []string
	Lazy         bool
}

// PullTarget says what an image is pulled for. The zero value is no pod, and the store's own layers.
type PullTarget struct {
	// Namespace is that of the pod, which may have a policy of its own. "" is no pod, or one without a namespace.
	Namespace string
	// Snapshotter is the name of a proxy snapshotter of containerd, which fetches files when a container reads them. It gets
	// the layers, and a Rootfs finds them there. The store fetches those that the snapshotter does not provide by itself.
	// "" is none.
	Snapshotter string
	// Platform is the one of which the image is wanted, "" for the node's; see ParsePlatform. A name has an image for each
	// platform; see PlatformStore. Artifacts are for all.
	Platform string
}

// TargetPuller is a Store with policies for namespaces, and with proxy snapshotters. It is an optional interface.
type TargetPuller interface {
	// PullFor is Store.Pull for a target. Artifacts go into no snapshotter. Kind Unavailable if the store does not know the
	// snapshotter, or, as an AwayError, if that does not answer.
	PullFor(ctx context.Context, target PullTarget, ref string, auth Auth, progress func(Progress)) (id string, err error)
}

// AwayError is the error of a store that cannot be reached: what holds its images does not answer.
// No registry is at fault. Its text and its kind, Unavailable, are Err's.
type AwayError struct{ Err error }

func (e *AwayError) Error() string { return e.Err.Error() }

// Unwrap returns Err.
func (e *AwayError) Unwrap() error { return e.Err }

// Auth is how a caller authenticates to a registry. The zero value is anonymous.
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

// Progress is the progress of a pull or an import, in bytes. Total is 0 while unknown.
type Progress struct {
	// Stage is "resolving", "fetching", "waiting", "unpacking" or "done". A pull that is "waiting" fetches nothing, because
	// other downloads of the node go first; "fetching" follows.
	Stage       string
	Done, Total int64
	// Behind is how many layers of a pull that is "waiting" come with other pulls, which fetch them now. The pull uses what
	// these fetch.
	Behind int
	// Limited reports whether the limits of the node hold back layers of a pull that is "waiting".
	Limited bool
	// From names the endpoints that a pull asks now, "" while that is not known.
	From string
}

// PullObserver counts pulls. It must not block.
type PullObserver interface {
	// PullBegan is called for each pull, and not for a caller that joins one; PullEnded at its end, with how many
	// bytes of layers it has fetched. A pull that tries several registries is one pull.
	PullBegan()
	PullEnded(bytes int64, took time.Duration, err error)
}

// PullTracer follows pulls in traces. It is an optional interface of a PullObserver. It must not block.
type PullTracer interface {
	// PullTraced is called for each pull, and not for a caller that joins one, with the context of the caller. Of a pull
	// that tries several registries it is called for each full reference. It
	// returns the context of the pull, and two functions, which are nil for a pull that is not traced: what to call
	// with the name of each stage of Progress, and at the end.
	PullTraced(ctx context.Context, ref string) (_ context.Context, stage func(string), ended func(bytes int64, err error))
}

// Usage of one file system.
type Usage struct {
	// Mountpoint is a directory on it, by which the kubelet finds the file system.
	Mountpoint string
	Bytes      int64
	Inodes     int64
	At         time.Time
}

// DiskUsage is what a store uses, by file system. Both lists have at least one entry.
type DiskUsage struct {
	// Images are the file systems of content and layers, Containers those of what containers have written. One that is in
	// both has the same Mountpoint in both; its figures are those of the part, 0 for inodes that are not known.
	Images, Containers []Usage
}

// Store holds images. All methods are safe for concurrent use; errors carry a
// kind of package errs (NotFound, Invalid, Unavailable for a registry that does
// not answer, or an AwayError, Unsupported for a wrong architecture, Exhausted for a full disk)
// and contain no credentials.
type Store interface {
	// Pull fetches ref by tag or digest, unpacks it, and returns its id. State for an encrypted image that no key of the node
	// decrypts. Pulls
	// of one reference with the same credentials share one pull. A pull without
	// progress fails. progress may be nil.
	Pull(ctx context.Context, ref string, auth Auth, progress func(Progress)) (id string, err error)
	// Get finds an image by id, unambiguous id prefix, tag or digest reference,
	// as the kubelet sends them ("busybox" is docker.io/library/busybox:latest).
	// NotFound when there is none.
	Get(ctx context.Context, ref string) (*Image, error)
	// Details returns the whole configuration of the image that Get finds: what Get returns of it,
	// its layers and its history, the oldest entry first. A store that does not know which entries
	// of the history made a layer leaves EmptyLayer false.
	Details(ctx context.Context, ref string) (*imagespec.Image, error)
	// List returns all images, sorted by id.
	List(ctx context.Context) ([]Image, error)
	// Remove removes the image that ref names, with all its names, and the data
	// that only it used on disk. Nil when there is none. Snapshots that a Rootfs
	// still uses stay until its Release.
	Remove(ctx context.Context, ref string) error
	// Usage adds up what images take on disk.
	Usage(ctx context.Context) (DiskUsage, error)
	// Import reads a docker or OCI archive (plain, gzip or zstd), unpacks it and
	// returns the images that it named. name, if not "", names an image that
	// carries no name. Imported images are pinned when pin is set.
	Import(ctx context.Context, archive io.Reader, name string, pin bool, progress func(Progress)) ([]Image, error)
	// Export writes an archive of images, as Get finds them, that docker, podman, OCI tools
	// and Import read. Nothing is written when one is missing (NotFound).
	Export(ctx context.Context, refs []string, to io.Writer) error
}

// Catalog lists the layers of images, and names images. Clients that send images use it to
// send only missing layers.
type Catalog interface {
	// Layers returns all images with those of their layers whose content exists,
	// sorted by id.
	Layers(ctx context.Context) ([]Layered, error)
	// Tag adds names to the image that ref names. A name of another image is moved to
	// it. NotFound when there is no such image.
	Tag(ctx context.Context, ref string, names []string) error
}

// Layered is an image and its layers.
type Layered struct {
	ID     string
	Tags   []string
	Layers []Layer
}

// Layer is one layer.
type Layer struct {
	// DiffID is the digest of the uncompressed layer, Digest that of the blob, and MediaType
	// the format of the blob. Size is the blob's size in bytes.
	DiffID, Digest digest.Digest
	MediaType      string
	Size           int64
}
