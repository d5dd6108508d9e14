package repair

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
	imagespec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/image/database"
	"github.com/berthrun/berth/internal/image/importdirs"
	"github.com/berthrun/berth/internal/image/lost"
	"github.com/berthrun/berth/internal/image/names"
	"github.com/berthrun/berth/internal/image/preload"
	"github.com/berthrun/berth/internal/image/tree"
	"github.com/berthrun/berth/internal/sys/sysfile"
)

// rebuilder makes the records of a store whose databases are new.
type rebuilder struct {
	db    *database.DB
	under *Rebuilding
	// used lists the topmost snapshots below root filesystems.
	used func() ([]string, error)
	// names are the copy of the names, nil if it is lost too.
	names []database.NamedImage
	// lost are those whose images could not be rebuilt.
	lost   lost.Losses
	report report
	// keep are blobs of images that are there again, ids those images.
	keep map[digest.Digest]bool
	ids  map[string]*tree.Tree
	// found are the directories of layers by chain, restored those that are snapshots again.
	found    map[string]foundLayer
	restored map[string]bool
}

type foundLayer struct {
	database.LayerLabel
	dir string
}

// Rebuild fills both databases, which are new and open, and writes a report. used returns the
// topmost snapshots below the existing root filesystems.
func (r Repairer) Rebuild(ctx context.Context, db *database.DB, under *Rebuilding, used func() ([]string, error)) error {
	ctx = database.WithNamespace(ctx)
	b := &rebuilder{
		db: db, under: under, used: used, report: report{At: time.Now().UTC(), Reason: under.Reason},
		lost: lost.Losses{}, keep: map[digest.Digest]bool{}, ids: map[string]*tree.Tree{},
		found: map[string]foundLayer{}, restored: map[string]bool{},
	}
	var err error
	if b.names, _, err = db.ReadNames(); err != nil {
		r.Log.Warn("cannot read the copy of the images' names; rebuilding images without names", "error", err)
	}
	// A rebuild that is interrupted starts over, so one sync at its end is enough.
	if err := db.Unsynced(func() error { return b.run(ctx) }); err != nil {
		return err
	}
	r.Lost.Add(b.lost.Images())
	data, err := json.MarshalIndent(b.report, "", "  ")
	if err != nil {
		return err
	}
	if err := sysfile.ReplaceSynced(filepath.Join(under.Dir, reportName), data); err != nil {
		return err
	}
	r.Log.Error(b.report.text(under.Dir, b.report.losses()), "images", b.report.Images, "lost", len(b.report.Lost), "quarantine", under.Dir)
	return os.Remove(r.rebuildingPath())
}

func (r *rebuilder) run(ctx context.Context) error {
	for _, step := range []func(context.Context) error{
		r.namedImages, r.namelessImages, r.findLayers, r.restoreLayers, r.forgetPreloaded, r.setBlobsAside, r.finish,
	} {
		if err := step(ctx); err != nil {
			return err
		}
	}
	return nil
}

// namedImages records the images whose names are known.
func (r *rebuilder) namedImages(ctx context.Context) error {
	for _, named := range r.names {
		t, err := r.adoptTree(ctx, named.Name, named.Platform, named.Target)
		if err != nil {
			if ctx.Err() != nil || diskFull(err) {
				return err
			}
			r.lost.Note(named.Target, named.Name, named.Pinned)
			if !names.IsID(named.Name) {
				r.report.Lost = append(r.report.Lost, fmt.Sprintf("%s: %v", named.Name, err))
			}
			continue
		}
		t.Through = named.Through
		if err := r.db.WriteRecords(ctx, t, []string{named.Name}, nil, named.Pinned, nil); err != nil {
			return err
		}
		r.ids[t.ID()] = t
	}
	return nil
}

func diskFull(err error) bool { return errors.Is(errs.OfDisk(err), errs.Exhausted) }

// namelessImages records, by their ids, the images of manifests that no name leads to.
func (r *rebuilder) namelessImages(ctx context.Context) error {
	return r.blobs(func(dgst digest.Digest, path string, fi os.FileInfo) error {
		if r.keep[dgst] || fi.Size() > tree.MaxDocument {
			return nil
		}
		data, err := os.ReadFile(path)
		if err != nil || dgst.Algorithm().FromBytes(data) != dgst {
			return nil //nolint:nilerr // damaged content is of no image
		}
		var head imagespec.Manifest
		if json.Unmarshal(data, &head) != nil || head.Config.Digest == "" || len(head.Layers) == 0 {
			return nil
		}
		mediaType := head.MediaType
		if mediaType == "" {
			mediaType = imagespec.MediaTypeImageManifest
		}
		t, err := r.adoptTree(ctx, dgst.String(), "", imagespec.Descriptor{MediaType: mediaType, Digest: dgst, Size: int64(len(data))})
		if err != nil {
			return context.Cause(ctx) // of another platform, or incomplete
		}
		if r.ids[t.ID()] != nil {
			return nil
		}
		if err := r.db.WriteRecords(ctx, t, []string{t.ID()}, nil, false, nil); err != nil {
			return err
		}
		r.ids[t.ID()] = t
		r.report.Nameless++
		return nil
	})
}

// blobs calls fn for each blob on disk.
func (r *rebuilder) blobs(fn func(dgst digest.Digest, path string, fi os.FileInfo) error) error {
	paths, err := filepath.Glob(filepath.Join(r.db.ContentDir(), imagespec.ImageBlobsDir, "*", "*"))
	if err != nil {
		return err
	}
	for _, path := range paths {
		dgst := digest.NewDigestFromEncoded(digest.Algorithm(filepath.Base(filepath.Dir(path))), filepath.Base(path))
		fi, err := os.Stat(path)
		if err != nil || dgst.Validate() != nil || !fi.Mode().IsRegular() {
			continue // opening the store sets aside files that are not blobs
		}
		if err := fn(dgst, path, fi); err != nil {
			return err
		}
	}
	return nil
}

// adoptTree reads an image from blobs on disk, and has the store's content include them.
func (r *rebuilder) adoptTree(ctx context.Context, name, platform string, target imagespec.Descriptor) (*tree.Tree, error) {
	t, err := r.db.ReadKnownTree(ctx, name, platform, target, r.adoptDocument)
	if err != nil {
		return nil, err
	}
	for _, layer := range t.Layers {
		// One that is missing is missed when the layer must be unpacked again.
		if err := errs.IgnoreNotExist(r.db.AdoptFile(ctx, layer)); err != nil {
			return nil, err
		}
	}
	for _, desc := range append(append(append([]imagespec.Descriptor{}, t.Indexes...), t.Layers...), t.Target, t.Manifest, t.Config) {
		r.keep[desc.Digest] = true
	}
	return t, nil
}

// adoptDocument is the tree.Provide for a rebuild.
func (r *rebuilder) adoptDocument(ctx context.Context, desc imagespec.Descriptor) error {
	data, err := sysfile.ReadRegular(r.db.BlobPath(desc.Digest), desc.Size+1)
	if err != nil {
		return err
	}
	if got := desc.Digest.Algorithm().FromBytes(data); got != desc.Digest {
		return fmt.Errorf("blob %s has other content, with digest %s", desc.Digest, got)
	}
	return r.db.AdoptFile(ctx, desc)
}

// findLayers finds the directories of whole layers among those that were set aside.
func (r *rebuilder) findLayers(context.Context) error {
	dirs, err := filepath.Glob(filepath.Join(r.under.Dir, "layers-*", "*"))
	if err != nil {
		return err
	}
	for _, dir := range dirs {
		if label, err := database.ReadLayerLabel(dir); err == nil {
			r.found[label.Chain] = foundLayer{label, dir}
		}
	}
	return nil
}

// restoreLayers makes snapshots of the layers that images and root filesystems have.
func (r *rebuilder) restoreLayers(ctx context.Context) error {
	for _, t := range r.ids {
		chains := t.Chains()
		if err := r.restore(ctx, chains[len(chains)-1]); err != nil {
			return err
		}
	}
	used, err := r.used()
	if err != nil {
		return err
	}
	for _, chain := range used {
		if err := r.restore(ctx, chain); err != nil {
			return err
		}
		if !r.restored[chain] {
			continue
		}
		if err := r.db.KeepForContainers(ctx, chain); err != nil {
			return err
		}
	}
	return nil
}

// restore makes a layer a snapshot again, after those below it. It skips a layer if it, or one
// below it, was not found: then its image is unpacked again.
func (r *rebuilder) restore(ctx context.Context, chain string) error {
	var way []foundLayer
	for chain != "" && !r.restored[chain] {
		layer, ok := r.found[chain]
		if !ok || len(way) > tree.MaxLayers {
			return nil
		}
		way = append(way, layer)
		chain = layer.Parent
	}
	for i := len(way) - 1; i >= 0; i-- {
		if err := r.restoreOne(ctx, way[i]); err != nil {
			return fmt.Errorf("layer %s: %w", way[i].Chain, err)
		}
		r.restored[way[i].Chain] = true
		r.report.Layers++
	}
	return nil
}

func (r *rebuilder) restoreOne(ctx context.Context, layer foundLayer) error {
	return r.db.WithSnapshot(ctx, layer.Parent, func(key string) error {
		info, err := r.db.Snapshots.Stat(ctx, key)
		if err != nil {
			return err
		}
		upper := database.UpperDir(info)
		if err := os.Remove(upper); err != nil {
			return err
		}
		if err := database.WriteLayerLabel(upper, layer.LayerLabel); err != nil {
			return err
		}
		// The rename does not affect mounts of it.
		if err := os.Rename(filepath.Join(layer.dir, database.FilesName), upper); err != nil {
			return err
		}
		if err := moveReplaced(layer.dir, filepath.Dir(upper)); err != nil {
			return err
		}
		return r.db.CommitSnapshot(ctx, layer.LayerLabel, key)
	})
}

// moveReplaced moves replaced files, which running containers have, to the new directory of their layer.
func moveReplaced(from, to string) error {
	dirs, err := filepath.Glob(filepath.Join(from, database.ReplacedPrefix+"*"))
	for _, dir := range dirs {
		err = errors.Join(err, os.Rename(dir, filepath.Join(to, filepath.Base(dir))))
	}
	return err
}

// forgetPreloaded lets packages preload and importdirs add their images again if the names are lost.
func (r *rebuilder) forgetPreloaded(context.Context) error {
	if r.names != nil {
		return nil
	}
	return errors.Join(preload.Forget(r.db.Root), importdirs.Forget(r.db.Root))
}

// setBlobsAside moves content of no image to the quarantine: garbage collection would remove it.
func (r *rebuilder) setBlobsAside(ctx context.Context) error {
	return r.blobs(func(dgst digest.Digest, path string, _ os.FileInfo) error {
		if r.keep[dgst] {
			return nil
		}
		// The documents of an image that is lost in the end are recorded.
		if err := r.db.Content.Delete(ctx, dgst); err != nil && !errdefs.IsNotFound(err) {
			return err
		}
		to := filepath.Join(r.under.Dir, imagespec.ImageBlobsDir, dgst.Algorithm().String(), dgst.Encoded())
		if err := os.MkdirAll(filepath.Dir(to), 0o700); err != nil {
			return err
		}
		r.report.Blobs++
		return os.Rename(path, to)
	})
}

// finish removes the rest of directories whose files are in use again, and counts.
func (r *rebuilder) finish(context.Context) error {
	r.report.Images = len(r.ids)
	dirs, err := filepath.Glob(filepath.Join(r.under.Dir, "layers-*", "*"))
	if err != nil {
		return err
	}
	for _, dir := range dirs {
		_, err := os.Lstat(filepath.Join(dir, database.FilesName))
		replaced, _ := filepath.Glob(filepath.Join(dir, database.ReplacedPrefix+"*")) // running containers may have these files
		if err == nil || len(replaced) > 0 {
			r.report.Directories++
			continue
		}
		if err := os.RemoveAll(dir); err != nil {
			return err
		}
	}
	tops, err := filepath.Glob(filepath.Join(r.under.Dir, "layers-*"))
	if err != nil {
		return err
	}
	for _, top := range tops {
		_ = os.Remove(top) // those that are empty
	}
	return nil
}
