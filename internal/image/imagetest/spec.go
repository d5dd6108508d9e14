// Package imagetest builds small images from files: deterministic archives for
// tests and for the demo, without a registry, a daemon or a Dockerfile.
//
//	err := imagetest.Archive(w, imagetest.Spec{
//		Name:       "docker.io/library/hello:1",
//		Files:      []imagetest.File{{Path: "/bin/hello", Source: "out/hello", Mode: 0o755}},
//		Entrypoint: []string{"/bin/hello"},
//	})
//
// The same Spec gives the same bytes on every machine.
package imagetest

import (
	"time"

	imagespec "github.com/opencontainers/image-spec/specs-go/v1"
)

// Spec describes an image.
type Spec struct {
	// Name is the image's reference; "" makes an image without one.
	Name string
	// Layers of the image, lowest first.
	Layers []Layer
	// Files are one more layer on top of Layers, for images of one layer.
	Files []File

	// Entrypoint and the fields below are the image's configuration.
	Entrypoint, Cmd, Env []string
	User, WorkingDir     string
	StopSignal           string
	Labels               map[string]string
	// Annotations are the manifest's.
	Annotations  map[string]string
	Volumes      []string
	ExposedPorts []string
	// OS and Architecture default to linux and the architecture of this program.
	OS, Architecture, Variant string
	// Created is zero (the Unix epoch) unless set.
	Created time.Time
	// History is that of the image's config: none unless set.
	History []imagespec.History
	// Compression of the layers: "" (none), "gzip" or "zstd".
	Compression string
}

// Layer is the content of one layer, in the order of its entries.
type Layer []File

// File is one entry of a layer. It is a regular file, unless Dir, Symlink,
// Hardlink or Device says otherwise. Missing parents are made, 0755 root:root.
type File struct {
	// Path within the image; a leading slash is not needed.
	Path string
	// Content of a regular file; Source, if set, is a file of this host to read
	// it from.
	Content []byte
	Source  string
	// Mode bits as chmod knows them (04755); 0 means 0644, and 0755 for directories.
	Mode     int64
	UID, GID int

	Dir      bool
	Symlink  string
	Hardlink string
	// Device is 'c', 'b' or 'p' for a character device, a block device or a FIFO.
	Device       byte
	Major, Minor int64
	// Xattrs by full name ("user.x").
	Xattrs map[string]string
	// Raw entries are written under Path as it is, and no parents are made: for
	// hostile archives.
	Raw bool
}

// Whiteout is the entry that deletes path from the layers below.
func Whiteout(path string) File {
	dir, base := split(path)
	return File{Path: dir + ".wh." + base}
}

// Opaque is the entry that hides what the layers below have in dir.
func Opaque(dir string) File {
	return File{Path: dir + "/.wh..wh..opq"}
}
