package database

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"github.com/containerd/containerd/v2/core/snapshots"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/image/database/crosscheck"
	"github.com/berthrun/berth/internal/sys/sysfile"
)

// LayerLabel is the content of a file beside the files of a layer. It identifies the layer
// without the snapshotter's database. It is written when the layer is complete.
type LayerLabel struct {
	Chain  string `json:"chain"`
	Parent string `json:"parent,omitempty"`
	// Sources is set for a layer that was decrypted: what it was shown to be the content of. Its chain ID is no secret,
	// since the config of an encrypted image is not encrypted. So an image whose config merely names the layer must not
	// get its files: another source is unpacked, and compared with the chain ID, before it is one of Sources.
	Sources []string `json:"sources,omitempty"`
	// WhiteoutFiles is set for a layer that says in the form of archives what it deletes, so that no overlay can have it;
	// see sysfile.CopyLayers.
	WhiteoutFiles bool `json:"whiteoutFiles,omitempty"`
	// Root is set when the directory has the owner, mode, attributes and times of the image's root directory. That of a layer
	// which something else has unpacked, as an older berth, has those that it happened to get.
	Root bool `json:"root,omitempty"`
}

// is reports whether two labels identify the same layer.
func (l LayerLabel) is(other LayerLabel) bool {
	return l.Chain == other.Chain && l.Parent == other.Parent
}

const (
	// maxSources bounds the sources of a label. The oldest goes first.
	maxSources = 64
	// unknownSource is the source in the place of those of a damaged label.
	unknownSource = "unknown"
)

const (
	// LabelName is the label's file in a layer's directory, FilesName the directory of the
	// layer's files in it.
	LabelName = "layer"
	FilesName = "fs"
	// ReplacedPrefix begins the names of directories in it with files that only running containers have still; see package
	// rootfs.
	ReplacedPrefix = "replaced-"
)

// WriteLayerLabel labels the snapshot whose files are in upper.
func WriteLayerLabel(upper string, label LayerLabel) error {
	data, err := json.Marshal(label)
	if err != nil {
		return err
	}
	return sysfile.Replace(filepath.Join(filepath.Dir(upper), LabelName), data)
}

// foundLabel is the label of a directory. err is why it cannot be read. complete is set if the layer's files are beside it.
type foundLabel struct {
	LayerLabel
	err      error
	complete bool
}

// readLabels reads those of all directories, by their names.
func readLabels(layersDir string) (map[string]foundLabel, error) {
	entries, err := os.ReadDir(layersDir)
	if err != nil {
		return nil, errs.IgnoreNotExist(err)
	}
	all := make(map[string]foundLabel, len(entries))
	for _, entry := range entries {
		dir := filepath.Join(layersDir, entry.Name())
		label, err := readLabel(dir)
		found := foundLabel{LayerLabel: label, err: err}
		if err == nil {
			_, err = os.Lstat(filepath.Join(dir, FilesName)) // a link leads to a preloaded layer
			found.complete = err == nil
		}
		all[entry.Name()] = found
	}
	return all, nil
}

// ReadLayerLabel reads the label of a layer's directory. It returns an error for a directory that
// is no complete layer.
func ReadLayerLabel(dir string) (LayerLabel, error) {
	label, err := readLabel(dir)
	if err != nil {
		return label, err
	}
	_, err = os.Lstat(filepath.Join(dir, FilesName)) // a link leads to a preloaded layer
	return label, err
}

func readLabel(dir string) (LayerLabel, error) {
	var label LayerLabel
	data, err := ReadOwn(filepath.Join(dir, LabelName))
	if err != nil {
		return label, err
	}
	if err := json.Unmarshal(data, &label); err != nil {
		return label, err
	}
	if err := digest.Digest(label.Chain).Validate(); err != nil {
		return label, err
	}
	if label.Parent != "" {
		if err := digest.Digest(label.Parent).Validate(); err != nil {
			return label, err
		}
	}
	return label, nil
}

// unknownLabel is the label in the place of a damaged one, of a layer whose files are in a directory.
func unknownLabel(chain, parent, files string) LayerLabel {
	return LayerLabel{Chain: chain, Parent: parent, Sources: []string{unknownSource}, WhiteoutFiles: mayHaveWhiteoutFiles(files)}
}

// mayHaveWhiteoutFiles is true also for a layer that cannot be read: such a layer is for no overlay either.
func mayHaveWhiteoutFiles(files string) bool {
	has, err := sysfile.HasWhiteoutFiles(files)
	return has || errs.IgnoreNotExist(err) != nil
}

// HasWhiteoutFiles reports whether a committed layer says in the form of archives what it deletes. otherwise is the answer for
// a layer that does not say.
func (d *DB) HasWhiteoutFiles(ctx context.Context, chain string, otherwise bool) (bool, error) {
	dir, _, err := d.LayerFiles(ctx, chain)
	if err != nil {
		return false, err
	}
	label, err := readLabel(filepath.Dir(dir))
	if err != nil {
		return otherwise, nil //nolint:nilerr // the files are gone, too, or RestoreFiles and AddSource write a label
	}
	return label.WhiteoutFiles, nil
}

// IsFrom reports whether a committed layer may be used for an image that has source in its place: it was never
// decrypted, or AddSource was called with this source.
func (d *DB) IsFrom(ctx context.Context, chain, source string) (bool, error) {
	dir, _, err := d.LayerFiles(ctx, chain)
	if err != nil {
		return false, err
	}
	label, err := readLabel(filepath.Dir(dir))
	if err != nil {
		return false, nil //nolint:nilerr // AddSource writes a label
	}
	return len(label.Sources) == 0 || slices.Contains(label.Sources, source), nil
}

// AddSource records that source was unpacked and has the content of a committed layer. decrypted is set for a source that
// is encrypted.
func (d *DB) AddSource(ctx context.Context, chain, source string, decrypted bool) error {
	d.labels.Lock()
	defer d.labels.Unlock()
	dir, parent, err := d.LayerFiles(ctx, chain)
	if err != nil {
		return err
	}
	label, err := readLabel(filepath.Dir(dir))
	switch {
	case err != nil:
		label = unknownLabel(chain, parent, dir)
	case slices.Contains(label.Sources, source), len(label.Sources) == 0 && !decrypted:
		return nil
	}
	label.Sources = append(label.Sources, source)
	label.Sources = label.Sources[max(0, len(label.Sources)-maxSources):]
	if err := WriteLayerLabel(dir, label); err != nil {
		return fmt.Errorf("cannot label layer %s: %w", chain, errs.OfDisk(err))
	}
	return nil
}

// LabelLayers labels the layers whose label is missing, or cannot be read, from the snapshots' database, which must not be open. It
// returns nil if the database is missing.
func LabelLayers(ctx context.Context, paths Paths) (err error) {
	if _, err := os.Lstat(paths.SnapshotsFile()); err != nil {
		return nil //nolint:nilerr // there is none
	}
	store, err := openLayerStore(paths, os.RemoveAll)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, store.Close()) }()
	labels, err := readLabels(paths.LayersDir())
	if err != nil {
		return err
	}
	return labelLayers(WithNamespace(ctx), store, labels, false) // it is to be rebuilt from them
}

// labelLayers labels the committed snapshots that have no label, or one that cannot be read. A store that an
// earlier version made has none. labels are those that there are. replace labels those again whose label is of another layer.
func labelLayers(ctx context.Context, store snapshots.Snapshotter, labels map[string]foundLabel, replace bool) error {
	users := map[string]int{} // of each directory: more than one in a damaged database
	err := store.Walk(ctx, func(_ context.Context, info snapshots.Info) error {
		users[UpperDir(info)]++
		return nil
	})
	if err != nil && !errdefs.IsNotFound(err) { // there never was a snapshot
		return fmt.Errorf("cannot list layers: %w", err)
	}
	var errList []error
	err = store.Walk(ctx, func(_ context.Context, info snapshots.Info) error {
		upper := UpperDir(info)
		if info.Kind != snapshots.KindCommitted || upper == "" || users[upper] > 1 {
			return nil
		}
		dir := filepath.Dir(upper)
		label := LayerLabel{Chain: crosscheck.ChainOf(info.Name), Parent: crosscheck.ChainOf(info.Parent)}
		found, ok := labels[filepath.Base(dir)]
		if ok && found.err == nil && (found.is(label) || !replace) {
			return nil
		}
		if ok && !errors.Is(found.err, os.ErrNotExist) {
			label.Sources = []string{unknownSource}
		}
		// A layer without a directory is unpacked again later. RemoveAll opens the directory: a named pipe in its place
		// would block it.
		if fi, err := os.Lstat(dir); err != nil || !fi.IsDir() {
			return errs.IgnoreNotExist(err)
		}
		label.WhiteoutFiles = mayHaveWhiteoutFiles(upper)
		// What is in the place of the label may be a link, or a directory.
		err := os.RemoveAll(filepath.Join(dir, LabelName))
		if err == nil {
			err = WriteLayerLabel(upper, label)
		}
		if err = errs.IgnoreNotExist(err); err != nil {
			errList = append(errList, err)
		}
		return nil
	})
	if err != nil && !errdefs.IsNotFound(err) { // there never was a snapshot
		return fmt.Errorf("cannot list layers: %w", err)
	}
	return errors.Join(errList...)
}
