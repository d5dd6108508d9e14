package database

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/containerd/containerd/v2/core/snapshots"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"

	"github.com/berthrun/berth/internal/errs"
)

// LayerLabel is the content of a file beside the files of a layer. It identifies the layer
// without the snapshotter's database. It is written when the layer is complete.
type LayerLabel struct {
	Chain  string `json:"chain"`
	Parent string `json:"parent,omitempty"`
}

const (
	// LabelName is the label's file in a layer's directory, FilesName the directory of the
	// layer's files in it.
	LabelName = "layer"
	FilesName = "fs"
)

// WriteLayerLabel labels the snapshot whose files are in upper.
func WriteLayerLabel(upper string, label LayerLabel) error {
	data, err := json.Marshal(label)
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(filepath.Dir(upper), LabelName), data, 0o600)
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

// LabelLayers labels the layers that have no label from the snapshots' database, which must be
// intact and not open. It returns nil if there is no database.
func LabelLayers(ctx context.Context, paths Paths) (err error) {
	if _, err := os.Lstat(paths.SnapshotsFile()); err != nil {
		return nil //nolint:nilerr // there is none
	}
	store, err := openLayerStore(paths, os.RemoveAll)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, store.Close()) }()
	return labelLayers(WithNamespace(ctx), store)
}

// labelLayers labels the committed snapshots that have no label, or a damaged one. A store that an
// earlier version made has none.
func labelLayers(ctx context.Context, store snapshots.Snapshotter) error {
	var errList []error
	err := store.Walk(ctx, func(_ context.Context, info snapshots.Info) error {
		upper := UpperDir(info)
		if info.Kind != snapshots.KindCommitted || upper == "" {
			return nil
		}
		dir := filepath.Dir(upper)
		label := LayerLabel{Chain: chainOf(info.Name), Parent: chainOf(info.Parent)}
		if found, err := readLabel(dir); err == nil && found == label {
			return nil
		}
		// A layer without a directory is unpacked again later. RemoveAll opens the directory: a named pipe in its place
		// would block it.
		if fi, err := os.Lstat(dir); err != nil || !fi.IsDir() {
			return errs.IgnoreNotExist(err)
		}
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

// chainOf removes the prefix of a snapshot's name in the metadata: namespace and number.
func chainOf(name string) string { return name[strings.LastIndexByte(name, '/')+1:] }
