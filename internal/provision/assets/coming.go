package assets

import (
	"fmt"
	"io"
	"sync"

	"github.com/berthrun/berth/internal/errs"
)

// coming are the downloads under way. Together they have at most half of the disk that is free without them: only the end of a
// download shows whether its hash is right, and pods need the disk.
type coming struct {
	mu sync.Mutex
	// reserved and written are bytes.
	reserved, written int64
	// ends is closed when a download ends; nil if nobody waits for that.
	ends chan struct{}
}

// share is what a download may have.
type share struct {
	of         *coming
	size, read int64
}

// reserve takes size bytes for a download, or all if size is negative: then it is not known. room is what is free on the
// disk. If other downloads leave too little, it returns what is closed when one of them ends. errs.Exhausted is a download that does
// not fit alone.
func (c *coming) reserve(size int64, room func() int64) (*share, <-chan struct{}, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	limit := room()/2 + c.written/2
	if size < 0 {
		size = min(limit, maxBytes)
	}
	switch {
	case size > maxBytes, size > limit && c.reserved == 0:
		return nil, nil, tooLarge(min(limit, maxBytes))
	case size > limit-c.reserved:
		if c.ends == nil {
			c.ends = make(chan struct{})
		}
		return nil, c.ends, nil
	}
	c.reserved += size
	return &share{of: c, size: size}, nil, nil
}

func tooLarge(limit int64) error {
	return fmt.Errorf("it has more than 16 GiB, or than half of the free disk: at most %d bytes: %w", limit, errs.Exhausted)
}

// bound is a reader that returns an error after more bytes than the share has.
func (s *share) bound(r io.Reader) io.Reader { return bounded{r, s} }

type bounded struct {
	r     io.Reader
	share *share
}

func (b bounded) Read(p []byte) (int, error) {
	n, err := b.r.Read(p)
	if b.share.take(int64(n)); b.share.read > b.share.size {
		return 0, tooLarge(b.share.size)
	}
	return n, err
}

func (s *share) take(n int64) {
	s.of.mu.Lock()
	defer s.of.mu.Unlock()
	s.read += n
	s.of.written += n
}

// free gives the share back: what was read is in the cache, or was removed.
func (s *share) free() {
	s.of.mu.Lock()
	defer s.of.mu.Unlock()
	s.of.reserved -= s.size
	s.of.written -= s.read
	if s.of.ends != nil {
		close(s.of.ends)
		s.of.ends = nil
	}
}
