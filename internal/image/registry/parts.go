package registry

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	imagespec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/image/downloads"
)

// A large blob is fetched in parts, side by side, because a registry or the network may limit what one connection
// gets. The reader of the blob (fetch.go) reads one part after the other. It asks for a part itself, unless that has
// been fetched ahead. So what is on disk has no gaps, and a later fetch can continue it. A part that fails is to the
// reader an answer that breaks: the next endpoint is asked for the rest.

// Parts says how large blobs are fetched.
type Parts struct {
	// Size is that of a part, in bytes. A blob with more than minParts of them left is fetched in parts.
	Size int64
	// Connections is how many requests for one blob run at a time. With less than 2 blobs are not fetched in parts.
	Connections int
}

const (
	// minParts is how many parts are not worth more than one request.
	minParts = 2
	// maxRead is how many bytes of a part are read at a time, and then wait for the rate.
	maxRead = 1 << 20
)

// span is the part of a blob that a request asks for.
type span struct {
	// at is whom it asks, and size that of the blob. to is the end of the part.
	at       *endpoint
	to, size int64
	// exact: an answer with the whole blob is an error. Without it, whole is set by such an answer.
	exact, whole bool
	// from is the beginning of the part, which the request has.
	from int64
}

type spanKey struct{}

func withSpan(ctx context.Context, s *span) context.Context {
	return context.WithValue(ctx, spanKey{}, s)
}

// spanOf returns nil for a request that asks for all that it can get.
func spanOf(ctx context.Context) *span {
	s, _ := ctx.Value(spanKey{}).(*span)
	return s
}

// ask gives a request its range. The fetcher asks for the bytes from an offset, or for all. req is a copy, whose headers
// are the caller's.
func (s *span) ask(req *http.Request) {
	if s == nil {
		return
	}
	s.from = rangeBegin(req)
	req.Header = req.Header.Clone()
	req.Header.Set("Range", fmt.Sprintf("bytes=%d-%d", s.from, s.to-1))
}

// rangeBegin returns where the range begins that the fetcher asks for, 0 without one.
func rangeBegin(req *http.Request) int64 {
	from, _ := strconv.ParseInt(strings.TrimSuffix(strings.TrimPrefix(req.Header.Get("Range"), "bytes="), "-"), 10, 64)
	return from
}

// rangeError is the error of an endpoint that does not serve the part which it was asked for. It is asked for no more
// parts.
type rangeError struct{ err error }

func (e *rangeError) Error() string { return e.err.Error() }

// Unwrap returns an error of kind Invalid.
func (e *rangeError) Unwrap() error { return e.err }

// check compares an answer with the part, and notes whether the endpoint serves parts.
func (s *span) check(resp *http.Response) error {
	if s == nil {
		return nil
	}
	switch resp.StatusCode {
	case http.StatusOK:
		s.at.whole.Store(true)
		s.whole = true
		if !s.exact {
			return nil
		}
	case http.StatusPartialContent:
		begins := fmt.Sprintf("bytes %d-%d/", s.from, s.to-1)
		has, encoding := strings.TrimSpace(resp.Header.Get("Content-Range")), resp.Header.Get("Content-Encoding")
		right := strings.EqualFold(has, begins+strconv.FormatInt(s.size, 10)) || strings.EqualFold(has, begins+"*")
		if right && (encoding == "" || strings.EqualFold(encoding, "identity")) {
			s.at.ranged.Store(true)
			return nil
		}
	case http.StatusBadRequest, http.StatusRequestedRangeNotSatisfiable, http.StatusNotImplemented:
	default:
		return nil // it is about something else than the range
	}
	s.at.whole.Store(true)
	return &rangeError{fmt.Errorf("asked for bytes %d-%d of %d, it answers %s with the Content-Range %.100q: %w",
		s.from, s.to-1, s.size, resp.Status, resp.Header.Get("Content-Range"), errs.Invalid)}
}

// limited notes that the endpoint limits requests.
func (s *span) limited() {
	if s != nil {
		s.at.limits.Store(true)
	}
}

// part is one part of a blob that is fetched ahead. It is an io.ReadCloser for one reader.
type part struct {
	from, to int64
	at       *endpoint
	// failures is how many requests for the blob had failed when this one began.
	failures int
	ctx      context.Context //nolint:containedctx // of its request
	stop     context.CancelCauseFunc
	stall    time.Duration
	room     *downloads.Room
	ended    chan struct{}

	mu      sync.Mutex
	changed *sync.Cond
	// come is how many bytes have come, read how many the reader has. With done no more come, and err says why.
	come, read int
	done       bool
	err        error
	// waits begins a wait for the rate; see downloads.Turn. It counts while the reader waits for the part, too: slow is set
	// while the part waits, idle while the reader does, and over ends a wait that counts.
	waits      func() (end func())
	slow, idle bool
	over       func()
}

// beginPart starts to fetch bytes ahead from the current endpoint. The caller closes the part.
func (b *body) beginPart(from int64, room *downloads.Room) *part {
	p := &part{
		from: from, to: from + int64(len(room.Buffer)), at: b.at, failures: b.failures, stall: b.r.stall, room: room,
		ended: make(chan struct{}), waits: b.turn.Waits,
	}
	p.changed = sync.NewCond(&p.mu)
	ctx := withSpan(withBound(b.ctx, bound{}), &span{at: p.at, to: p.to, size: b.desc.Size, exact: true})
	p.ctx, p.stop = context.WithCancelCause(ctx)
	turn := downloads.Turn{Gate: b.turn.Gate, Waits: p.wait}
	desc := b.desc
	go func() {
		defer close(p.ended)
		err := errs.Guard("fetching of a part of "+desc.Digest.String(), func() error { return p.fetch(desc, turn) })
		room.Leave()
		p.mu.Lock()
		defer p.mu.Unlock()
		p.done, p.err = true, err
		p.changed.Broadcast()
	}()
	return p
}

// fetch fills the buffer.
func (p *part) fetch(desc imagespec.Descriptor, turn downloads.Turn) error {
	answer, err := fetchFrom(p.ctx, p.at, desc, p.from)
	if err != nil {
		return err
	}
	defer answer.Close()
	stall := p.watch()
	defer stall.Stop()
	for at := 0; at < len(p.room.Buffer); {
		stall.Reset(p.stall)
		n, err := answer.Read(p.room.Buffer[at:min(at+maxRead, len(p.room.Buffer))])
		stall.Stop()
		if err := turn.Read(p.ctx, n); err != nil {
			return err
		}
		at += n
		p.mu.Lock()
		p.come = at
		p.changed.Broadcast()
		p.mu.Unlock()
		switch {
		case at == len(p.room.Buffer):
			return nil
		case errors.Is(err, io.EOF):
			return fmt.Errorf("the answer ends after %d of %d bytes: %w", at, len(p.room.Buffer), io.ErrUnexpectedEOF)
		case err != nil:
			return err
		}
	}
	return nil
}

// watch makes the timer that ends the request when it stalls. Another request for the rest may do better.
func (p *part) watch() *time.Timer {
	stall := time.AfterFunc(p.stall, func() {
		p.stop(fmt.Errorf("it sent nothing for %s: %w", p.stall, errs.Unavailable))
	})
	stall.Stop()
	return stall
}

// fetchFrom asks an endpoint for the bytes of a blob from an offset. The request is sent with the first read.
func fetchFrom(ctx context.Context, at *endpoint, desc imagespec.Descriptor, offset int64) (io.ReadCloser, error) {
	answer, err := at.fetcher.Fetch(ctx, desc)
	if err != nil || offset == 0 {
		return answer, err
	}
	seeker, ok := answer.(io.Seeker)
	if !ok {
		return nil, errors.Join(errors.New("this answer cannot be read from the middle"), answer.Close())
	}
	if _, err = seeker.Seek(offset, io.SeekStart); err != nil { // the fetcher makes it a range of its request
		return nil, errors.Join(err, answer.Close())
	}
	return answer, nil
}

// Read implements io.Reader. It waits for bytes, and returns the error of the request after them.
func (p *part) Read(to []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.idle = true
	p.count()
	for p.read == p.come && !p.done {
		p.changed.Wait()
	}
	p.idle = false
	p.count()
	n := copy(to, p.room.Buffer[p.read:p.come])
	p.read += n
	switch {
	case n > 0 && p.read < len(p.room.Buffer):
		return n, nil
	case p.read == len(p.room.Buffer):
		return n, io.EOF
	}
	return 0, p.err
}

// Close ends the request, and frees the memory.
func (p *part) Close() error {
	p.stop(nil)
	<-p.ended
	p.room.Free()
	return nil
}

// failed reports whether the request has ended without a byte.
func (p *part) failed() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.done && p.come == 0
}

// wait notes that the request waits for the rate until end is called.
func (p *part) wait() (end func()) {
	set := func(slow bool) {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.slow = slow
		p.count()
	}
	set(true)
	return func() { set(false) }
}

// count begins or ends a wait of the blob: a part that waits delays the blob only if the reader needs it. p.mu is held.
func (p *part) count() {
	counts := p.slow && p.idle && p.waits != nil
	switch {
	case counts && p.over == nil:
		p.over = p.waits()
	case !counts && p.over != nil:
		p.over()
		p.over = nil
	}
}

// inParts returns the size of the parts in which the rest of the blob is fetched, 0 if it is fetched as a whole. That of
// a blob which was damaged is: an endpoint may have sent wrong parts.
func (b *body) inParts() int64 {
	parts := b.r.parts
	if b.turn.Gate == nil || parts.Connections < 2 || b.restarted || b.desc.Size-b.offset <= minParts*parts.Size {
		return 0
	}
	return parts.Size
}

// spanTo returns where the request that the reader is about to send ends.
func (b *body) spanTo() int64 {
	if b.part == 0 || b.at.whole.Load() {
		b.dropAhead()
		return b.desc.Size
	}
	if len(b.ahead) > 0 {
		return b.ahead[0].from
	}
	return min(b.offset+b.part, b.desc.Size)
}

// fetchAhead begins to fetch the next parts, if the current endpoint has shown that it serves parts, and if places and
// memory are free. An endpoint that limits requests gets one at a time.
func (b *body) fetchAhead() {
	for b.part > 0 && b.planned < b.desc.Size && len(b.ahead)+1 < b.r.parts.Connections {
		if !b.at.ranged.Load() || b.at.whole.Load() || b.at.limits.Load() {
			return
		}
		room := b.turn.Gate.Ahead(int(min(b.part, b.desc.Size-b.planned)))
		if room == nil {
			return
		}
		next := b.beginPart(b.planned, room)
		b.ahead = append(b.ahead, next)
		b.planned = next.to
	}
}

// takeAhead returns the part at the current offset, nil if it is not fetched ahead. A part that has failed in vain before
// the last failure was dealt with is asked for again.
func (b *body) takeAhead() *part {
	if len(b.ahead) == 0 || b.ahead[0].from != b.offset {
		return nil
	}
	next := b.ahead[0]
	b.ahead = b.ahead[1:]
	if next.failures < b.failures && next.failed() {
		_ = next.Close()
		return nil
	}
	return next
}

// dropAhead ends what is fetched ahead.
func (b *body) dropAhead() {
	for _, p := range b.ahead {
		p.stop(nil)
	}
	for _, p := range b.ahead {
		_ = p.Close()
	}
	b.ahead, b.planned = nil, b.desc.Size
}
