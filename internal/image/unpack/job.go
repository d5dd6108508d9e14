// Package unpack applies image layers in a short-lived confined process.
//
// A layer is input from outside. It is decompressed and unpacked by a child that
// has a mount namespace whose root holds the layer's directory and a read-only
// view of the layers below, an empty network namespace, a pid namespace of its
// own, a memory limit, and of root's capabilities only those that writing files
// of any owner takes. The child gets the compressed layer as an open file and
// answers with one line of JSON. It also decrypts a layer that is encrypted.
//
// Run is the daemon's half, Main the child's.
package unpack

import (
	"github.com/opencontainers/go-digest"
)

// Job is what to unpack, and where.
type Job struct {
	// Upper is the directory that takes the layer's files, empty. Place is an
	// empty directory beside it, on which the child mounts its root.
	Upper string `json:"upper"`
	Place string `json:"place"`
	// LowerRoot and Lower are the layers below, topmost first, relative to
	// LowerRoot.
	LowerRoot string   `json:"lowerRoot,omitempty"`
	Lower     []string `json:"lower,omitempty"`
	// Alone unpacks without Lower, and answers NeedsLower when the layer has
	// entries whose meaning depends on the layers below.
	Alone bool `json:"alone,omitempty"`
	// WhiteoutFiles has the layer say what it deletes by files, as archives do, and not in the form of overlay mounts; see
	// sysfile.CopyLayers.
	WhiteoutFiles bool `json:"whiteoutFiles,omitempty"`
	// Whole is set when Lower has the files of the layers below. It has their directories and links alone without it, together
	// with WhiteoutFiles.
	Whole bool `json:"whole,omitempty"`
	// MaxBytes bounds what the layer may take on disk.
	MaxBytes int64 `json:"maxBytes"`
	// MaxLayer bounds the bytes of the layer's archive, unpacked; 0 for no bound.
	MaxLayer int64 `json:"maxLayer,omitempty"`
	// Secret decrypts the layer, nil if it is not encrypted. It is never among the arguments of the child.
	Secret *Secret `json:"-"`
	// Cgroup is the file through which the child enters its cgroup.
	Cgroup string `json:"cgroup,omitempty"`
}

// Result of a job that succeeded.
type Result struct {
	// NeedsLower is set, and nothing else, when a job for Alone cannot be done:
	// directories get their owner and mode from the layers below.
	NeedsLower bool `json:"needsLower,omitempty"`
	// NeedsFiles is set, and nothing else, when a job without Whole cannot be done: the layer has another name of a file
	// of a layer below.
	NeedsFiles bool `json:"needsFiles,omitempty"`
	// DiffID is the digest of the uncompressed layer.
	DiffID digest.Digest `json:"diffID"`
	// Size is the sum of the sizes of the layer's files.
	Size int64 `json:"size"`
	// Root is set when the layer describes the root directory. If not, its attributes are those that it has
	// in the layers below: the job sets them, except for Alone.
	Root bool `json:"root,omitempty"`
	// Unsure are the deletions of a layer that was unpacked alone, relative to Upper: they must go where the layers
	// below do not have what they delete. The kernel lists those in a directory that is in one layer alone.
	Unsure []string `json:"unsure,omitempty"`
	// Opaque are the layer's directories, relative to Upper, that hide what the
	// layers below have in them. Run marks them.
	Opaque []string `json:"opaque,omitempty"`
}

// answer is what the child writes to its standard output.
type answer struct {
	Result
	Error string `json:"error,omitempty"`
	// Kind is an index into errs.Kinds, -1 for none.
	Kind int `json:"kind"`
}
