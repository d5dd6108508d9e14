package store

import (
	"context"
	"errors"
	"fmt"

	"github.com/distribution/reference"

	"github.com/berthrun/berth/internal/image"
	"github.com/berthrun/berth/internal/image/names"
	"github.com/berthrun/berth/internal/image/registry"
	"github.com/berthrun/berth/internal/image/registry/keyring"
)

// Explain implements image.Explainer with what a pull uses.
func (s *Store) Explain(ctx context.Context, ref string, auth image.Auth, try bool) (*image.Explanation, error) {
	named, err := names.Parse(ref)
	if err != nil {
		return nil, err
	}
	remote, err := s.openRegistry(ctx, named, auth, s.rules.Load())
	if err != nil {
		return nil, fmt.Errorf("cannot explain image %s: %w", named, registry.Scrub(err, registry.Auth(auth)))
	}
	defer remote.Close()
	explained := &image.Explanation{
		Ref: named.String(), ShortName: names.IsShort(ref), Candidates: []string{named.String()},
		Endpoints: remote.Explain(ctx, try),
	}
	for i := range explained.Endpoints {
		if a := explained.Endpoints[i].Attempt; a != nil && a.Fault != "" {
			a.Fault = registry.Scrub(errors.New(a.Fault), registry.Auth(auth)).Error()
		}
	}
	return explained, nil
}

// openRegistry reads where the images of a repository come from.
func (s *Store) openRegistry(ctx context.Context, named reference.Named, auth image.Auth, rules *PullRules) (*registry.Repository, error) {
	keys, err := keyring.Read(rules.CredentialFiles)
	if err != nil {
		return nil, err
	}
	return registry.Open(ctx, named, registry.Auth(auth), registry.Config{
		Dirs: rules.RegistryConfigDirs, UserAgent: s.userAgent, Keys: keys, Health: &s.health,
	})
}
