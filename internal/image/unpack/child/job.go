// Package child is what the confined process does that unpacks one layer: it decompresses the layer, decrypts an encrypted one,
// and writes its files. Package unpack starts it.
//
// It imports little, and no package that starts programs: what it imports is initialised for each layer.
package child

// The directories in the root of the child.
const (
	UpperName = "upper"
	LowerName = "lower"
)

// MemoryLimit of the child's cgroup, page cache of what it writes included. That of a large layer may have more, for its page
// cache; see unpack.Runner.
const MemoryLimit = 512 << 20

// cgroupFile is the descriptor that takes the child into its cgroup. It is the first one after the standard ones.
const cgroupFile = 3

// Job is what to unpack, and where.
type Job struct {
	// Upper is the directory that takes the layer's files, empty. The child sees it as UpperName.
	Upper string `json:"-"`
	// LowerRoot and Lower are the layers below, topmost first, relative to
	// LowerRoot. The child sees all of them as LowerName.
	LowerRoot string   `json:"-"`
	Lower     []string `json:"-"`
	// LayerSize is how many bytes the layer has as it is stored, 0 if that is not known.
	LayerSize int64 `json:"-"`
	// Below is set in the child when there are layers below.
	Below bool `json:"below,omitempty"`
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
	// Cgroup is set in the child when it enters a cgroup, by the file cgroupFile.
	Cgroup bool `json:"cgroup,omitempty"`
}

// Result of a job that succeeded.
type Result struct {
	// NeedsLower is set, and nothing else, when a job for Alone cannot be done:
	// directories get their owner and mode from the layers below.
	NeedsLower bool `json:"needsLower,omitempty"`
	// NeedsFiles is set, and nothing else, when a job without Whole cannot be done: the layer has another name of a file
	// of a layer below.
	NeedsFiles bool `json:"needsFiles,omitempty"`
	// DiffID is the digest of the uncompressed layer, "sha256:" and hexadecimal digits.
	DiffID string `json:"diffID"`
	// Size is the sum of the sizes of the layer's files.
	Size int64 `json:"size"`
	// Usage is what the files take on disk, nil if that is not known.
	Usage *Usage `json:"usage,omitempty"`
	// Root is set when the layer describes the root directory. If not, its attributes are those that it has
	// in the layers below: the job sets them, except for Alone.
	Root bool `json:"root,omitempty"`
	// Unsure are the deletions of a layer that was unpacked alone, relative to Upper: they must go where the layers
	// below do not have what they delete. The kernel lists those in a directory that is in one layer alone.
	Unsure Names `json:"unsure,omitempty"`
	// Opaque are the layer's directories, relative to Upper, that hide what the
	// layers below have in them. The daemon marks them.
	Opaque Names `json:"opaque,omitempty"`
}
