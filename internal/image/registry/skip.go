package registry

import (
	"context"
	"io"
	"net/http"
)

// A server that knows no ranges answers a request for the rest of a blob with the whole blob. containerd's fetcher reads
// what comes before the rest, and drops it, before it returns the answer. With gigabytes that takes minutes, in which a
// reader of the answer sees nothing.

type skipKey struct{}

// withSkip has skipped called with the number of bytes of each read that come before the range of a request. Its error
// becomes that of the read.
func withSkip(ctx context.Context, skipped func(n int) error) context.Context {
	return context.WithValue(ctx, skipKey{}, skipped)
}

// skip has the bytes of an answer counted that come before the range of its request.
func skip(resp *http.Response, req *http.Request) {
	skipped, _ := req.Context().Value(skipKey{}).(func(int) error)
	from := rangeBegin(req)
	// The fetcher believes a Content-Range, whatever the status is.
	if skipped == nil || from == 0 || resp.StatusCode != http.StatusOK || resp.Header.Get("Content-Range") != "" {
		return
	}
	resp.Body = &skipping{ReadCloser: resp.Body, left: from, skipped: skipped}
}

// skipping is a body whose first bytes, left of them, are dropped.
type skipping struct {
	io.ReadCloser
	left    int64
	skipped func(n int) error
}

// Read implements io.Reader.
func (s *skipping) Read(p []byte) (int, error) {
	n, err := s.ReadCloser.Read(p)
	before := min(int64(n), s.left)
	if before == 0 {
		return n, err
	}
	s.left -= before
	if skipErr := s.skipped(int(before)); skipErr != nil {
		return n, skipErr
	}
	return n, err
}
