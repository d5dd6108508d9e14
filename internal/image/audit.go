package image

import (
	"context"

	"github.com/opencontainers/go-digest"
)

// Auditor is a store that accounts for its files and checks them.
type Auditor interface {
	// DiskUse says what images take on disk, and who uses it.
	DiskUse(ctx context.Context) (*DiskUse, error)
	// Check reads all content and all unpacked layers, and compares them with their digests. With
	// repair it fetches damaged content again, from the registries that the names of its images
	// lead to, and unpacks damaged layers again. It changes no layer that a container uses. The
	// error is about the check itself; damage is in the report. Checks run one at a time: State.
	Check(ctx context.Context, repair bool) (*CheckReport, error)
}

// DiskUse is what a store has on disk, in bytes.
type DiskUse struct {
	Images []ImageUse `json:"images"`
	// Kept are layers of removed images that containers still use.
	Kept []LayerUse `json:"kept"`
	// Unfinished is content that is being fetched, or that a later pull continues.
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
	// Bytes are those of layers that no image has.
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
	// Notes are what could not be checked, and why, and what earlier repairs have set aside.
	Notes []string `json:"notes"`
}

// Damage is one damaged object.
type Damage struct {
	// Object is "blob" or "layer".
	Object string `json:"object"`
	// Digest is the digest of a blob, or the chain id of a layer.
	Digest digest.Digest `json:"digest"`
	// Problem says what is wrong, with the path of the file of a layer.
	Problem string `json:"problem"`
	// Images are the names of the images that it concerns, Containers the root filesystems that use
	// it now.
	Images     []string `json:"images"`
	Containers []string `json:"containers"`
	// Repaired is true once it is whole again. Otherwise Advice says why not, and what to do.
	Repaired bool   `json:"repaired"`
	Advice   string `json:"advice,omitempty"`
}
