package check

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/image"
	"github.com/berthrun/berth/internal/image/database"
	"github.com/berthrun/berth/internal/image/store"
)

// patience is how long a request for a root filesystem waits for layers that are unpacked again. A kubelet waits two minutes,
// and then asks again.
const patience = 30 * time.Second

// MendLayers finds the layers of an image whose files are missing, and unpacks them again in their place. It returns nil when
// all files are there. It does this in a job. If the job takes longer than a request can wait, the error is Unavailable, and the
// job goes on.
func (c *Checker) MendLayers(ctx context.Context, imageID string) error {
	img, err := c.Store.Stored(ctx, imageID)
	if err != nil {
		return fmt.Errorf("files of a layer of image %s are missing, and it cannot be unpacked again; pull or import the image: %w", imageID, err)
	}
	missing, err := c.missingLayers(ctx, img)
	if err != nil || len(missing) == 0 {
		return err
	}
	what := fmt.Sprintf("the files of layer %s of image %s are missing", strings.Join(missing, ", "), nameOf(img))
	done := c.mends.DoChan(imageID, func() (any, error) {
		c.Log.Warn("the files of layers are missing; unpacking these again", "image", nameOf(img), "layers", missing)
		return nil, errs.Guard("unpacking of missing layers", func() error { return c.unpackAgain(ctx, img) })
	})
	late := time.NewTimer(patience)
	defer late.Stop()
	select {
	case got := <-done:
		if got.Err != nil {
			return fmt.Errorf("%s, and it cannot be unpacked again; pull or import the image: %w", what, got.Err)
		}
		return nil
	case <-late.C:
	case <-ctx.Done():
	}
	return fmt.Errorf("%s; it is being unpacked again (berth jobs), try again: %w", what, errs.Unavailable)
}

// missingLayers returns the layers of an image whose files are missing, lowest first.
func (c *Checker) missingLayers(ctx context.Context, img store.Stored) (missing []string, err error) {
	ctx = database.WithNamespace(ctx)
	for i, chain := range img.Tree.Chains() {
		whole, err := c.Layers.Whole(ctx, img.Tree, i)
		if err != nil {
			return nil, err
		}
		if !whole {
			missing = append(missing, chain)
		}
	}
	return missing, nil
}

// unpackAgain is the job of MendLayers. It does not end with the request that began it. Blobs that are damaged are fetched
// again after it.
func (c *Checker) unpackAgain(ctx context.Context, img store.Stored) error {
	ctx, end, err := c.Background.Begin(context.WithoutCancel(ctx))
	if err != nil {
		return err
	}
	defer end()
	job := image.Job{Kind: "unpack layers again", Key: nameOf(img), ID: strings.TrimPrefix(img.ID, "sha256:"), Waited: true}
	err = c.Jobs.Run(ctx, job, func(ctx context.Context, at image.Stage) error {
		stages := image.NewStages(at)
		stages.Say("unpack", "the disk")
		return c.Store.UnpackAgain(ctx, img.Tree)
	})
	if err == nil {
		c.Log.Info("unpacked missing layers again", "image", nameOf(img))
		return nil
	}
	for _, layer := range img.Tree.Layers {
		c.WantBlob(layer.Digest)
	}
	return err
}
