package image

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/containerd/v2/core/metadata/boltutil"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
	"go.etcd.io/bbolt"

	"github.com/berthrun/berth/internal/image/tree"
)

// Labels as containerd's CRI plugin writes them, so that its tools agree with us.
const (
	managedLabel, managedValue = "io.cri-containerd.image", "managed"
	pinnedLabel, pinnedValue   = "io.cri-containerd.pinned", "pinned"

	contentRefLabel  = "containerd.io/gc.ref.content."
	snapshotRefLabel = "containerd.io/gc.ref.snapshot." + snapshotter
)

// record writes down that the image is complete and has these names besides its
// id, all in one transaction, and shows it. A name that another image had moves.
func (s *Images) record(ctx context.Context, t *tree.Tree, names []string, pin bool) (*Image, error) {
	names = append(slices.Clone(names), t.ID())
	fresh := len(names)
	s.mu.Lock()
	defer s.mu.Unlock()
	losers := map[string]bool{}
	for _, name := range names {
		if id, ok := s.names[name]; ok && id != t.ID() {
			losers[id] = true
		}
	}
	pinned := pin
	if old := s.index[t.ID()]; old != nil {
		pinned = pinned || old.Pinned
	}
	for name, id := range s.names {
		if id == t.ID() && !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	if err := s.writeRecords(ctx, t, names[:fresh], names[fresh:], pinned); err != nil {
		return nil, fmt.Errorf("cannot record image %s: %w", t.ID(), diskError(err))
	}
	s.saveNames(ctx, nil)
	e, err := s.load(ctx, t, names, pinned)
	if err != nil {
		return nil, err
	}
	s.put(e, names)
	for id := range losers {
		s.renamed(id)
	}
	img := e.clone()
	return &img, nil
}

// renamed brings the entry of an image that lost a name up to date. Its id and
// digest references stay. s.mu is held.
func (s *Images) renamed(id string) {
	old := s.index[id]
	if old == nil {
		return
	}
	keeps := func(list []string) []string {
		return slices.DeleteFunc(slices.Clone(list), func(name string) bool { return s.names[name] != id })
	}
	e := *old
	e.Tags, e.Digests = keeps(old.Tags), keeps(old.Digests)
	s.index[id] = &e
}

// writeRecords points the fresh names to the image. The others, which it had
// before, keep the manifest that they were pulled with.
func (s *Images) writeRecords(ctx context.Context, t *tree.Tree, fresh, others []string, pinned bool) error {
	labels := map[string]string{managedLabel: managedValue}
	if pinned {
		labels[pinnedLabel] = pinnedValue
	}
	// Not in the transaction of the names: the content store has a lock of its own,
	// which others hold while they wait for a transaction.
	if err := s.link(ctx, t); err != nil {
		return err
	}
	return s.db.Update(func(tx *bbolt.Tx) error {
		ctx := boltutil.WithTransaction(ctx, tx)
		for _, name := range fresh {
			img := images.Image{Name: name, Target: t.Target, Labels: labels}
			if strings.HasSuffix(name, "@"+t.Manifest.Digest.String()) {
				img.Target = t.Manifest
			}
			_, err := s.images.Update(ctx, img)
			if errdefs.IsNotFound(err) {
				_, err = s.images.Create(ctx, img)
			}
			if err != nil {
				return fmt.Errorf("name %s: %w", name, err)
			}
		}
		for _, name := range others {
			img := images.Image{Name: name, Labels: labels}
			if _, err := s.images.Update(ctx, img, "labels"); err != nil {
				return fmt.Errorf("name %s: %w", name, err)
			}
		}
		return nil
	})
}

// link tells the collector which content keeps which: indexes the manifest, the
// manifest config and layers, the config the snapshots.
func (s *Images) link(ctx context.Context, t *tree.Tree) error {
	for i, index := range t.Indexes {
		child := t.Manifest.Digest
		if i+1 < len(t.Indexes) {
			child = t.Indexes[i+1].Digest
		}
		if err := s.label(ctx, index.Digest, map[string]string{contentRefLabel + "m.0": child.String()}); err != nil {
			return err
		}
	}
	children := map[string]string{contentRefLabel + "config": t.Config.Digest.String()}
	for i, layer := range t.Layers {
		children[fmt.Sprintf("%sl.%d", contentRefLabel, i)] = layer.Digest.String()
	}
	if err := s.label(ctx, t.Manifest.Digest, children); err != nil {
		return err
	}
	chains := t.Chains()
	return s.label(ctx, t.Config.Digest, map[string]string{snapshotRefLabel: chains[len(chains)-1]})
}

func (s *Images) label(ctx context.Context, dgst digest.Digest, labels map[string]string) error {
	var fields []string
	for key := range labels {
		fields = append(fields, "labels."+key)
	}
	if _, err := s.content.Update(ctx, content.Info{Digest: dgst, Labels: labels}, fields...); err != nil {
		return fmt.Errorf("cannot label blob %s: %w", dgst, err)
	}
	return nil
}
