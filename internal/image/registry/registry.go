// Package registry is a client of image registries: it finds the hosts that serve a name,
// authenticates to them, and fetches content into the store.
//
// It is containerd's resolver with three rules added: credentials are sent only to the registry
// in the image's name, an answer is never longer than its descriptor says, and errors carry a
// kind and no secrets.
package registry

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"

	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/containerd/v2/core/remotes"
	"github.com/containerd/containerd/v2/core/remotes/docker"
	"github.com/containerd/errdefs"
	"github.com/distribution/reference"
	imagespec "github.com/opencontainers/image-spec/specs-go/v1"
)

// Config of the access to registries.
type Config struct {
	// Dirs are searched for <host>/hosts.toml; the first that has one is used.
	Dirs      []string
	UserAgent string
}

// Repository is where one image comes from.
type Repository struct {
	ref      string
	resolver remotes.Resolver
	fetcher  remotes.Fetcher
	hosts    []docker.RegistryHost
}

// Open reads which hosts serve the repository of named. It sends nothing.
func Open(ctx context.Context, named reference.Named, auth Auth, cfg Config) (*Repository, error) {
	domain := reference.Domain(named)
	hosts, err := configuredHosts(ctx, domain, auth, cfg)
	if err != nil {
		return nil, err
	}
	r := &Repository{ref: named.String(), hosts: hosts}
	r.resolver = docker.NewResolver(docker.ResolverOptions{
		Hosts:   func(string) ([]docker.RegistryHost, error) { return hosts, nil },
		Headers: http.Header{"User-Agent": {cfg.UserAgent}},
	})
	r.fetcher, err = r.resolver.Fetcher(ctx, r.ref)
	if err != nil {
		return nil, fmt.Errorf("cannot read the reference %s: %w", r.ref, err)
	}
	return r, nil
}

// Close closes idle connections.
func (r *Repository) Close() {
	for _, host := range r.hosts {
		host.Client.CloseIdleConnections()
	}
}

// Resolve asks the registry for the descriptor of the reference.
func (r *Repository) Resolve(ctx context.Context) (imagespec.Descriptor, error) {
	_, desc, err := r.resolver.Resolve(ctx, r.ref)
	if err != nil {
		return imagespec.Descriptor{}, classify(err)
	}
	return desc, nil
}

// Fetch fetches the blob of desc into the store, which checks digest and size. It does not fetch
// a blob that the store has; the context's lease keeps it. got is called with the number of bytes
// of each read. Fetch removes the data of a fetch that failed.
func (r *Repository) Fetch(ctx context.Context, store content.Store, desc imagespec.Descriptor, got func(int64)) error {
	// Data inline in a manifest and URLs in it would bypass the registry.
	desc.Data, desc.URLs = nil, nil
	err := remotes.Fetch(ctx, store, counted{r.fetcher, got}, desc)
	if err == nil {
		return nil
	}
	if errdefs.IsAlreadyExists(err) {
		got(desc.Size)
		return nil
	}
	abortErr := store.Abort(context.WithoutCancel(ctx), remotes.MakeRefKey(ctx, desc))
	if errdefs.IsNotFound(abortErr) {
		abortErr = nil
	}
	return errors.Join(classify(err), abortErr)
}

// counted reports the bytes of each read to got.
type counted struct {
	remotes.Fetcher
	got func(int64)
}

func (c counted) Fetch(ctx context.Context, desc imagespec.Descriptor) (io.ReadCloser, error) {
	body, err := c.Fetcher.Fetch(ctx, desc)
	if err != nil {
		return nil, err
	}
	return &countedBody{body, c.got}, nil
}

type countedBody struct {
	io.ReadCloser
	got func(int64)
}

func (b *countedBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if n > 0 {
		b.got(int64(n))
	}
	return n, err
}

// Seek lets an interrupted fetch continue.
func (b *countedBody) Seek(offset int64, whence int) (int64, error) {
	seeker, ok := b.ReadCloser.(io.Seeker)
	if !ok {
		return 0, errors.New("this answer cannot be read again")
	}
	return seeker.Seek(offset, whence)
}
