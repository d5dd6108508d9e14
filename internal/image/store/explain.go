package store

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/distribution/reference"
	"github.com/opencontainers/go-digest"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/image"
	"github.com/berthrun/berth/internal/image/database"
	"github.com/berthrun/berth/internal/image/names"
	"github.com/berthrun/berth/internal/image/policy"
	"github.com/berthrun/berth/internal/image/progress"
	"github.com/berthrun/berth/internal/image/registry"
	"github.com/berthrun/berth/internal/image/registry/keyring"
	"github.com/berthrun/berth/internal/image/tree"
	"github.com/berthrun/berth/internal/image/verifier"
)

// Explain implements image.Explainer with what a pull uses.
func (s *Store) Explain(ctx context.Context, target image.PullTarget, ref string, auth image.Auth, try bool) (*image.Explanation, error) {
	rules, err := s.rules.Load().forNamespace(target.Namespace)
	if err != nil {
		return nil, fmt.Errorf("cannot explain image %s: %w", ref, err)
	}
	found, err := rules.search(ref, auth)
	if err != nil {
		return nil, err
	}
	var all []image.Explanation
	stopped := "" // why a pull asks no further candidate
	for _, named := range found.candidates {
		one, ends, err := s.explain(ctx, named, wanted{auth: found.auth, rules: rules, platform: target.Platform}, try && stopped == "")
		if err != nil {
			return nil, err
		}
		for i := range one.Endpoints {
			if stopped != "" && one.Endpoints[i].Skipped == "" {
				one.Endpoints[i].Skipped = stopped
			}
		}
		if stopped == "" && ends != "" {
			stopped = fmt.Sprintf("not asked: a pull stops at %s: %s", named, ends)
		}
		one.ShortName = names.IsShort(ref)
		all = append(all, *one)
	}
	explained := all[0]
	explained.Next = all[1:]
	explained.Candidates = []string{}
	for _, named := range found.candidates {
		explained.Candidates = append(explained.Candidates, named.String())
	}
	s.mu.RLock()
	defer s.mu.RUnlock()
	if e, _, err := s.find(target.Platform, ref); err == nil {
		if named := nameIn(e.Tags, e.Digests, found.candidates); named != nil {
			explained.Present = named.String()
		}
	}
	return &explained, nil
}

// knows reports whether an endpoint that a pull asks knows the reference.
func knows(at image.Endpoint) bool {
	return at.Skipped == "" && at.Attempt != nil && at.Attempt.Digest != ""
}

// explain is Explain of a full reference. ends says why a pull goes no further than this candidate, "" if it goes on or that
// is not known.
func (s *Store) explain(ctx context.Context, named reference.Named, want wanted, try bool) (_ *image.Explanation, ends string, err error) {
	auth, rules := want.auth, want.rules
	remote, err := s.registryOf(ctx, named, auth, rules, registry.Describe)
	if err != nil {
		return nil, "", fmt.Errorf("cannot explain image %s: %w", named, registry.Scrub(err, registry.Auth(auth)))
	}
	defer remote.Close()
	endpoints, failed := remote.Explain(ctx, try)
	ends = rules.endsAt(named, auth, try, failed)
	explained := &image.Explanation{
		Ref: named.String(), Candidates: []string{named.String()}, Endpoints: endpoints, Platform: cmp.Or(want.platform, image.NodePlatform()),
	}
	if broken := remote.Broken(); broken != nil {
		explained.Fault = errs.Message(registry.Scrub(broken, registry.Auth(auth)))
	}
	for i := range explained.Endpoints {
		if a := explained.Endpoints[i].Attempt; a != nil && a.Fault != "" {
			a.Fault = registry.Scrub(errors.New(a.Fault), registry.Auth(auth)).Error()
		}
	}
	if explained.Admission = rules.explainAdmission(named); explained.Admission != nil && try {
		if failed != nil && remote.Broken() == nil && rules.mayAsk(named) == nil {
			explained.Admission.Trial = &image.AdmissionTrial{Fault: "no endpoint has it; see their answers"}
		} else {
			explained.Admission.Trial = s.tryAdmission(ctx, named, want)
		}
	}
	if i := slices.IndexFunc(explained.Endpoints, knows); i >= 0 {
		explained.Referrers = referrersOf(ctx, remote, explained.Endpoints[i].Attempt.Digest, auth)
	}
	return explained, ends, nil
}

// endsAt says why a pull stops at a candidate, as Pull does, "" if it goes on or that is not known. tried is set if the
// registry was asked what the name means; failed is the error then, or that of a configuration with which nothing is asked.
func (r *PullRules) endsAt(named reference.Named, auth image.Auth, tried bool, failed error) string {
	var unserved *registry.UnservedError
	switch err := r.mayAsk(named); {
	case err != nil:
		return errs.Message(err)
	case !tried && failed == nil, errors.As(failed, &unserved):
		return ""
	case failed == nil:
		return "its registry has the image"
	}
	return errs.Message(registry.Scrub(failed, registry.Auth(auth)))
}

// maxReferrers bounds how many referrers are shown: an image may have any number.
const maxReferrers = 100

// referrersOf asks for the artifacts that refer to a manifest.
func referrersOf(ctx context.Context, remote *registry.Repository, of digest.Digest, auth image.Auth) *image.Referrers {
	found := &image.Referrers{Of: of, List: []image.Referrer{}}
	all, err := remote.Referrers(ctx, of, "")
	if errs.IgnoreNotFound(err) != nil { // a registry without the list of referrers has none
		found.Fault = errs.Message(registry.Scrub(err, registry.Auth(auth)))
	}
	for _, desc := range all[:min(len(all), maxReferrers)] {
		if desc.Digest.Validate() == nil {
			found.List = append(found.List, image.Referrer{ArtifactType: desc.ArtifactType, Digest: desc.Digest, Size: desc.Size})
		}
	}
	found.LeftOut = len(all) - len(found.List)
	return found
}

// explainAdmission says what decides whether the image of a name may be used, nil if nothing does.
func (r *PullRules) explainAdmission(named reference.Named) *image.Admission {
	if r.admitAll() {
		return nil
	}
	a := &image.Admission{}
	if r.PolicyFile != "" {
		a.Policy = &image.PolicyDecision{File: r.PolicyFile}
		if required, err := r.rulesFor(named); err != nil {
			a.Policy.Fault = errs.Message(err)
		} else {
			a.Policy.Scope, a.Policy.Requirements = required.Scope, required.Describe(named)
		}
	}
	if r.VerifierDir != "" {
		a.Verifiers = &image.Verifiers{Dir: r.VerifierDir, Programs: []string{}}
		if programs, err := verifier.Programs(r.VerifierDir); err != nil {
			a.Verifiers.Fault = errs.Message(err)
		} else {
			a.Verifiers.Programs = programs
		}
	}
	return a
}

// tryAdmission decides about the image that the registry has now, as a pull does.
func (s *Store) tryAdmission(ctx context.Context, named reference.Named, want wanted) *image.AdmissionTrial {
	trial := &image.AdmissionTrial{}
	if err := s.decide(ctx, named, want, trial); err != nil {
		trial.Fault = errs.Message(registry.Scrub(err, registry.Auth(want.auth)))
		return trial
	}
	trial.Accepted = true
	return trial
}

// decide returns nil if the image may be used. It asks all programs, also those that have accepted the image
// before, and keeps nothing.
func (s *Store) decide(ctx context.Context, named reference.Named, want wanted, trial *image.AdmissionTrial) (err error) {
	auth, rules := want.auth, want.rules
	if err := rules.mayAsk(named); err != nil {
		return err
	}
	ctx, end, err := s.background.Begin(ctx)
	if err != nil {
		return err
	}
	defer end()
	m := progress.NewMeter(nil)
	guarded, release := m.Guard(ctx, rules.NoProgressTimeout)
	defer release()
	err = s.db.WithLease(guarded, func(ctx context.Context) error {
		remote, err := s.openRegistry(ctx, named, auth, rules)
		if err != nil {
			return err
		}
		defer remote.Close()
		t, err := s.resolve(ctx, named, want.platform, remote, m)
		if err != nil {
			return err
		}
		trial.Digest = t.Named().Digest
		e := s.evidenceOf(t.ID())
		e.Verifiers = map[string]string{}
		_, err = s.judge(ctx, named, t, e, auth, rules, m)
		trial.Signatures = rules.explainSignatures(named, t, e.Signatures)
		if err != nil {
			return err
		}
		return s.layers.MayDecrypt(ctx, t) // a pull of it fails without a key
	})
	if cause := context.Cause(guarded); err != nil && cause != nil {
		return fmt.Errorf("%w", cause) // more precise than "context canceled"
	}
	if err == nil {
		// An image that the node does not have needs its documents no more.
		s.db.Collect(database.WithNamespace(context.WithoutCancel(ctx)))
	}
	return err
}

// explainSignatures says which signatures count.
func (r *PullRules) explainSignatures(named reference.Named, t *tree.Tree, found []policy.Signature) []image.SignatureTrial {
	required, err := r.rulesFor(named)
	if err != nil || required == nil || !required.NeedsSignatures() {
		return nil // the decision has the error
	}
	var all []image.SignatureTrial
	for i, fault := range required.Explain(subjectOf(named, t, r), found) {
		all = append(all, image.SignatureTrial{Place: found[i].Place, Fault: fault})
	}
	return all
}

// openRegistry reads where the images of a repository come from. It logs each warning of a hosts.toml once.
func (s *Store) openRegistry(ctx context.Context, named reference.Named, auth image.Auth, rules *PullRules) (*registry.Repository, error) {
	remote, err := s.registryOf(ctx, named, auth, rules, registry.Open)
	if err != nil {
		return nil, err
	}
	for _, warning := range remote.Warnings() {
		if _, logged := s.warned.LoadOrStore(warning, true); !logged {
			s.log.Warn("a part of hosts.toml has no effect", "registry", reference.Domain(named), "warning", warning)
		}
	}
	return remote, nil
}

// registryOf is openRegistry by registry.Open or registry.Describe.
func (s *Store) registryOf(
	ctx context.Context, named reference.Named, auth image.Auth, rules *PullRules,
	open func(context.Context, reference.Named, registry.Auth, registry.Config) (*registry.Repository, error),
) (*registry.Repository, error) {
	keys, err := keyring.Read(rules.CredentialFiles)
	if err != nil {
		return nil, err
	}
	return open(ctx, named, registry.Auth(auth), registry.Config{
		Dirs: rules.RegistryConfigDirs, UserAgent: s.userAgent, Keys: keys, Health: &s.health, Log: s.log,
		Parts: registry.Parts{Size: rules.LayerPart, Connections: rules.LayerConnections},
	})
}
