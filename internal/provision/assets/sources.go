package assets

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"os"
	"strings"
	"time"

	"github.com/opencontainers/go-digest"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/provision"
)

// headerTimeout bounds the wait for a server's response header. A body may take long, but must not
// stall for stallTimeout.
const (
	headerTimeout = 30 * time.Second
	stallTimeout  = time.Minute
)

// obtain opens the verified file of an asset: a local source, the cache, or what the
// first remote source that works gives.
func (s *Store) obtain(ctx context.Context, ref provision.AssetRef, p place) (io.ReadCloser, error) {
	if file, err := s.cached(ref, p); file != nil || err != nil {
		return file, err
	}
	var faults []error
	for _, source := range ref.Sources {
		file, err := s.from(ctx, ref, p, source)
		if err == nil {
			return file, nil
		}
		faults = append(faults, fmt.Errorf("%s: %w", provision.ShowSource(source), err))
		if ctx.Err() != nil {
			break
		}
		if len(faults) < len(ref.Sources) {
			provision.Note(ctx, "%v; trying the next source", faults[len(faults)-1])
		}
	}
	return nil, fmt.Errorf("cannot fetch asset %s: %w", ref.Name, errors.Join(faults...))
}

// cached opens the file of the cache, and verifies it again: disks rot.
func (s *Store) cached(ref provision.AssetRef, p place) (io.ReadCloser, error) {
	r, err := s.files.Open(p.file)
	if errors.Is(err, errs.NotFound) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	if s.isVerified(p.file) {
		return r, nil
	}
	_, err = io.Copy(io.Discard, newVerifier(r, ref))
	r.Close()
	if errors.Is(err, errs.Invalid) {
		return nil, s.files.Remove(p.file)
	}
	if err != nil {
		return nil, err
	}
	s.setVerified(p.file)
	return s.files.Open(p.file)
}

func (s *Store) isVerified(path string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.verified[path]
}

func (s *Store) setVerified(path string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.verified[path] = true
}

// from takes the asset from one source.
func (s *Store) from(ctx context.Context, ref provision.AssetRef, p place, source string) (io.ReadCloser, error) {
	if strings.HasPrefix(source, "/") {
		return s.local(ref, source)
	}
	r, err := s.reach(ref)
	if err != nil {
		return nil, err
	}
	header := r.header(source)
	for {
		var body io.ReadCloser
		var size int64
		switch {
		case strings.HasPrefix(source, "http://"), strings.HasPrefix(source, "https://"):
			body, size, err = r.get(ctx, source, header)
		case strings.HasPrefix(source, "oci://"):
			body, size, err = r.pull(ctx, ref, strings.TrimPrefix(source, "oci://"), header)
		default:
			err = fmt.Errorf("a source is an absolute path, http(s)://… or oci://…: %w", errs.Invalid)
		}
		if err != nil {
			return nil, err
		}
		share, fits, err := s.coming.reserve(size, func() int64 { return s.files.Room(s.dir) })
		if share != nil {
			return s.store(ref, p, body, share)
		}
		body.Close() // a server does not wait with an answer
		if err != nil {
			return nil, err
		}
		provision.Note(ctx, "asset %s waits for others: the disk has no room for all", ref.Name)
		select {
		case <-fits:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// store writes body to the cache, unless its hash is wrong, and opens it.
func (s *Store) store(ref provision.AssetRef, p place, body io.ReadCloser, share *share) (io.ReadCloser, error) {
	defer body.Close()
	defer share.free()
	if err := s.files.Write(p.file, newVerifier(share.bound(body), ref), provision.Attr{Mode: 0o600}); err != nil {
		return nil, err
	}
	s.setVerified(p.file)
	return s.files.Open(p.file)
}

// local opens a file of this machine, which is not copied.
func (s *Store) local(ref provision.AssetRef, path string) (io.ReadCloser, error) {
	file, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("%w: %w", errs.NotFound, err)
	}
	if err != nil {
		return nil, err
	}
	// A file of this machine may change at any time; it is checked once.
	key := path + " " + ref.Digest
	if s.isVerified(key) {
		return file, nil
	}
	_, err = io.Copy(io.Discard, newVerifier(file, ref))
	if err == nil {
		s.setVerified(key)
		_, err = file.Seek(0, io.SeekStart)
	}
	if err != nil {
		file.Close()
		return nil, err
	}
	return file, nil
}

// get asks a web server. The size is negative if the server does not say it. An error that may pass is Unavailable.
func (r reach) get(ctx context.Context, source, header string) (body io.ReadCloser, size int64, err error) {
	ctx, cancel := context.WithCancel(ctx)
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, source, nil)
	if err != nil {
		cancel()
		return nil, 0, fmt.Errorf("%w: %w", errs.Invalid, bare(err))
	}
	if header != "" {
		req.Header.Set("Authorization", header)
	}
	// A body that is compressed for the transfer has another hash.
	req.Header.Set("Accept-Encoding", "identity")
	resp, err := r.client.Do(req)
	if err != nil {
		cancel()
		return nil, 0, unanswered(err)
	}
	if resp.StatusCode != http.StatusOK {
		resp.Body.Close()
		cancel()
		return nil, 0, r.answered(resp.StatusCode, header)
	}
	return &steady{body: resp.Body, cancel: cancel, timer: time.AfterFunc(stallTimeout, cancel)}, resp.ContentLength, nil
}

// answered is the error for a status without content. An error that may pass is Unavailable.
func (r reach) answered(status int, header string) error {
	text := fmt.Sprintf("the server says %d %s", status, http.StatusText(status))
	switch {
	case status >= 500 || status == http.StatusTooManyRequests || status == http.StatusRequestTimeout:
		return fmt.Errorf("%s: %w", text, errs.Unavailable)
	case status == http.StatusUnauthorized, status == http.StatusForbidden:
		return fmt.Errorf("%s%s: %w", text, r.refused(header), errs.NotFound)
	}
	return fmt.Errorf("%s: %w", text, errs.NotFound)
}

// steady gives up on a body that stalls.
type steady struct {
	body   io.ReadCloser
	cancel context.CancelFunc
	timer  *time.Timer
}

func (s *steady) Read(p []byte) (int, error) {
	n, err := s.body.Read(p)
	s.timer.Reset(stallTimeout)
	if err != nil && !errors.Is(err, io.EOF) {
		err = fmt.Errorf("the connection broke: %w: %w", errs.Unavailable, err)
	}
	return n, err
}

func (s *steady) Close() error {
	s.timer.Stop()
	s.cancel()
	return s.body.Close()
}

// verifier is a reader that returns an error instead of EOF if the hash is wrong.
type verifier struct {
	r        io.Reader
	digester digest.Digester
	ref      provision.AssetRef
}

func newVerifier(r io.Reader, ref provision.AssetRef) *verifier {
	return &verifier{r: r, digester: digest.Digest(ref.Digest).Algorithm().Digester(), ref: ref}
}

func (v *verifier) Read(p []byte) (int, error) {
	n, err := v.r.Read(p)
	v.digester.Hash().Write(p[:n])
	if errors.Is(err, io.EOF) {
		if got := v.digester.Digest().String(); got != v.ref.Digest {
			return n, fmt.Errorf("refused: its hash is %s, not %s: %w", got, v.ref.Digest, errs.Invalid)
		}
	}
	return n, err
}
