package store

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/containerd/errdefs"
	"github.com/distribution/reference"
	"github.com/opencontainers/go-digest"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/image"
	"github.com/berthrun/berth/internal/image/database"
	"github.com/berthrun/berth/internal/image/names"
	"github.com/berthrun/berth/internal/image/policy"
	"github.com/berthrun/berth/internal/image/progress"
	"github.com/berthrun/berth/internal/image/registry"
	"github.com/berthrun/berth/internal/image/tree"
	"github.com/berthrun/berth/internal/image/verifier"
	"github.com/berthrun/berth/internal/sys/sysfile"
)

// admitTimeout bounds how long a container waits for signatures that the node does not have.
const admitTimeout = 20 * time.Second

// refused is the error of an image that may not be used.
func refused(err error) error {
	if errs.Kind(err) == nil {
		err = fmt.Errorf("%w: %w", err, errs.State)
	}
	return &image.RefusedError{Err: err}
}

// forNamespace returns the rules for pods of a namespace, which may be "": if PolicyDir has a file for it, that file takes
// the place of PolicyFile. The directory is read each time, as the file is.
func (r *PullRules) forNamespace(namespace string) (*PullRules, error) {
	if r.PolicyDir == "" || namespace == "" {
		return r, nil
	}
	file, err := policy.FileOf(r.PolicyDir, namespace)
	if err != nil {
		return nil, refused(fmt.Errorf("image.policy_dir: %w", err))
	}
	if file == "" {
		return r, nil
	}
	own := *r
	own.PolicyFile = file
	return &own, nil
}

// rulesFor reads the policy, and returns its rules for a name, nil where the node has no policy. named
// is nil for an image without a name. The file is read each time, so that a change counts at once.
func (r *PullRules) rulesFor(named reference.Named) (*policy.Rules, error) {
	if r.PolicyFile == "" {
		return nil, nil
	}
	p, err := policy.Read(r.PolicyFile)
	if err != nil {
		return nil, refused(err)
	}
	rules := p.Nameless()
	if named != nil {
		rules = p.For(named)
	}
	return &rules, nil
}

// mayAsk returns an error if the policy rejects a name whatever its signatures are. The registry is not
// asked then.
func (r *PullRules) mayAsk(named reference.Named) error {
	rules, err := r.rulesFor(named)
	if err != nil || rules == nil || rules.NeedsSignatures() {
		return err
	}
	if err := rules.Check(policy.Image{Name: named}, nil); err != nil {
		return refused(err)
	}
	return nil
}

// evidence is what has shown that an image may be used, and while that is decided also what may show it. It is kept on
// disk, since registries may be away when a container is made.
type evidence struct {
	Signatures []policy.Signature `json:"signatures,omitempty"`
	// Verifiers has the fingerprint of the verifiers that accepted the image, by its name.
	Verifiers map[string]string `json:"verifiers,omitempty"`
}

func (s *Store) evidencePath(id string) string {
	return filepath.Join(s.db.Root, "signatures", strings.TrimPrefix(id, "sha256:")+".json")
}

// evidenceOf reads what the node has kept. What cannot be read is fetched again.
func (s *Store) evidenceOf(id string) *evidence {
	e := &evidence{}
	data, err := os.ReadFile(s.evidencePath(id))
	if err == nil {
		err = json.Unmarshal(data, e)
	}
	if err != nil {
		e = &evidence{}
	}
	if e.Verifiers == nil {
		e.Verifiers = map[string]string{}
	}
	return e
}

// keepEvidence adds to what the node has kept of an image. Requests for one image may come at the same time, so it reads
// again what is kept.
func (s *Store) keepEvidence(ctx context.Context, id string, fresh *evidence) error {
	unlock, err := s.evidence.Lock(ctx, id)
	if err != nil {
		return err
	}
	defer unlock()
	e := s.evidenceOf(id)
	e.add(fresh.Signatures)
	e.Signatures = e.Signatures[max(0, len(e.Signatures)-maxSignatures):] // the oldest may be of keys that are gone
	maps.Copy(e.Verifiers, fresh.Verifiers)
	data, err := json.Marshal(e)
	if err != nil {
		return err
	}
	path := s.evidencePath(id)
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return errs.OfDisk(err)
	}
	// An image has evidence more than once: it has several names, and keys and programs change.
	if err := sysfile.ReplaceSynced(path, data); err != nil {
		return fmt.Errorf("cannot keep what shows that image %s may be used: %w", id, errs.OfDisk(err))
	}
	return nil
}

// dropEvidence removes what was kept of images that are not here: a pull keeps it before it downloads the layers, and may
// have failed. Call it before a pull begins.
func (s *Store) dropEvidence() {
	dir := filepath.Dir(s.evidencePath(""))
	files, err := os.ReadDir(dir)
	if errs.IgnoreNotExist(err) != nil {
		s.log.Warn("cannot read which signatures are kept", "error", err)
	}
	for _, file := range files {
		if s.index["sha256:"+strings.TrimSuffix(file.Name(), ".json")] != nil {
			continue
		}
		if err := errs.IgnoreNotExist(os.Remove(filepath.Join(dir, file.Name()))); err != nil {
			s.log.Warn("cannot remove the signatures of an image that is not here", "error", err)
		}
	}
}

// add adds signatures that it does not have.
func (e *evidence) add(found []policy.Signature) {
	for i := range found {
		if !slices.ContainsFunc(e.Signatures, func(old policy.Signature) bool { return old.Equal(&found[i]) }) {
			e.Signatures = append(e.Signatures, found[i])
		}
	}
}

// digestsOf are those of an image that a signature may be of.
func digestsOf(t *tree.Tree) []digest.Digest {
	list := []digest.Digest{t.Named().Digest}
	for _, index := range slices.Concat(t.Through, t.Indexes) {
		list = append(list, index.Digest)
	}
	list = append(list, t.Manifest.Digest)
	slices.Sort(list[1:])
	return slices.Compact(list)
}

// admitAll reports whether all images may be used.
func (r *PullRules) admitAll() bool { return r.PolicyFile == "" && r.VerifierDir == "" }

// admitAs returns nil if the image may be used by a name, which may be nil. It fetches signatures if
// those that the node has do not suffice, and keeps what has shown that the image may be used.
func (s *Store) admitAs(ctx context.Context, named reference.Named, t *tree.Tree, auth image.Auth, rules *PullRules, m *progress.Meter) error {
	if rules.admitAll() {
		return nil
	}
	fresh, err := s.judge(ctx, named, t, s.evidenceOf(t.ID()), auth, rules, m)
	if len(fresh.Signatures)+len(fresh.Verifiers) > 0 {
		err = errors.Join(err, s.keepEvidence(ctx, t.ID(), &fresh))
	}
	return err
}

// judge is admitAs with the evidence e, to which it adds the signatures that it fetches. fresh is what is worth keeping
// of what it has found now, also with an error. It keeps nothing.
func (s *Store) judge(
	ctx context.Context, named reference.Named, t *tree.Tree, e *evidence, auth image.Auth, rules *PullRules, m *progress.Meter,
) (fresh evidence, err error) {
	required, err := rules.rulesFor(named)
	if err != nil {
		return fresh, err
	}
	if required != nil {
		if fresh.Signatures, err = s.checkSignatures(ctx, *required, named, t, e, auth, rules, m); err != nil {
			return fresh, err
		}
	}
	if rules.VerifierDir == "" {
		return fresh, nil
	}
	name := t.ID()
	if named != nil {
		name = named.String()
	}
	now, err := verifier.Fingerprint(rules.VerifierDir)
	if err != nil {
		return fresh, refused(err)
	}
	now = t.Named().Digest.String() + " " + now
	if e.Verifiers[name] == now {
		return fresh, nil
	}
	if err := verifier.Check(ctx, rules.VerifierDir, name, t.Named()); err != nil {
		return fresh, refused(err)
	}
	fresh.Verifiers = map[string]string{name: now}
	return fresh, nil
}

// subjectOf is the image as the policy sees it.
func subjectOf(named reference.Named, t *tree.Tree, rules *PullRules) policy.Image {
	return policy.Image{Name: named, Digests: digestsOf(t), Unnamed: rules.UnnamedSignatures}
}

// checkSignatures returns no error if the image meets the requirements. fresh are the signatures that have shown that if
// those in e did not suffice. It adds all that it fetches to e: anybody who can push to the repository can add more.
func (s *Store) checkSignatures(
	ctx context.Context, required policy.Rules, named reference.Named, t *tree.Tree, e *evidence, auth image.Auth, rules *PullRules, m *progress.Meter,
) (fresh []policy.Signature, err error) {
	subject := subjectOf(named, t, rules)
	if err = required.Check(subject, e.Signatures); err == nil {
		return nil, nil
	}
	if !required.NeedsSignatures() || named == nil {
		return nil, refused(err)
	}
	// What is fetched needs a lease only until it is read.
	err = s.db.WithLease(ctx, func(ctx context.Context) error {
		left := maxSignatures
		for _, dgst := range subject.Digests {
			found, fetchErr := s.wanted(ctx, required, named, dgst, auth, rules, left, m)
			if fetchErr != nil {
				return fmt.Errorf("%w (needed because of %s, scope %s)", fetchErr, required.File, required.Scope)
			}
			e.add(found)
			left -= len(found)
			if err = required.Check(subject, e.Signatures); err == nil {
				return nil
			}
		}
		return refused(err)
	})
	if err != nil {
		return nil, err
	}
	return required.Shown(subject, e.Signatures), nil
}

// Admit implements image.Admitter.
func (s *Store) Admit(ctx context.Context, namespace, ref, name string) error {
	rules, err := s.rules.Load().forNamespace(namespace)
	if err != nil {
		return fmt.Errorf("image %s may not be used: %w", name, err)
	}
	if rules.admitAll() {
		return nil
	}
	ctx, end, err := s.background.Begin(ctx)
	if err != nil {
		return err
	}
	defer end()
	img, err := s.Get(ctx, ref)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, admitTimeout)
	defer cancel()
	ctx = database.WithNamespace(ctx)
	t, err := s.treeOf(ctx, img.ID)
	if err != nil {
		return fmt.Errorf("cannot check image %s: %w", name, err)
	}
	m := progress.NewMeter(func(image.Progress) {})
	var faults []error
	candidates, _ := names.Candidates(name, rules.SearchRegistries) // an invalid name has none
	for _, named := range namesFor(img, candidates) {
		own, err := s.treeOfName(ctx, named, t)
		if err == nil {
			err = s.admitAs(ctx, named, own, image.Auth{}, rules, m)
		}
		if err == nil {
			return nil
		}
		faults = append(faults, err)
	}
	return fmt.Errorf("image %s may not be used: %w", name, keepRefusal(faults[0], image.Auth{}))
}

// treeOfName reads the tree of an image by one of its names. A name keeps the manifest that it was pulled with, and the id
// gets that of the newest pull, which may be another one with the same config: of another registry, or without the index
// that is signed. byID is the tree of the id. It serves for an image without a name, for a name with a digest of it, and
// for a name that another image has got meanwhile.
func (s *Store) treeOfName(ctx context.Context, named reference.Named, byID *tree.Tree) (*tree.Tree, error) {
	if named == nil {
		return byID, nil
	}
	if by, ok := named.(reference.Digested); ok && slices.Contains(digestsOf(byID), by.Digest()) {
		return byID, nil
	}
	for _, key := range []string{names.Key(named.String(), byID.Platform), named.String()} { // an image may be for both
		own, err := s.treeOf(ctx, key)
		if err == nil && own.ID() == byID.ID() || err != nil && !errdefs.IsNotFound(err) {
			return own, err
		}
	}
	return byID, nil
}

// namesFor are the names by which an image is judged, one of which must be accepted: the first of those that the
// pod's name can mean and the image has; else those of the first such repository, since a tag may have moved;
// else all. A nil name is that of an image without one.
func namesFor(img *image.Image, candidates []reference.Named) []reference.Named {
	if asked := nameIn(img.Tags, img.Digests, candidates); asked != nil {
		return []reference.Named{asked}
	}
	var all []reference.Named
	for _, text := range slices.Concat(img.Tags, img.Digests) {
		if named, err := names.Parse(text); err == nil {
			all = append(all, named)
		}
	}
	for _, asked := range candidates {
		same := slices.DeleteFunc(slices.Clone(all), func(named reference.Named) bool { return named.Name() != asked.Name() })
		if len(same) > 0 {
			return same
		}
	}
	if len(all) > 0 {
		return all
	}
	return []reference.Named{nil}
}

// keepRefusal removes secrets from an error, as registry.Scrub does, and keeps that it is a refusal, that of a
// registry which does not serve the image, or that of a snapshotter which does not answer.
func keepRefusal(err error, auth image.Auth) error {
	clean := registry.Scrub(err, registry.Auth(auth))
	var r *image.RefusedError
	var unserved *unservedError
	var away *image.AwayError
	switch {
	case errors.As(err, &away):
		return &image.AwayError{Err: clean}
	case errors.As(err, &r):
		return &image.RefusedError{Err: clean}
	case errors.As(err, &unserved):
		return &unservedError{clean}
	}
	return clean
}
