// Package registry is a client of image registries: it finds the endpoints that serve a name,
// authenticates to them, and fetches content into the store.
//
// It is containerd's resolver with rules added: credentials are sent only to the host that they
// are for, an answer is never longer than its descriptor says, an endpoint that fails is replaced
// by the next one, also within a blob, and errors carry a kind and no secrets.
package registry

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/containerd/containerd/v2/core/remotes/docker"
	"github.com/distribution/reference"
	imagespec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/image/registry/keyring"
)

// Config of the access to registries.
type Config struct {
	// Dirs are searched for <host>/hosts.toml; the first that has one is used.
	Dirs      []string
	UserAgent string
	// Keys has the node's own credentials, nil for none.
	Keys *keyring.Ring
	// Health remembers which endpoints fail, nil to forget it. Log gets each change of it where a registry has mirrors, nil for
	// nobody.
	Health *Health
	Log    *slog.Logger
	// Parts says how large blobs are fetched. The zero value fetches none in parts.
	Parts Parts
}

// Repository is where one image comes from.
type Repository struct {
	ref, domain string
	// path is the repository without the domain. object is what the reference is about, for people.
	path, object string
	// byDigest: the reference has a digest, so every mirror may be asked for it.
	byDigest  bool
	endpoints []*endpoint
	health    *Health
	log       *slog.Logger
	parts     Parts
	// Asking is called with the name of each endpoint that is asked, and end when that request ends. nil for nobody.
	Asking func(who string) (end func())
	// stall is how long an endpoint may send nothing of a blob; see body.arm.
	stall time.Duration
	// place is the directory of the domain's configuration, "" for none.
	place   string
	sources sources
	creds   *credentials
}

// Open reads which endpoints serve the repository of named. It sends nothing. It is Invalid if their configuration cannot be
// used: no other registry may get the request then.
func Open(ctx context.Context, named reference.Named, auth Auth, cfg Config) (*Repository, error) {
	r, err := Describe(ctx, named, auth, cfg)
	if err == nil && r.sources.fault != nil {
		return nil, r.sources.fault
	}
	return r, err
}

// Describe is Open for Explain. If the configuration of the endpoints cannot be used, Explain shows why, and every request
// fails for this reason.
func Describe(ctx context.Context, named reference.Named, auth Auth, cfg Config) (*Repository, error) {
	_, byDigest := named.(reference.Digested)
	r := &Repository{ref: named.String(), domain: reference.Domain(named), byDigest: byDigest, health: cfg.Health, log: cfg.Log, parts: cfg.Parts, stall: stallTime}
	r.path = reference.Path(named)
	switch object := named.(type) {
	case reference.Digested:
		r.object = "the manifest " + object.Digest().String() + " of " + r.path
	case reference.Tagged:
		r.object = "the tag " + object.Tag() + " of " + r.path
	}
	hosts, err := r.configure(ctx, auth, cfg)
	if err != nil {
		return nil, err
	}
	for i := range hosts {
		e := &endpoint{RegistryHost: hosts[i], index: i}
		e.name = e.Scheme + "://" + e.Host + e.Path
		if r.sources.fault != nil {
			e.name = r.sources.name(i, e.name)
			r.endpoints = append(r.endpoints, e)
			continue
		}
		e.resolver = docker.NewResolver(docker.ResolverOptions{
			Hosts:   func(string) ([]docker.RegistryHost, error) { return []docker.RegistryHost{e.RegistryHost}, nil },
			Headers: http.Header{"User-Agent": {cfg.UserAgent}},
		})
		if e.fetcher, err = e.resolver.Fetcher(ctx, r.ref); err != nil {
			return nil, fmt.Errorf("cannot read the reference %s: %w", r.ref, err)
		}
		r.endpoints = append(r.endpoints, e)
	}
	return r, nil
}

// Broken is why the configuration of the endpoints cannot be used, nil if it can.
func (r *Repository) Broken() error { return r.sources.fault }

// Warnings are what hosts.toml has and nobody uses, with the places.
func (r *Repository) Warnings() []string {
	if r.sources.described == nil {
		return nil
	}
	var all []string
	for _, w := range r.sources.described.AllWarnings() {
		all = append(all, w.At(r.sources.file))
	}
	return all
}

// Close closes idle connections.
func (r *Repository) Close() {
	for _, e := range r.endpoints {
		if e.Client != nil {
			e.Client.CloseIdleConnections()
		}
	}
}

// needed is what an endpoint must be capable of to be asked what the reference means.
func (r *Repository) needed() docker.HostCapabilities {
	if r.byDigest {
		return docker.HostCapabilityPull
	}
	return docker.HostCapabilityPull | docker.HostCapabilityResolve
}

// order returns the endpoints that have the capabilities, in the order in which they are asked now:
// those of the configuration, and after them those that have failed lately.
func (r *Repository) order(need docker.HostCapabilities) []*endpoint {
	return r.arrange(need, r.health.fit)
}

// arrange is order with another judge of which endpoints keep their place.
func (r *Repository) arrange(need docker.HostCapabilities, keeps func(name string) bool) []*endpoint {
	if r.sources.fault != nil {
		return nil
	}
	var fit, behind []*endpoint
	for _, e := range r.endpoints {
		switch {
		case !e.Capabilities.Has(need):
		case keeps(e.name):
			fit = append(fit, e)
		default:
			behind = append(behind, e)
		}
	}
	return append(fit, behind...)
}

// Resolve asks the endpoints for the descriptor of the reference. An error is an UnservedError if the registry has no
// such image for this client.
func (r *Repository) Resolve(ctx context.Context) (imagespec.Descriptor, error) {
	for round := 0; ; round++ {
		var faults []fault
		for _, e := range r.order(r.needed()) {
			desc, err := r.resolveAt(ctx, e)
			if err == nil {
				return desc, nil
			}
			if ctx.Err() != nil {
				return imagespec.Descriptor{}, r.creds.scrub(err)
			}
			faults = append(faults, fault{e, err})
		}
		if !await(ctx, faults, round) {
			return imagespec.Descriptor{}, r.unresolved(faults)
		}
	}
}

// unresolved is the error of Resolve when no endpoint has answered.
func (r *Repository) unresolved(faults []fault) error {
	err := r.failure(faults)
	if !isUnserved(err) {
		return r.creds.scrub(err)
	}
	return &UnservedError{Err: r.creds.scrub(err)}
}

// resolveAt asks one endpoint.
func (r *Repository) resolveAt(ctx context.Context, e *endpoint) (imagespec.Descriptor, error) {
	defer r.ask(e)()
	_, desc, err := e.resolver.Resolve(ctx, r.ref)
	return desc, r.judge(ctx, e, r.object, err)
}

// ask reports that an endpoint is asked until the caller calls end.
func (r *Repository) ask(e *endpoint) (end func()) {
	if r.Asking == nil {
		return func() {}
	}
	return r.Asking(e.label(len(r.endpoints)))
}

// worked notes an answer of an endpoint.
func (r *Repository) worked(e *endpoint) {
	if r.health.worked(e.name) {
		r.logHealth(slog.LevelInfo, "an endpoint of a registry answers again", e)
	}
}

// logHealth logs a change of an endpoint. Without mirrors the error of the pull says the same.
func (r *Repository) logHealth(level slog.Level, text string, e *endpoint, more ...any) {
	if r.log != nil && len(r.endpoints) > 1 {
		r.log.Log(context.Background(), level, text, append([]any{"registry", r.domain, "endpoint", e.name}, more...)...)
	}
}

// judge gives an error of an endpoint its kind and its words, and notes how the endpoint is. what is what it was asked for.
func (r *Repository) judge(ctx context.Context, e *endpoint, what string, err error) error {
	if err == nil {
		r.worked(e)
		return nil
	}
	err = classify(r.inWords(e, what, err))
	request := r.creds.request
	text := errs.Message(Scrub(r.creds.scrub(err), Auth{Username: request.User, Password: request.Secret, RegistryToken: request.Bearer}))
	switch r.health.failed(ctx, e.name, err, text) {
	case nowFails:
		r.logHealth(slog.LevelWarn, "an endpoint of a registry fails", e, "reason", text)
	case nowWorks:
		r.logHealth(slog.LevelInfo, "an endpoint of a registry answers again", e)
	}
	return err
}

// fault is the error of an endpoint.
type fault struct {
	at  *endpoint
	err error
}

// failure is the error of a request that no endpoint has answered. The registry itself, which is the
// last one of the configuration, decides the kind; the text has the others too.
func (r *Repository) failure(faults []fault) error {
	if r.sources.fault != nil {
		return r.sources.fault
	}
	if len(faults) == 0 {
		return fmt.Errorf("no endpoint of %s may be asked for it: the capabilities in %s exclude all: %w", r.domain, r.place, errs.Invalid)
	}
	main := slices.MaxFunc(faults, func(a, b fault) int { return a.at.index - b.at.index })
	var others []string
	seen := map[*endpoint]bool{main.at: true}
	for _, f := range faults {
		if !seen[f.at] {
			seen[f.at] = true
			others = append(others, f.said().Error())
		}
	}
	if len(others) == 0 {
		return main.err
	}
	return fmt.Errorf("%w (asked before: %s)", main.said(), strings.Join(others, "; "))
}

// said is the error with words that name the endpoint.
func (f fault) said() error {
	var named *answerError
	if errors.As(f.err, &named) {
		return f.err
	}
	return &kinded{errors.New(f.at.name + ": " + errs.Message(f.err)), f.err}
}
