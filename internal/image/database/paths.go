package database

import (
	"path/filepath"

	"github.com/opencontainers/go-digest"
)

// Paths are the databases' files and the directories that they describe.
type Paths struct {
	// Root is the directory of the image store, an absolute path.
	Root string
}

// MetadataFile is the database of images, content and leases.
func (p Paths) MetadataFile() string { return filepath.Join(p.Root, "metadata.db") }

// SnapshotsFile is the database of snapshots.
func (p Paths) SnapshotsFile() string { return filepath.Join(p.snapshotsDir(), "metadata.db") }

// LayersDir has a directory for each snapshot.
func (p Paths) LayersDir() string { return filepath.Join(p.snapshotsDir(), "snapshots") }

// ContentDir has the blobs.
func (p Paths) ContentDir() string { return filepath.Join(p.Root, "content") }

// BlobPath is where the content store keeps a blob. The helper reads the file itself, which
// no interface of the content store offers.
func (p Paths) BlobPath(dgst digest.Digest) string {
	return filepath.Join(p.ContentDir(), "blobs", dgst.Algorithm().String(), dgst.Encoded())
}

func (p Paths) snapshotsDir() string { return filepath.Join(p.Root, "snapshots") }
func (p Paths) namesPath() string    { return filepath.Join(p.Root, "names.json") }
