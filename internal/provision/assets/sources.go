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
	var body io.ReadCloser
	switch {
	case strings.HasPrefix(source, "http://"), strings.HasPrefix(source, "https://"):
		body, err = r.get(ctx, source, header, s.limit())
	case strings.HasPrefix(source, "oci://"):
		body, err = r.pull(ctx, ref, strings.TrimPrefix(source, "oci://"), header)
	default:
		err = fmt.Errorf("a source is an absolute path, http(s)://… or oci://…: %w", errs.Invalid)
	}
	if err != nil {
		return nil, err
	}
	return s.store(ref, p, body)
}

// limit bounds what all downloads under way may have together, in bytes: only the end of one shows whether its hash is right,
// and pods need the disk.
func (s *Store) limit() int64 { return s.files.Room(s.dir)/2 + s.coming.Load()/2 }

func tooLarge(limit int64) error {
	return fmt.Errorf("it has more than 16 GiB, or downloads under way have together more than half of the free disk, %d bytes: %w", limit, errs.Exhausted)
}

// bounded is a reader that returns an error after more than maxBytes, or if all of its store have more than limit together.
type bounded struct {
	r           io.Reader
	store       *Store
	read, limit int64
}

func (b *bounded) Read(p []byte) (int, error) {
	n, err := b.r.Read(p)
	b.read += int64(n)
	if together := b.store.coming.Add(int64(n)); together > b.limit || b.read > maxBytes {
		return 0, tooLarge(b.limit)
	}
	return n, err
}

// close frees what was read for other downloads: it is in the cache, or was removed.
func (b *bounded) close() { b.store.coming.Add(-b.read) }

// store writes body to the cache, unless its hash is wrong, and opens it.
func (s *Store) store(ref provision.AssetRef, p place, body io.ReadCloser) (io.ReadCloser, error) {
	defer body.Close()
	b := &bounded{r: body, store: s, limit: s.limit()}
	defer b.close()
	if err := s.files.Write(p.file, newVerifier(b, ref), provision.Attr{Mode: 0o600}); err != nil {
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

// get asks a web server for at most limit bytes. An error that may pass is Unavailable.
func (r reach) get(ctx context.Context, source, header string, limit int64) (io.ReadCloser, error) {
	ctx, cancel := context.WithCancel(ctx)
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, source, nil)
	if err != nil {
		cancel()
		return nil, fmt.Errorf("%w: %w", errs.Invalid, bare(err))
	}
	if header != "" {
		req.Header.Set("Authorization", header)
	}
	// A body that is compressed for the transfer has another hash.
	req.Header.Set("Accept-Encoding", "identity")
	resp, err := r.client.Do(req)
	if err != nil {
		cancel()
		return nil, unanswered(err)
	}
	if resp.StatusCode != http.StatusOK {
		resp.Body.Close()
		cancel()
		return nil, r.answered(resp.StatusCode, header)
	}
	if resp.ContentLength > min(limit, maxBytes) {
		resp.Body.Close()
		cancel()
		return nil, tooLarge(limit)
	}
	return &steady{body: resp.Body, cancel: cancel, timer: time.AfterFunc(stallTimeout, cancel)}, nil
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
