package image

import (
	"context"
	"time"

	"github.com/opencontainers/go-digest"
)

// Auditor is a store that accounts for its files and checks them.
type Auditor interface {
	// DiskUse says what images take on disk, and who uses it.
	DiskUse(ctx context.Context) (*DiskUse, error)
	// Check looks at the modes of the store's own files, reads all content and all unpacked layers, and
	// compares them with their digests. With repair it sets modes again, fetches damaged content again,
	// from archives that its images came from or from the registries that their names lead to, and
	// replaces damaged layers. A container that uses one keeps its files; new containers get the repaired
	// layer. seen, which may be nil, gets the progress, and each damaged object after its repair; it must
	// not block. The error is about the check itself; damage is in the report. The end of ctx ends the
	// check between two objects: what is repaired stays so. Checks run one at a time: State.
	Check(ctx context.Context, repair bool, seen func(CheckUpdate)) (*CheckReport, error)
}

// The stages of a check, as Progress has them. Done and Total of Reading and Comparing are bytes of all
// blobs and of all compressed layers, those of CheckFetching bytes of one blob.
const (
	CheckReading   = "reading"
	CheckFetching  = "fetching"
	CheckComparing = "comparing"
)

// InfoLostNames is the key of an ImageStatusResponse's Info (CRI) for an image that is not present because the store has lost it.
// The value has the names of it that a removal makes the store forget, in JSON.
const InfoLostNames = "lostNames"

// CheckUpdate is a moment of a check: its progress, or an object that it has found damaged.
type CheckUpdate struct {
	Progress Progress
	Damage   *Damage
}

// DiskUse is what a store has on disk, in bytes.
type DiskUse struct {
	Images []ImageUse `json:"images"`
	// Kept are layers of removed images, and damaged layers that a repair has replaced, that containers still use.
	Kept []LayerUse `json:"kept"`
	// Unfinished is content that is being fetched, or that a failed pull has left for a later one.
	Unfinished int64 `json:"unfinished"`
	// Total counts each blob and each layer once.
	Total int64 `json:"total"`
}

// ImageUse is what one image uses, in bytes.
type ImageUse struct {
	ID string `json:"id"`
	// Names are its tags, or its digests if it has no tag.
	Names []string `json:"names"`
	// Content are its blobs, compressed as the registry has them; Layers are its unpacked files.
	Content int64 `json:"content"`
	Layers  int64 `json:"layers"`
	// Own is the part of both that no other image uses, Shared the rest.
	Own    int64 `json:"own"`
	Shared int64 `json:"shared"`
	// Containers are the root filesystems that stand on its layers, by their keys: the ids of
	// containers, and those of sandboxes that mount it as a volume.
	Containers []string `json:"containers"`
}

// LayerUse is layers that containers use.
type LayerUse struct {
	// Chain is the topmost of them.
	Chain string `json:"chain"`
	// Bytes are those of layers that no image has, or has any more.
	Bytes      int64    `json:"bytes"`
	Containers []string `json:"containers"`
}

// CheckReport is what a check has found.
type CheckReport struct {
	// Blobs and Layers were read, Bytes of both in all.
	Blobs  int      `json:"blobs"`
	Layers int      `json:"layers"`
	Bytes  int64    `json:"bytes"`
	Damage []Damage `json:"damage"`
	// Unchecked are objects that could not be checked, and why: they may be damaged.
	Unchecked []string `json:"unchecked"`
	// Notes are what a check leaves out, and what starts have set aside.
	Notes []string `json:"notes"`
	// Quarantined is what starts have set aside, until somebody removes it.
	Quarantined []Quarantined `json:"quarantined"`
}

// Quarantined is what one start has set aside.
type Quarantined struct {
	// Dir is where it is.
	Dir string    `json:"dir"`
	At  time.Time `json:"at"`
	// Objects are what was set aside, and why. Lost are the names of images that were lost with it.
	Objects []string `json:"objects"`
	Lost    []string `json:"lost,omitempty"`
}

// Damage is one damaged object.
type Damage struct {
	// Object is "blob", "layer", "image" for one that a start has lost, or "file" or "directory" for one of
	// the store's own with a wrong mode or owner.
	Object string `json:"object"`
	// Digest is the digest of a blob, the chain id of a layer, or the digest that the names of a lost image
	// pointed to. Path is that of a file or a directory.
	Digest digest.Digest `json:"digest,omitempty"`
	Path   string        `json:"path,omitempty"`
	// Problem says what is wrong, with the path of the file of a layer.
	Problem string `json:"problem"`
	// Images are the names of the images that it concerns, Containers the root filesystems that use
	// it now.
	Images     []string `json:"images"`
	Containers []string `json:"containers"`
	// Repaired is true once it is whole again, and Repair says how. Otherwise Advice says why not, and
	// what to do.
	Repaired bool   `json:"repaired"`
	Repair   string `json:"repair,omitempty"`
	Advice   string `json:"advice,omitempty"`
}

// Name is what to call the object: its digest or its path.
func (d *Damage) Name() string { return d.Digest.String() + d.Path }
