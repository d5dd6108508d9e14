package database

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
	imagespec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/berthrun/berth/internal/image/tree"
)

// Labels as containerd's CRI plugin writes them, so that its tools agree with us.
const (
	managedLabel, managedValue = "io.cri-containerd.image", "managed"
	pinnedLabel, pinnedValue   = "io.cri-containerd.pinned", "pinned"

	// snapshottersLabel has the names of the snapshotters that have an image's layers, separated by commas. snapshotter is the
	// store itself, which alone has them without this label.
	snapshottersLabel = "run.berth.snapshotters"

	// platformLabel has the platform that an image was chosen for, if that is not the node's. Then the record points to the
	// manifest, and throughLabel has the indexes that led to it, in JSON: the registry gives their digests to the name.
	platformLabel = "run.berth.platform"
	throughLabel  = "run.berth.through"

	contentRefLabel  = "containerd.io/gc.ref.content."
	snapshotRefLabel = "containerd.io/gc.ref.snapshot." + snapshotter
)

// WriteRecords points the fresh names to the image. The others, which it had
// before, keep the manifest that they were pulled with. snapshotters are those that
// have its layers, see SnapshottersOf; nil is the store alone. The names keep what a pull has fetched: if the context is that of
// a pull, its lease ends in the same transaction, so the pull may fetch and unpack nothing after that.
func (d *DB) WriteRecords(ctx context.Context, t *tree.Tree, fresh, others []string, pinned bool, snapshotters []string) error {
	labels := map[string]string{managedLabel: managedValue}
	if len(snapshotters) > 0 && !slices.Equal(snapshotters, []string{snapshotter}) {
		labels[snapshottersLabel] = strings.Join(snapshotters, ",")
	}
	if pinned {
		labels[pinnedLabel] = pinnedValue
	}
	own, err := ownLabels(t)
	if err != nil {
		return err
	}
	// The collector locks the content store while it waits for a transaction. Others only share that lock.
	d.collection.Lock()
	defer d.collection.Unlock()
	p := pullIn(ctx)
	err = d.update(ctx, func(ctx context.Context) error {
		if err := d.link(ctx, t); err != nil {
			return err
		}
		for _, name := range fresh {
			img := images.Image{Name: name, Target: t.Target, Labels: merged(labels, own)}
			if strings.HasSuffix(name, "@"+t.Manifest.Digest.String()) {
				img.Target = t.Manifest
			}
			_, err := d.Images.Update(ctx, img)
			if errdefs.IsNotFound(err) {
				_, err = d.Images.Create(ctx, img)
			}
			if err != nil {
				return fmt.Errorf("name %s: %w", name, err)
			}
		}
		for _, name := range others {
			old, err := d.Images.Get(ctx, name)
			if err == nil {
				_, err = d.Images.Update(ctx, images.Image{Name: name, Labels: merged(labels, old.Labels)}, "labels")
			}
			if err != nil {
				return fmt.Errorf("name %s: %w", name, err)
			}
		}
		return p.end(ctx)
	})
	if err == nil && p != nil {
		p.ended = true
	}
	return err
}

// ownLabels are those that each record of an image has of its own: records of one image may have different ones.
func ownLabels(t *tree.Tree) (map[string]string, error) {
	if t.Platform == "" {
		return nil, nil
	}
	own := map[string]string{platformLabel: t.Platform}
	if len(t.Through) > 0 {
		through := make([]imagespec.Descriptor, len(t.Through))
		for i, index := range t.Through {
			through[i] = imagespec.Descriptor{MediaType: index.MediaType, Digest: index.Digest, Size: index.Size}
		}
		data, err := json.Marshal(through)
		if err != nil {
			return nil, err
		}
		own[throughLabel] = string(data)
	}
	return own, nil
}

// merged are labels, and those of has that a record has of its own.
func merged(labels, has map[string]string) map[string]string {
	all := maps.Clone(labels)
	for _, key := range []string{platformLabel, throughLabel} {
		if value, ok := has[key]; ok {
			all[key] = value
		}
	}
	return all
}

// PlatformOf returns the platform that the image of a record was chosen for, "" for the node's.
func (d *DB) PlatformOf(ctx context.Context, name string) (string, error) {
	record, err := d.Images.Get(ctx, name)
	if err != nil {
		return "", fmt.Errorf("cannot look up %s: %w", name, err)
	}
	return PlatformIn(record), nil
}

// PlatformIn is the platform of a record; see PlatformOf.
func PlatformIn(record images.Image) string { return record.Labels[platformLabel] }

// throughOf are the indexes that led to the manifest of a record, none if its label cannot be read.
func throughOf(record images.Image) []imagespec.Descriptor {
	var through []imagespec.Descriptor
	if json.Unmarshal([]byte(record.Labels[throughLabel]), &through) != nil {
		return nil
	}
	return through
}

// DeleteRecords removes names, first from their copy. keep, if not "", is a snapshot that containers use and that is
// kept for them from then on.
func (d *DB) DeleteRecords(ctx context.Context, names map[string]bool, keep string) (err error) {
	if len(names) == 0 && keep == "" {
		return nil
	}
	free := d.leaveOut(ctx, names)
	defer func() {
		free()
		if err != nil {
			d.SaveNames(ctx)
		}
	}()
	return d.update(ctx, func(ctx context.Context) error {
		if keep != "" {
			if err := d.KeepForContainers(ctx, keep); err != nil {
				return err
			}
		}
		for name := range names {
			if err := d.Images.Delete(ctx, name); err != nil && !errdefs.IsNotFound(err) {
				return err
			}
		}
		return nil
	})
}

// IsPinned reports whether the image of a record is pinned.
func IsPinned(record images.Image) bool { return record.Labels[pinnedLabel] == pinnedValue }

// UnpinRecords takes the pin off the records with these names.
func (d *DB) UnpinRecords(ctx context.Context, names []string) error {
	return d.update(ctx, func(ctx context.Context) error {
		for _, name := range names {
			record, err := d.Images.Get(ctx, name)
			if err != nil {
				return err
			}
			labels := maps.Clone(record.Labels)
			delete(labels, pinnedLabel)
			if _, err := d.Images.Update(ctx, images.Image{Name: name, Labels: labels}, "labels"); err != nil {
				return err
			}
		}
		return nil
	})
}

// SnapshottersOf are the snapshotters that have the layers of a record's image: names of proxy snapshotters, and
// image.OverlaySnapshotter if it was unpacked in the store.
func SnapshottersOf(record images.Image) []string {
	if names := record.Labels[snapshottersLabel]; names != "" {
		return strings.Split(names, ",")
	}
	return []string{snapshotter}
}

// Relink is link for an image whose content lacks one of these labels, or has another one: without it the collector would remove
// what the image needs.
func (d *DB) Relink(ctx context.Context, t *tree.Tree) error {
	for blob, labels := range links(t) {
		info, err := d.Content.Info(ctx, blob)
		if err != nil {
			return fmt.Errorf("cannot look up blob %s: %w", blob, err)
		}
		for key, value := range labels {
			if info.Labels[key] != value {
				d.log.Warn("labelling a blob again, whose record in the database is damaged", "blob", blob, "label", key, "want", value, "got", info.Labels[key])
				return d.update(ctx, func(ctx context.Context) error { return d.link(ctx, t) })
			}
		}
	}
	return nil
}

// link labels for the collector which content keeps which.
func (d *DB) link(ctx context.Context, t *tree.Tree) error {
	for blob, labels := range links(t) {
		if err := d.label(ctx, blob, labels); err != nil {
			return err
		}
	}
	return nil
}

// links are the labels for the collector: of indexes the manifest, of the manifest config and layers, of the config the
// snapshots. The manifest of an artifact keeps its snapshot.
func links(t *tree.Tree) map[digest.Digest]map[string]string {
	all := map[digest.Digest]map[string]string{}
	set := func(blob digest.Digest, key, value string) {
		if all[blob] == nil {
			all[blob] = map[string]string{}
		}
		all[blob][key] = value
	}
	for i, index := range t.Indexes {
		child := t.Manifest.Digest
		if i+1 < len(t.Indexes) {
			child = t.Indexes[i+1].Digest
		}
		set(index.Digest, contentRefLabel+"m.0", child.String())
	}
	set(t.Manifest.Digest, contentRefLabel+"config", t.Config.Digest.String())
	for i, layer := range t.Layers {
		set(t.Manifest.Digest, fmt.Sprintf("%sl.%d", contentRefLabel, i), layer.Digest.String())
	}
	// Artifacts share their config.
	top := t.Config
	if t.Artifact != nil {
		top = t.Manifest
	}
	set(top.Digest, snapshotRefLabel, t.TopChain())
	return all
}

func (d *DB) label(ctx context.Context, dgst digest.Digest, labels map[string]string) error {
	var fields []string
	for key := range labels {
		fields = append(fields, "labels."+key)
	}
	if _, err := d.Content.Update(ctx, content.Info{Digest: dgst, Labels: labels}, fields...); err != nil {
		return fmt.Errorf("cannot label blob %s: %w", dgst, err)
	}
	return nil
}
