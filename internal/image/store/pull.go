package store

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/containerd/containerd/v2/core/mount"
	"github.com/distribution/reference"
	"github.com/opencontainers/go-digest"
	imagespec "github.com/opencontainers/image-spec/specs-go/v1"
	"golang.org/x/sync/errgroup"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/image"
	"github.com/berthrun/berth/internal/image/database"
	"github.com/berthrun/berth/internal/image/database/growing"
	"github.com/berthrun/berth/internal/image/downloads"
	"github.com/berthrun/berth/internal/image/names"
	"github.com/berthrun/berth/internal/image/progress"
	"github.com/berthrun/berth/internal/image/registry"
	"github.com/berthrun/berth/internal/image/snapshotters"
	"github.com/berthrun/berth/internal/image/tree"
	"github.com/berthrun/berth/internal/sys/sysfile"
)

// wanted is how an image is pulled: with whose credentials, by which rules, into which snapshotter, nil for the store's
// own snapshots, and for which platform, "" for the node's.
type wanted struct {
	auth     image.Auth
	rules    *PullRules
	into     *snapshotters.Snapshotter
	platform string
}

// Pull implements image.Store.
func (s *Store) Pull(ctx context.Context, ref string, auth image.Auth, report func(image.Progress)) (string, error) {
	return s.PullFor(ctx, image.PullTarget{}, ref, auth, report)
}

// PullFor implements image.TargetPuller. A reference without a registry is tried at each of the rules' registries, in
// their order, until one of them serves it. What a registry serves is not sought at the next one, also if the rest of the
// pull fails.
func (s *Store) PullFor(ctx context.Context, target image.PullTarget, ref string, auth image.Auth, report func(image.Progress)) (string, error) {
	rules, err := s.rules.Load().forNamespace(target.Namespace)
	if err != nil {
		return "", fmt.Errorf("cannot pull image %s: %w", ref, err)
	}
	into, err := s.proxies.Find(target.Snapshotter)
	if err != nil {
		return "", fmt.Errorf("cannot pull image %s: %w", ref, &image.AwayError{Err: err}) // no registry is at fault
	}
	found, err := rules.search(ref, auth)
	if err != nil {
		return "", err
	}
	want := wanted{found.auth, rules, into, target.Platform}
	terms := progress.Terms{Auth: found.auth, Policy: rules.PolicyFile, Snapshotter: target.Snapshotter, Platform: target.Platform}
	if !found.searched {
		named := found.candidates[0]
		return s.pulls.Do(ctx, named, terms, report, s.pullOf(named, want))
	}
	return s.pulls.Search(ctx, found.candidates, terms, report, func(ctx context.Context, search *progress.Search) (string, error) {
		var answers Faults
		for _, named := range found.candidates {
			id, err := search.Do(ctx, named, terms, s.pullOf(named, want))
			var unserved *unservedError
			if err == nil {
				s.log.Info("pulled an image that was named without a registry", "name", ref, "image", named.String(), "asked_before", len(answers))
			}
			if err == nil || ctx.Err() != nil || !errors.As(err, &unserved) {
				return id, err
			}
			answers = append(answers, fmt.Errorf("%s: %w", named, unserved))
		}
		return "", found.unserved(ref, answers)
	})
}

// unservedError is the error of a pull whose registry does not serve the reference; see registry.UnservedError. That
// of a signature, or of a blob, is none.
type unservedError struct{ err error }

func (e *unservedError) Error() string { return e.err.Error() }

func (e *unservedError) Unwrap() error { return e.err }

// search is how a reference is looked for.
type search struct {
	// candidates are the full references that are tried, in this order. searched is set if the reference names no
	// registry, and the rules have a list of registries for it.
	candidates []reference.Named
	searched   bool
	// auth are the request's credentials. limited is set if the request does not say for which registry they are, so
	// that they are for docker.io only.
	auth    image.Auth
	limited bool
}

// search returns how a reference is looked for. The client of CRI has chosen its credentials by the reference: for it,
// and for a kubelet, a reference without a registry is of docker.io. So credentials without an address go to docker.io
// and to no other registry of the list.
func (r *PullRules) search(ref string, auth image.Auth) (search, error) {
	candidates, err := names.Candidates(ref, r.SearchRegistries)
	if err != nil {
		return search{}, err
	}
	found := search{candidates: candidates, searched: len(r.SearchRegistries) > 0 && names.IsShort(ref), auth: auth}
	if found.searched && auth != (image.Auth{}) && auth.ServerAddress == "" {
		found.auth.ServerAddress, found.limited = "docker.io", true
	}
	return found, nil
}

// unserved returns the error of a reference that no registry serves. A registry that may serve it later, or to another
// client, decides its kind.
func (f *search) unserved(ref string, answers Faults) error {
	texts := make([]string, len(answers))
	for i, err := range answers {
		texts[i] = errs.Message(err)
	}
	text := strings.Join(texts, "; ")
	if f.limited {
		text += " (the credentials of the request do not say for which registry they are, so only docker.io gets them)"
	}
	kind := errs.NotFound
	for _, other := range []error{errs.Denied, errs.Unavailable} {
		if errors.Is(answers, other) {
			kind = other
		}
	}
	return fmt.Errorf("cannot pull image %s: no registry of image.search_registries serves it: %s: %w", ref, text, kind)
}

// pullOf returns what pulls the image of a full reference, and returns its id.
func (s *Store) pullOf(named reference.Named, want wanted) func(context.Context, *progress.Meter) (string, error) {
	return func(ctx context.Context, m *progress.Meter) (string, error) {
		ctx, end, err := s.background.Begin(ctx)
		if err != nil {
			return "", err
		}
		defer end()
		img, err := s.pull(ctx, named, want, m)
		if err != nil {
			if cause := context.Cause(ctx); cause != nil {
				err = cause // of this host: it has no secret of a registry
			} else {
				err = keepRefusal(err, want.auth)
			}
			return "", fmt.Errorf("cannot pull image %s: %w", named, err)
		}
		return img.ID, nil
	}
}

func (s *Store) pull(ctx context.Context, named reference.Named, want wanted, m *progress.Meter) (img *image.Image, err error) {
	err = s.pullTo(ctx, named, want, m, func(ctx context.Context, t *tree.Tree, places ...string) (err error) {
		defer s.db.SaveNames(ctx) // without the lock
		s.mu.Lock()
		defer s.mu.Unlock()
		img, err = s.record(ctx, t, pulledNames(named, t), false, places...)
		return err
	})
	return img, err
}

// mayBeLazy reports whether a snapshotter may have the layers of an image that is pulled by a name; see haveLayersOf.
func (s *Store) mayBeLazy(ctx context.Context, named reference.Named, t *tree.Tree) bool {
	pulled := keysOf(append(pulledNames(named, t), t.ID()), t.Platform)
	var others []string
	s.mu.RLock()
	for name, id := range s.names {
		if id == t.ID() && !slices.Contains(pulled, name) {
			others = append(others, name)
		}
	}
	s.mu.RUnlock()
	return s.haveLayersOf(ctx, t, others)
}

// recorder records an image, and where a pull has put its layers; see record.
type recorder func(ctx context.Context, t *tree.Tree, places ...string) error

// pullTo fetches and unpacks an image, and calls record while all of it is there. The layers go into a snapshotter, or into
// the store's own snapshots if that is nil.
func (s *Store) pullTo(ctx context.Context, named reference.Named, want wanted, m *progress.Meter, record recorder) (err error) {
	ctx, release := m.Guard(ctx, want.rules.NoProgressTimeout)
	defer release()
	defer func() {
		// The guard's reason is more precise than "context canceled". It blames the registry.
		var unserved *unservedError
		var away *image.AwayError
		if cause := context.Cause(ctx); err != nil && cause != nil && !errors.As(err, &unserved) && !errors.As(err, &away) {
			err = fmt.Errorf("%w", cause)
		}
	}()
	if err := want.rules.mayAsk(named); err != nil {
		return err
	}
	defer func() {
		if err != nil {
			s.leftoversChanged()
		}
	}()
	key := names.Key(named.String(), want.platform)
	again := func(err error) bool { return mayWorkLater(ctx, err) }
	return s.db.WithPull(ctx, key, again, func(ctx context.Context, p *database.Pull) error {
		remote, err := s.openRegistry(ctx, named, want.auth, want.rules)
		if err != nil {
			return err
		}
		defer remote.Close()
		remote.Asking = m.Ask
		t, err := s.resolve(ctx, named, want.platform, remote, m)
		if err != nil {
			return err
		}
		// From here on all is fetched by digest: what is checked is what is pulled.
		if err := s.admitAs(ctx, named, t, want.auth, want.rules, m); err != nil {
			return err
		}
		if err := s.layers.MayDecrypt(ctx, t); err != nil {
			return err
		}
		if err := p.Wants(ctx, t); err != nil {
			return err
		}
		if want.into != nil && t.Artifact == nil { // nobody reads an artifact but through a volume
			if t.Encrypted() > 0 {
				return fmt.Errorf("it has encrypted layers, which a snapshotter cannot read: use a handler without a snapshotter: %w", errs.Unsupported)
			}
			if s.mayBeLazy(ctx, named, t) {
				record := func(ctx context.Context, t *tree.Tree, places ...string) error {
					if err := p.Record(ctx); err != nil { // what the snapshotter does not provide
						return err
					}
					return record(ctx, t, places...)
				}
				return s.fillProxy(ctx, named, t, remote, want.into, m, record)
			}
			s.log.Warn("unpacking an image on the node, as another name of it has other layers", "image", named.String(), "id", t.ID(), "snapshotter", want.into.Name)
		}
		if err := s.fetchLayers(ctx, t, remote, m); err != nil {
			return err
		}
		m.Stage(progress.Done, 0)
		return record(ctx, t, image.OverlaySnapshotter)
	})
}

// mayWorkLater reports whether the pull after one that has failed may succeed. Then this one has a leftover. A full disk needs
// the room. What a policy refuses is of no use to this client; leftovers of other pulls stay, since the policy may be that of
// one namespace.
func mayWorkLater(ctx context.Context, err error) bool {
	var refused *image.RefusedError
	if errors.As(err, &refused) || isFull(err) {
		return false
	}
	return ctx.Err() != nil || errors.Is(err, errs.Unavailable) || errors.Is(err, errs.Deadline)
}

func pulledNames(named reference.Named, t *tree.Tree) []string {
	names := t.DigestNames(named)
	if _, ok := named.(reference.Digested); !ok {
		names = append(names, named.String())
	}
	return names
}

// resolve asks the registry what the name means and fetches the documents that
// describe the image for a platform.
func (s *Store) resolve(ctx context.Context, named reference.Named, platform string, remote *registry.Repository, m *progress.Meter) (*tree.Tree, error) {
	m.Stage(progress.Resolving, 0)
	end := m.Transfer()
	target, err := remote.Resolve(ctx)
	end()
	var unserved *registry.UnservedError
	switch cause := context.Cause(ctx); {
	case err != nil && errors.Is(cause, progress.ErrNoProgress):
		return nil, &unservedError{cause}
	case errors.As(err, &unserved):
		return nil, &unservedError{err}
	case err != nil:
		return nil, err
	}
	return s.db.ReadTree(ctx, named.String(), platform, target, func(ctx context.Context, desc imagespec.Descriptor) error {
		if err := s.db.DropDamagedDocument(ctx, desc); err != nil {
			return err
		}
		return s.fetch(ctx, remote, desc, downloads.Turn{}, m, func(int64) { m.Touch() })
	})
}

// fetch gets one blob into the content store. Two pulls that want the same one
// fetch it once. The turn of a document has no bounds: it is small, and a container that starts may wait for a signature.
func (s *Store) fetch(
	ctx context.Context, remote *registry.Repository, desc imagespec.Descriptor, turn downloads.Turn, m *progress.Meter, got func(int64),
) error {
	return s.fetchTo(ctx, s.db.Follow(nil), remote, desc, turn, m, got)
}

// fetchTo is fetch for a blob that may be read while it is fetched.
func (s *Store) fetchTo(
	ctx context.Context, to database.Followed, remote *registry.Repository, desc imagespec.Descriptor, turn downloads.Turn, m *progress.Meter, got func(int64),
) error {
	defer to.End()
	endWait := m.Behind()
	unlock, err := s.blobs.Lock(ctx, desc.Digest.String())
	endWait()
	if err != nil {
		return err
	}
	defer unlock()
	defer m.Transfer()()
	if desc.Size == 0 && desc.Digest == desc.Digest.Algorithm().FromBytes(nil) {
		// Registries do not agree on what they send of it.
		return errs.OfDisk(s.db.WriteEmpty(ctx, desc))
	}
	return errs.OfDisk(remote.Fetch(ctx, to, desc, turn, got))
}

// fetchLayers fetches the layers side by side. It unpacks a large one while it is fetched, and the others as soon as they
// are there. A layer is used when its blob is in the store.
func (s *Store) fetchLayers(ctx context.Context, t *tree.Tree, remote *registry.Repository, m *progress.Meter) error {
	var total int64
	for _, layer := range t.Layers {
		total += layer.Size
	}
	if err := s.needRoom(ctx, t.Layers); err != nil {
		return err
	}
	m.Stage(progress.Fetching, total)
	group, ctx := errgroup.WithContext(ctx)
	fetched := make([]chan struct{}, len(t.Layers))
	for i := range fetched {
		fetched[i] = make(chan struct{})
	}
	ready := func(ctx context.Context, i int) error {
		select {
		case <-fetched[i]:
			return nil
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	files, closeAll := growing.Layers(t.Layers)
	defer closeAll()
	group.Go(func() error { return s.fetchAll(ctx, t, total, remote, m, fetched, files) })
	group.Go(func() error {
		return errs.Guard("unpacking", func() error { return s.layers.UnpackEarly(ctx, t, ready, files, m.Unpack) })
	})
	return group.Wait()
}

// needRoom returns an error of kind Exhausted if the disk has no room for those of the layers that the store does not have.
func (s *Store) needRoom(ctx context.Context, layers []imagespec.Descriptor) error {
	var missing int64
	for _, layer := range layers {
		if s.db.Present(ctx, layer) != nil {
			missing += layer.Size
		}
	}
	free, err := s.freeDisk(ctx, missing)
	if err == nil && missing > free {
		err = fmt.Errorf("its layers have %d bytes, the disk has %d left: %w", missing, free, errs.Exhausted)
	}
	return err
}

// freeDisk is how many bytes of the disk are free. If they are less than those that are missing, and would be enough without
// the leftovers, it drops these.
func (s *Store) freeDisk(ctx context.Context, missing int64) (int64, error) {
	free, err := sysfile.DiskFree(s.db.Root)
	if err != nil || missing <= free {
		return free, err
	}
	finished, unfinished, err := s.db.LeftoverBytes(ctx)
	if err != nil || missing > free+finished+unfinished {
		return free, err
	}
	s.dropLeftovers(ctx, func(database.Leftover) bool { return true })
	return sysfile.DiskFree(s.db.Root)
}

func (s *Store) fetchAll(ctx context.Context, t *tree.Tree, total int64, remote *registry.Repository, m *progress.Meter, fetched []chan struct{}, files []*growing.File) error {
	group, fetching := errgroup.WithContext(ctx)
	group.SetLimit(s.rules.Load().MaxConcurrentDownloads)
	turn := downloads.Turn{Gate: s.downloads, Waits: m.Wait}
	for i, layer := range t.Layers {
		group.Go(func() error {
			err := errs.Guard("fetching of "+layer.Digest.String(), func() error {
				return s.fetchTo(fetching, s.db.Follow(files[i]), remote, layer, turn, m, m.Add)
			})
			if err != nil {
				return fmt.Errorf("layer %d: %w", i, err)
			}
			close(fetched[i])
			return nil
		})
	}
	if err := group.Wait(); err != nil {
		return err
	}
	blobs := make([]digest.Digest, len(t.Layers))
	for i, layer := range t.Layers {
		blobs[i] = layer.Digest
	}
	// While the last layers are unpacked.
	if err := s.db.RecordBlobs(ctx, blobs); err != nil {
		return err
	}
	m.Stage(progress.Unpacking, total)
	return nil
}

// fillProxy has a snapshotter make the layers, lowest first, and calls record. It fetches those that the snapshotter does
// not provide.
func (s *Store) fillProxy(
	ctx context.Context, named reference.Named, t *tree.Tree, remote *registry.Repository, into *snapshotters.Snapshotter, m *progress.Meter, record recorder,
) error {
	chains := snapshotters.Chains(t.Layers)
	release, err := into.Hold(ctx, chains)
	if err != nil {
		return err
	}
	defer release()
	labels, err := snapshotters.LabelsOf(ctx, named.String(), t.Manifest, t.Layers)
	if err != nil {
		return err
	}
	var total int64
	for _, layer := range t.Layers {
		total += layer.Size
	}
	m.Stage(progress.Fetching, total)
	turn := downloads.Turn{Gate: s.downloads, Waits: m.Wait}
	fetch := func(ctx context.Context, i int) error { return s.fetch(ctx, remote, t.Layers[i], turn, m, m.Add) }
	stop := func() {}
	if into.IsOwn() { // a proxy may provide any of them
		if fetch, stop, err = s.fetchAhead(ctx, t, chains, into, fetch); err != nil {
			return err
		}
		defer stop()
	}
	parent, lazy := "", 0
	for i := range t.Layers {
		there, err := into.Add(ctx, snapshotters.Layer{Chain: chains[i], Parent: parent, Labels: labels[i]}, func(ctx context.Context, mounts []mount.Mount) error {
			if err := fetch(ctx, i); err != nil {
				return err
			}
			return s.layers.Into(ctx, t, i, mounts, into.IsOwn(), m.Unpack)
		})
		if err != nil {
			s.proxies.Wake() // the layers below may be of no use now
			return fmt.Errorf("layer %d: %w", i, err)
		}
		if there {
			lazy++
		}
		m.Touch()
		parent = chains[i]
	}
	stop() // another pull may have made a layer that is still being fetched here, and the records end the lease
	s.log.Info("pulled an image into a snapshotter", "image", named.String(), "snapshotter", into.Name, "layers", len(t.Layers), "not_fetched", lazy)
	m.Stage(progress.Done, 0)
	return record(ctx, t, into.Name)
}

// fetchAhead fetches the layers that a snapshotter does not have, side by side, while others are unpacked. fetched waits for a
// layer. Call stop at the end, and before the image is recorded. Kind Exhausted if the disk has no room for them.
func (s *Store) fetchAhead(
	ctx context.Context, t *tree.Tree, chains []string, into *snapshotters.Snapshotter, fetch func(context.Context, int) error,
) (fetched func(context.Context, int) error, stop func(), err error) {
	results := make([]chan error, len(t.Layers)) // nil for those that are there
	var wanted []imagespec.Descriptor
	for i, chain := range chains {
		there, err := into.Has(ctx, chain)
		if err != nil {
			return nil, nil, err
		}
		if !there {
			results[i], wanted = make(chan error, 1), append(wanted, t.Layers[i])
		}
	}
	if err := s.needRoom(ctx, wanted); err != nil {
		return nil, nil, err
	}
	fetching, cancel := context.WithCancel(ctx)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		var group errgroup.Group
		group.SetLimit(s.rules.Load().MaxConcurrentDownloads)
		for i, result := range results {
			if result == nil {
				continue
			}
			group.Go(func() error {
				result <- errs.Guard("fetching of "+t.Layers[i].Digest.String(), func() error { return fetch(fetching, i) })
				return nil
			})
		}
		_ = group.Wait() // the results have the errors
	}()
	fetched = func(ctx context.Context, i int) error {
		if results[i] == nil { // it was there, and is not any more
			return fetch(ctx, i)
		}
		select {
		case err := <-results[i]:
			return err
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	return fetched, func() { cancel(); <-ended }, nil
}
