package registry

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"

	"github.com/containerd/containerd/v2/core/remotes/docker"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/image/tree"
)

// A registry, and each host that it names for tokens, may answer without end, or with a few bytes that become many. What
// is held in memory is bounded here, after it is decompressed. A list takes far more memory than its text: its elements
// are bounded, too. A blob goes to disk, and its reader ends at its size.

const (
	// maxToken bounds the answer of a host that issues tokens, in bytes.
	maxToken = 1 << 20
	// maxAnswer bounds a manifest, a list of referrers and the text of an error, in bytes.
	maxAnswer = 8 << 20
)

// bound is how much of the answers to a request is read.
type bound struct {
	// what is asked for, for messages.
	what string
	// bytes is the limit, 0 for none.
	bytes int64
}

type boundKey struct{}

func withBound(ctx context.Context, b bound) context.Context {
	return context.WithValue(ctx, boundKey{}, b)
}

func boundOf(ctx context.Context) bound {
	if b, ok := ctx.Value(boundKey{}).(bound); ok {
		return b
	}
	return bound{"a manifest or a list", maxAnswer}
}

// tokens is an authorizer whose requests for tokens have their own bound, and ask for no part. The registry chooses their
// address, so the address does not show which requests they are.
type tokens struct{ docker.Authorizer }

// Authorize implements docker.Authorizer.
func (t tokens) Authorize(ctx context.Context, req *http.Request) error {
	err := t.Authorizer.Authorize(withSpan(withBound(ctx, bound{"a token", maxToken}), nil), req)
	if err != nil {
		return &tokenError{err}
	}
	return nil
}

// tokenError is the error of a request for a token.
type tokenError struct{ err error }

func (e *tokenError) Error() string { return e.err.Error() }

// Unwrap returns the error.
func (e *tokenError) Unwrap() error { return e.err }

// limit bounds the body of an answer.
func limit(resp *http.Response, req *http.Request) {
	b := boundOf(req.Context())
	if b.bytes > 0 && resp.Body != nil {
		resp.Body = &limited{ReadCloser: resp.Body, host: req.URL.Host, bound: b, left: b.bytes, elements: tree.MaxElements}
	}
}

// limited is a body that fails beyond its bound.
type limited struct {
	io.ReadCloser
	host  string
	bound bound
	// left is the rest of the bytes, and elements that of the elements: see tree.MaxElements.
	left     int64
	elements int
}

// Read implements io.Reader.
func (l *limited) Read(p []byte) (int, error) {
	p = p[:min(int64(len(p)), l.left+1)]
	n, err := l.ReadCloser.Read(p)
	l.elements -= bytes.Count(p[:n], []byte(","))
	if l.elements < 0 {
		return 0, fmt.Errorf("%s sends more than %d elements in the place of %s: %w", l.host, tree.MaxElements, l.bound.what, errs.Invalid)
	}
	if int64(n) <= l.left {
		l.left -= int64(n)
		return n, err
	}
	n, l.left = int(l.left), 0
	return n, fmt.Errorf("%s sends more than %d bytes in the place of %s: %w", l.host, l.bound.bytes, l.bound.what, errs.Invalid)
}

// plain has a request ask for bytes as they are. containerd's fetcher asks for zstd, gzip and deflate, which save
// nothing: layers are compressed. req is a copy, whose headers are the caller's.
func plain(req *http.Request) {
	if req.Header.Get("Accept-Encoding") != "" {
		req.Header = req.Header.Clone()
		req.Header.Set("Accept-Encoding", "identity")
	}
}

// encoded returns an error for an answer that the fetcher would decompress with much memory: zstd takes as much as the
// sender chooses, and each of several encodings takes some. Storage behind a registry may send gzip that nobody asked for.
func encoded(resp *http.Response, host string) error {
	if resp.StatusCode < 200 || resp.StatusCode > 299 {
		return nil // of an error only the beginning is read, as it is
	}
	encoding := strings.Join(resp.Header.Values("Content-Encoding"), ",")
	switch strings.ToLower(strings.TrimSpace(encoding)) {
	case "", "identity", "gzip":
		return nil
	}
	return fmt.Errorf("%s sends an answer with the Content-Encoding %.100q, berth takes gzip or none: %w", host, encoding, errs.Unsupported)
}
