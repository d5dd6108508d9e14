// Package crosscheck compares what an image store has recorded of its layers.
//
// Each layer is recorded three times: in the metadata by its chain ID, in the snapshots' database by the name that its record
// in the metadata has, and in a label beside its files. A changed bit in a key or a value leaves a database that bbolt can
// read. The collector would then remove a layer that a container runs on, or a container would get another one. Such a
// database contradicts the others.
//
// The store syncs its changes in an order. So a kill or a loss of power leaves only two differences, which Compare allows: the
// snapshots' database has a snapshot that the metadata does not have yet, or does not have any more; and a directory belongs to
// no snapshot.
package crosscheck

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/containerd/containerd/v2/core/snapshots"
	"github.com/containerd/containerd/v2/core/snapshots/storage"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
	"go.etcd.io/bbolt"

	"github.com/berthrun/berth/internal/image/dbcheck"
)

// Layers are the records of a store.
type Layers struct {
	Metadata *bbolt.DB
	// Path are the buckets that lead to the snapshots in the metadata.
	Path      []string
	Snapshots *storage.MetaStore
	// Labels are the chain IDs of complete layers, by the names of their directories, which are the numbers of their snapshots.
	Labels map[string]string
	// Replaced is set if the metadata has no image, and the copy of the names has some.
	Replaced bool
}

// recorded is a snapshot as the metadata has it: a name in the snapshots' database, and the key of its parent.
type recorded struct{ name, parent string }

// snapshot is a snapshot as its own database has it. parent is a name.
type snapshot struct {
	id     string
	kind   snapshots.Kind
	parent string
}

// Compare returns dbcheck.ErrDamaged if the records contradict each other. strays are the directories of complete layers
// that only the metadata does not have, by their chain IDs: it is damaged if a container runs on one of them.
func (l Layers) Compare(ctx context.Context) (strays map[string]string, err error) {
	metadata, err := l.readMetadata()
	if err != nil {
		return nil, err
	}
	known, err := l.readSnapshots(ctx)
	if err != nil {
		return nil, err
	}
	if len(known) == 0 && len(metadata) == 0 && l.Replaced && len(l.Labels) > 0 {
		return nil, contradiction("the databases know no layer and no image, and there are some")
	}
	if err := errors.Join(compareRecords(metadata, known), l.compareLabels(known)); err != nil {
		return nil, err
	}
	strays = map[string]string{}
	for name, s := range known {
		if chain := ChainOf(name); s.kind == snapshots.KindCommitted && metadata[chain].name != name && l.Labels[s.id] == chain {
			strays[chain] = s.id
		}
	}
	return strays, nil
}

func contradiction(format string, args ...any) error {
	return fmt.Errorf("%s: %w", fmt.Sprintf(format, args...), dbcheck.ErrDamaged)
}

// ChainOf returns the key that a snapshot has in the metadata: its name in the snapshots' database without namespace and number.
func ChainOf(name string) string { return name[strings.LastIndexByte(name, '/')+1:] }

// Bucket returns the bucket that a path of names leads to, nil if there is none.
func Bucket(tx *bbolt.Tx, path []string) *bbolt.Bucket {
	b := tx.Bucket([]byte(path[0]))
	for _, name := range path[1:] {
		if b == nil {
			return nil
		}
		b = b.Bucket([]byte(name))
	}
	return b
}

// readMetadata returns the snapshots by their keys.
func (l Layers) readMetadata() (map[string]recorded, error) {
	all := map[string]recorded{}
	err := l.Metadata.View(func(tx *bbolt.Tx) error {
		b := Bucket(tx, l.Path)
		if b == nil {
			return nil // there never was a snapshot
		}
		return b.ForEachBucket(func(key []byte) error {
			one := b.Bucket(key)
			all[string(key)] = recorded{string(one.Get([]byte("name"))), string(one.Get([]byte("parent")))}
			return nil
		})
	})
	if err != nil {
		return nil, fmt.Errorf("cannot list the snapshots of the metadata: %w", err)
	}
	return all, nil
}

// readSnapshots returns the snapshots by their names.
func (l Layers) readSnapshots(ctx context.Context) (map[string]snapshot, error) {
	all := map[string]snapshot{}
	err := l.Snapshots.WithTransaction(ctx, false, func(ctx context.Context) error {
		ids, err := storage.IDMap(ctx)
		if err != nil {
			return err
		}
		err = storage.WalkInfo(ctx, func(_ context.Context, info snapshots.Info) error {
			all[info.Name] = snapshot{kind: info.Kind, parent: info.Parent}
			return nil
		})
		for id, name := range ids {
			one := all[name]
			one.id = id
			all[name] = one
		}
		return err
	})
	if err != nil && !errdefs.IsNotFound(err) { // there never was a snapshot
		return nil, fmt.Errorf("cannot list the snapshots of their database: %w", err)
	}
	if len(all) == 0 {
		return all, nil
	}
	return all, errors.Join(uniqueNumbers(all), l.nextNumber(ctx, all))
}

// uniqueNumbers returns an error if two snapshots have one directory.
func uniqueNumbers(all map[string]snapshot) error {
	for name, s := range all {
		if s.id == "" {
			return contradiction("snapshot %s has the number of another one", name)
		}
	}
	return nil
}

// errUndo ends a transaction without its changes.
var errUndo = errors.New("undo")

// nextNumber returns an error if a new snapshot would get the directory of another one.
func (l Layers) nextNumber(ctx context.Context, all map[string]snapshot) error {
	var next string
	err := l.Snapshots.WithTransaction(ctx, true, func(ctx context.Context) error {
		made, err := storage.CreateSnapshot(ctx, snapshots.KindActive, "number of the next one", "")
		next = made.ID
		return errors.Join(err, errUndo)
	})
	if next == "" {
		return fmt.Errorf("cannot get the number of the next snapshot: %w", err)
	}
	number, err := strconv.ParseUint(next, 10, 64)
	if err != nil {
		return err
	}
	for name, s := range all {
		if has, err := strconv.ParseUint(s.id, 10, 64); err != nil || has >= number {
			return contradiction("snapshot %s has number %s, and the next one would get %d", name, s.id, number)
		}
	}
	return nil
}

// compareRecords compares the databases with each other. Only complete layers count: they have a digest as their key.
func compareRecords(metadata map[string]recorded, known map[string]snapshot) error {
	for key, r := range metadata {
		if ChainOf(r.name) != key {
			return contradiction("the metadata has the name %q for snapshot %s", r.name, key)
		}
		if digest.Digest(key).Validate() != nil {
			continue // its layer is being unpacked
		}
		s, ok := known[r.name]
		if !ok || s.kind != snapshots.KindCommitted {
			return contradiction("the snapshots' database does not have layer %s", r.name)
		}
		if s.parent != metadata[r.parent].name || r.parent != "" && s.parent == "" {
			return contradiction("layer %s is above %q in the metadata, and above %q in the snapshots' database", key, r.parent, s.parent)
		}
	}
	return nil
}

// compareLabels compares the snapshots with the labels of directories. A label that alone differs may be damaged itself.
func (l Layers) compareLabels(known map[string]snapshot) error {
	owners := map[string]string{} // chain IDs by directory
	for name, s := range known {
		owners[s.id] = ChainOf(name)
	}
	labelled := map[string][]string{} // directories by chain ID
	for dir, chain := range l.Labels {
		labelled[chain] = append(labelled[chain], dir)
	}
	for name, s := range known {
		chain := ChainOf(name)
		if s.kind != snapshots.KindCommitted || l.Labels[s.id] == chain {
			continue
		}
		for _, dir := range labelled[chain] {
			if owners[dir] != chain {
				return contradiction("the files of layer %s are in directory %s, and its snapshot has number %s", chain, dir, s.id)
			}
		}
	}
	return nil
}
