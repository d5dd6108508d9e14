package snapshotters

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"time"

	"github.com/containerd/containerd/v2/core/mount"
	"github.com/containerd/containerd/v2/core/snapshots"
	"github.com/containerd/containerd/v2/pkg/namespaces"
	"github.com/containerd/errdefs"
	"google.golang.org/grpc"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/image"
	"github.com/berthrun/berth/internal/image/erofs"
	"github.com/berthrun/berth/internal/keyed"
)

const (
	// namespace is the one of containerd in which a kubelet's images are.
	namespace = "k8s.io"
	// callTimeout bounds each call, but that which makes a layer (layerTimeout), which a snapshotter may fetch first, and the
	// removal of the files of removed snapshots (cleanupTimeout).
	callTimeout    = 30 * time.Second
	layerTimeout   = 5 * time.Minute
	cleanupTimeout = 5 * time.Minute

	extractPrefix = "extract/"
	rootfsPrefix  = "rootfs/"
)

// backend is what is used of a snapshots.Snapshotter.
type backend interface {
	Stat(ctx context.Context, name string) (snapshots.Info, error)
	Walk(ctx context.Context, fn snapshots.WalkFunc, filters ...string) error
	Prepare(ctx context.Context, key, parent string, opts ...snapshots.Opt) ([]mount.Mount, error)
	Mounts(ctx context.Context, key string) ([]mount.Mount, error)
	Commit(ctx context.Context, name, key string, opts ...snapshots.Opt) error
	Remove(ctx context.Context, name string) error
	Usage(ctx context.Context, name string) (snapshots.Usage, error)
}

// Snapshotter is one proxy snapshotter, or the one of berth's own. A nil one has the name "". Errors name it and its socket, and are of kind
// Unavailable, as an image.AwayError, when it does not answer. Each call of it has a bound.
type Snapshotter struct {
	Name    string
	address string
	prefix  string
	conn    *grpc.ClientConn
	remote  backend
	// own is remote if that is berth's own, nil for a proxy.
	own *erofs.Store

	// layers are held while one is made. gate is held while busy changes, and while a snapshot is removed.
	layers, gate keyed.Mutex
	// busy are the chains of the layers that pulls need which have not ended.
	busy map[string]int
	// wake has an entry while Set.Run has something to remove.
	wake chan struct{}
	// listed is true once the snapshotter has listed its snapshots. It is collect's alone.
	listed bool
}

// Layer is a layer that a snapshotter is to have.
type Layer struct {
	// Chain is the one of Chains, Parent that of the layer below, "" for the lowest.
	Chain, Parent string
	// Labels describe it to the snapshotter, which may fetch it by them.
	Labels map[string]string
}

// IsOwn reports whether layers are EROFS images of this store, in place of what a proxy has.
func (s *Snapshotter) IsOwn() bool { return s != nil && s.own != nil }

// Hold keeps the layers of an image, by their chains, from being removed until release. Call it before the first Layer
// of the image, and release when the image is recorded.
func (s *Snapshotter) Hold(ctx context.Context, chains []string) (release func(), err error) {
	if err := s.addBusy(ctx, chains, 1); err != nil {
		return nil, err
	}
	return func() { _ = s.addBusy(context.WithoutCancel(ctx), chains, -1) }, nil // no end of a context, no error
}

func (s *Snapshotter) addBusy(ctx context.Context, chains []string, n int) error {
	unlock, err := s.gate.Lock(ctx, "")
	if err != nil {
		return err
	}
	defer unlock()
	for _, chain := range chains {
		if s.busy[chain] += n; s.busy[chain] == 0 {
			delete(s.busy, chain)
		}
	}
	return nil
}

// Add has the snapshotter make the snapshot of a layer, whose parent it has. It returns true if the snapshotter has
// the layer already, or will fetch it by itself. Else it calls fill with mounts into which the layer is to be unpacked.
func (s *Snapshotter) Add(ctx context.Context, l Layer, fill func(context.Context, []mount.Mount) error) (lazy bool, err error) {
	unlock, err := s.layers.Lock(ctx, l.Chain)
	if err != nil {
		return false, err
	}
	defer unlock()
	name, key, parent := s.prefix+l.Chain, s.prefix+extractPrefix+l.Chain, ""
	if l.Parent != "" {
		parent = s.prefix + l.Parent
	}
	labels := maps.Clone(l.Labels)
	if labels == nil {
		labels = map[string]string{}
	}
	labels[snapshots.LabelSnapshotRef] = name
	if there, err := s.has(ctx, name); err != nil || there {
		return there, err
	}
	var mounts []mount.Mount
	prepare := func(ctx context.Context) (err error) {
		mounts, err = s.remote.Prepare(ctx, key, parent, snapshots.WithLabels(labels))
		return err
	}
	err = s.call(ctx, layerTimeout, "prepare the layer "+l.Chain, prepare)
	if errdefs.IsAlreadyExists(err) {
		// Either the snapshotter provides the layer, or a pull that was killed has left the key.
		if there, err := s.has(ctx, name); err != nil || there {
			return there, err
		}
		if err := s.remove(ctx, key); err != nil {
			return false, err
		}
		err = s.call(ctx, layerTimeout, "prepare the layer "+l.Chain, prepare)
		if errdefs.IsAlreadyExists(err) {
			return s.has(ctx, name)
		}
	}
	if err != nil {
		return false, err
	}
	if err = fill(ctx, mounts); err == nil {
		err = s.call(ctx, layerTimeout, "commit the layer "+l.Chain, func(ctx context.Context) error {
			return s.remote.Commit(ctx, name, key, snapshots.WithLabels(labels))
		})
		if err == nil || errdefs.IsAlreadyExists(err) {
			return false, nil
		}
	}
	return false, errors.Join(err, s.remove(context.WithoutCancel(ctx), key))
}

// Has reports whether there is the layer of a chain.
func (s *Snapshotter) Has(ctx context.Context, chain string) (bool, error) {
	return s.has(ctx, s.prefix+chain)
}

// has reports whether there is a snapshot.
func (s *Snapshotter) has(ctx context.Context, name string) (bool, error) {
	err := s.call(ctx, callTimeout, "look up a snapshot", func(ctx context.Context) error {
		_, err := s.remote.Stat(ctx, name)
		return err
	})
	if errdefs.IsNotFound(err) {
		return false, nil
	}
	return err == nil, err
}

// errNoMount is the error of an answer that would leave a container without files.
var errNoMount = errors.New("its answer has no mount")

// Prepare makes the writable snapshot of a container over a layer, or finds it, and returns its mounts, at least one. Kind
// NotFound when the snapshotter does not have the layer.
func (s *Snapshotter) Prepare(ctx context.Context, key, chain string) (mounts []mount.Mount, err error) {
	verb, name := "prepare a root filesystem over the layer "+chain, s.prefix+rootfsPrefix+key
	err = s.call(ctx, callTimeout, verb, func(ctx context.Context) (err error) {
		mounts, err = s.remote.Prepare(ctx, name, s.prefix+chain)
		return some(mounts, err)
	})
	if errdefs.IsAlreadyExists(err) {
		err = s.call(ctx, callTimeout, verb, func(ctx context.Context) (err error) {
			mounts, err = s.remote.Mounts(ctx, name)
			return some(mounts, err)
		})
	}
	return mounts, err
}

// some returns err, or an error if there is no mount.
func some(mounts []mount.Mount, err error) error {
	if err == nil && len(mounts) == 0 {
		return errNoMount
	}
	return err
}

// Usage returns what the container of a key has written, in bytes and inodes.
func (s *Snapshotter) Usage(ctx context.Context, key string) (bytes, inodes int64, err error) {
	var usage snapshots.Usage
	err = s.call(ctx, callTimeout, "measure a root filesystem", func(ctx context.Context) (err error) {
		usage, err = s.remote.Usage(ctx, s.prefix+rootfsPrefix+key)
		return err
	})
	return usage.Size, usage.Inodes, err
}

// remove removes a snapshot. It returns nil if there is none.
func (s *Snapshotter) remove(ctx context.Context, name string) error {
	err := s.call(ctx, callTimeout, "remove the snapshot "+name, func(ctx context.Context) error { return s.remote.Remove(ctx, name) })
	if errdefs.IsNotFound(err) {
		return nil
	}
	return err
}

// call calls the snapshotter, for at most a time, and gives an error the snapshotter's name and a kind. verb completes the
// sentence "the snapshotter cannot ...". errdefs still knows the error.
func (s *Snapshotter) call(ctx context.Context, bound time.Duration, verb string, ask func(context.Context) error) error {
	ctx = namespaces.WithNamespace(ctx, namespace)
	if s.own == nil { // berth's own answers, and the disk decides how long it takes
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, bound)
		defer cancel()
	}
	err := ask(ctx)
	if err == nil {
		return nil
	}
	var kind error
	switch {
	case errdefs.IsUnavailable(err), errdefs.IsDeadlineExceeded(err):
		//nolint:errorlint // it is not the deadline of a caller that has passed
		return &image.AwayError{Err: fmt.Errorf("the snapshotter %s does not answer on %s, so it cannot %s: %v: %w", s.Name, s.address, verb, err, errs.Unavailable)}
	case errdefs.IsNotFound(err):
		kind = errs.NotFound
	case errdefs.IsResourceExhausted(err):
		kind = errs.Exhausted
	default:
		return fmt.Errorf("the snapshotter %s (%s) cannot %s: %w", s.Name, s.address, verb, err)
	}
	return fmt.Errorf("the snapshotter %s (%s) cannot %s: %w: %w", s.Name, s.address, verb, err, kind)
}
