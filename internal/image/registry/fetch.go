package registry

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/containerd/v2/core/remotes/docker"
	"github.com/containerd/errdefs"
	imagespec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/image/downloads"
)

// Target is where blobs are written.
type Target interface {
	// BeginDownload opens a writer, at the end of what an earlier download of the blob has left.
	// errdefs.ErrAlreadyExists if the blob is there.
	BeginDownload(ctx context.Context, desc imagespec.Descriptor) (content.Writer, error)
	// LeaveDownload ends a download that is not complete. With keep a later one may continue it.
	LeaveDownload(ctx context.Context, desc imagespec.Descriptor, keep bool) error
}

// Fetch fetches the blob of desc, and checks its digest and size. It does not fetch a blob that the
// target has, nor the part that an earlier fetch has left. got is called with the number of bytes of
// each read, a negative number when some are fetched again, and 0 when bytes come that were not asked for. What Fetch has fetched stays if the error
// is that the registry or the network does not answer, or that ctx has ended. turn says how the download
// takes part in what the node downloads: it has a place there while a request for the blob runs. A large
// blob is fetched in parts if turn has a Gate; each has a place of its own.
func (r *Repository) Fetch(ctx context.Context, to Target, desc imagespec.Descriptor, turn downloads.Turn, got func(int64)) error {
	if desc.Size <= 0 {
		return fmt.Errorf("blob %s: its descriptor says that it has %d bytes: %w", desc.Digest, desc.Size, errs.Invalid)
	}
	// Data inline in a manifest and URLs in it would bypass the registry.
	desc.Data, desc.URLs = nil, nil
	b := &body{r: r, got: got, turn: turn, ctx: ctx, desc: desc, again: map[*endpoint]int{}, served: map[*endpoint]bool{}}
	defer b.dropAhead()
	defer b.leave()
	for {
		began, err := b.copy(to)
		if err == nil {
			return nil
		}
		if errdefs.IsAlreadyExists(err) {
			got(desc.Size)
			return nil
		}
		damaged := errdefs.IsFailedPrecondition(err)
		err = classify(err)
		keep := !damaged && (ctx.Err() != nil || errors.Is(err, errs.Unavailable))
		if leaveErr := to.LeaveDownload(context.WithoutCancel(ctx), desc, keep); leaveErr != nil {
			return errors.Join(r.creds.scrub(err), leaveErr)
		}
		// The part that an earlier fetch has left may be damaged, or an endpoint sends wrong bytes.
		if !damaged || ctx.Err() != nil || !b.restart(began == 0) {
			return r.creds.scrub(err)
		}
		got(-b.offset)
		b.offset = 0
	}
}

// copy copies the rest of the blob to the target. began is where it begins.
func (b *body) copy(to Target) (began int64, err error) {
	w, err := to.BeginDownload(b.ctx, b.desc)
	if err != nil {
		return 0, err
	}
	defer w.Close()
	status, err := w.Status()
	if err != nil {
		return 0, err
	}
	b.got(status.Offset)
	b.offset, b.planned = status.Offset, status.Offset
	b.part = b.inParts()
	return status.Offset, content.Copy(b.ctx, w, b, b.desc.Size, b.desc.Digest)
}

// restart prepares another fetch of the whole blob, once. With others it asks only endpoints that
// have sent nothing of it, and after them those that have sent parts: one that sends wrong parts may
// send the right whole. It returns false if no endpoint is left.
func (b *body) restart(others bool) bool {
	if b.restarted {
		return false
	}
	b.restarted = true
	b.leave()
	b.dropAhead()
	var served []*endpoint
	b.left = nil
	for _, e := range b.r.order(docker.HostCapabilityPull) {
		switch {
		case !others || !b.served[e]:
			b.left = append(b.left, e)
		case b.part > 0:
			served = append(served, e)
		}
	}
	b.left = append(b.left, served...)
	b.faults, b.started = nil, true
	return len(b.left) > 0
}

const (
	// maxCuts is how many times an endpoint may cut off one blob and be asked for the rest.
	maxCuts = 5
	// stallTime is how long an endpoint may send nothing before the next one is asked for the rest, or the same one again.
	stallTime = time.Minute
)

// body reads a blob. When an endpoint fails it asks the next one for the rest.
type body struct {
	r      *Repository
	got    func(int64)
	turn   downloads.Turn
	ctx    context.Context //nolint:containedctx // io.Reader has none
	desc   imagespec.Descriptor
	offset int64
	// started: left has been filled. restarted: the blob is fetched a second time.
	started, restarted bool
	// served are the endpoints that have sent a part.
	served map[*endpoint]bool
	// left are the endpoints to ask, round counts how many times all were asked.
	left   []*endpoint
	round  int
	faults []fault
	again  map[*endpoint]int
	// failures counts requests that have failed.
	failures int

	// part is the size of the parts in which the blob is fetched, 0 if it is fetched as a whole. ahead are those that are
	// fetched before they are read, one after the other, and planned is where the next one begins.
	part    int64
	ahead   []*part
	planned int64

	// current is an answer of at, or a part. It ends at end, unless asked, which is nil for a part, has got the whole blob.
	at      *endpoint
	current io.ReadCloser
	end     int64
	asked   *span
	// release frees the place that the current request has in the gate of downloads.
	release func()
	// moved: the current endpoint has sent something. stop ends its request, which has the context
	// request.
	moved   bool
	request context.Context //nolint:containedctx // of one request
	stop    context.CancelCauseFunc
	stall   *time.Timer
	// asks ends the time in which the current endpoint is asked.
	asks func()
}

// Read implements io.Reader.
func (b *body) Read(p []byte) (int, error) {
	for {
		if b.current == nil && b.offset >= b.desc.Size {
			return 0, io.EOF // again: who gets the end with the last bytes may ask for it once more
		}
		if b.current == nil {
			if err := b.open(); err != nil {
				return 0, err
			}
		}
		b.fetchAhead()
		n, err := b.read(p)
		if n > 0 {
			b.offset += int64(n)
			b.moved, b.served[b.at] = true, true
			b.got(int64(n))
			// Not within the time of a stall: the endpoint is not at fault. Of a part this has been counted.
			if b.asked != nil {
				if err := b.turn.Read(b.ctx, n); err != nil {
					return n, err
				}
			}
		}
		switch {
		case b.offset == b.end && b.end < b.desc.Size && (err == nil || errors.Is(err, io.EOF)):
			b.finishPart()
			return n, nil
		case err == nil:
			return n, nil
		case errors.Is(err, io.EOF) && b.offset >= b.desc.Size:
			b.r.worked(b.at)
			b.leave() // the next download need not wait until this one is written
			return n, io.EOF
		case errors.Is(err, io.EOF):
			err = fmt.Errorf("the answer ends after %d of %d bytes: %w", b.offset, b.desc.Size, io.ErrUnexpectedEOF)
		case b.ctx.Err() != nil:
			return n, context.Cause(b.ctx)
		}
		b.next(err)
		if n > 0 {
			return n, nil
		}
	}
}

// arm starts the timer of the current request, if another one may do better: that of another endpoint, or another one for
// the rest of a part. An endpoint that serves parts need not send again what has come. A slow first byte is no stall at
// the only endpoint: a proxy may fetch the blob before it sends a part.
func (b *body) arm() {
	again := b.part > 0 && b.moved && !b.at.whole.Load() && b.again[b.at] < maxCuts
	if len(b.left) > 0 || again {
		b.stall.Reset(b.r.stall)
	}
}

// read reads from the current endpoint, and ends its request if it stalls while another one may do better.
func (b *body) read(p []byte) (int, error) {
	if b.asked != nil { // a part has a timer of its own
		b.arm()
		defer b.stall.Stop()
	}
	if b.end < b.desc.Size { // at the end of the blob, more bytes than it has are an error
		p = p[:min(int64(len(p)), b.end-b.offset)]
	}
	n, err := b.current.Read(p)
	if b.asked != nil && b.asked.whole && b.end < b.desc.Size {
		b.dropAhead()
		b.end = b.desc.Size
	}
	return n, err
}

// open asks the next endpoint for the rest, or takes the part that has been fetched ahead.
func (b *body) open() error {
	if next := b.takeAhead(); next != nil {
		b.at, b.current, b.end, b.asked = next.at, next, next.to, nil
		b.left = slices.DeleteFunc(b.left, func(e *endpoint) bool { return e == next.at })
		b.request, b.stop, b.release, b.moved = next.ctx, next.stop, func() {}, b.served[next.at]
		b.watch()
		return nil
	}
	if !b.started {
		b.started, b.left = true, b.r.order(docker.HostCapabilityPull)
	}
	if len(b.left) == 0 {
		if !await(b.ctx, b.faults, b.round) {
			if b.ctx.Err() != nil {
				return context.Cause(b.ctx)
			}
			return b.r.failure(b.faults)
		}
		b.round++
		b.faults = nil
		b.left = b.r.order(docker.HostCapabilityPull)
	}
	release, err := b.turn.Acquire(b.ctx)
	if err != nil {
		return err
	}
	b.at, b.left = b.left[0], b.left[1:]
	b.moved = b.part > 0 && b.served[b.at] // of parts that were complete
	b.end = b.spanTo()
	if len(b.ahead) == 0 {
		b.planned = b.end
	}
	b.asked = &span{at: b.at, to: b.end, size: b.desc.Size}
	ctx := withSkip(withBound(b.ctx, bound{}), b.skipped) // Fetch reads as much as the descriptor says
	if b.end < b.desc.Size {
		ctx = withSpan(ctx, b.asked)
	}
	b.request, b.stop = context.WithCancelCause(ctx)
	b.watch()
	answer, err := fetchFrom(b.request, b.at, b.desc, b.offset)
	if err != nil {
		b.stop(nil)
		b.asks()
		release()
		return classify(err)
	}
	b.current, b.release = answer, release
	return nil
}

// skipped counts n bytes that come before those that the current request asks for: the endpoint sends something, which
// goes through the network.
func (b *body) skipped(n int) error {
	b.stall.Stop()
	b.moved = true
	b.got(0)
	err := b.turn.Read(b.ctx, n)
	b.arm()
	return err
}

// watch makes the timer that ends the current request when it stalls, and reports whom it asks.
func (b *body) watch() {
	b.asks = b.r.ask(b.at)
	stop := b.stop
	b.stall = time.AfterFunc(b.r.stall, func() {
		stop(fmt.Errorf("it sent nothing for %s: %w", b.r.stall, errs.Unavailable))
	})
	b.stall.Stop()
}

// finishPart ends the request for a part that is complete. Its endpoint is asked first for the next one.
func (b *body) finishPart() {
	b.r.worked(b.at)
	b.leave()
	b.again[b.at], b.round, b.faults = 0, 0, nil
	b.askFirst(b.at)
}

// askFirst makes an endpoint the next one that is asked.
func (b *body) askFirst(e *endpoint) {
	b.left = slices.DeleteFunc(b.left, func(other *endpoint) bool { return other == e })
	b.left = slices.Insert(b.left, 0, e)
}

// next leaves the current endpoint. One that has sent something is asked again after the others, unless it limits
// requests. One that does not serve parts is asked again at once, for the whole rest.
func (b *body) next(err error) {
	if stalled := context.Cause(b.request); stalled != nil {
		err = stalled
	}
	b.leave()
	b.failures++
	var unranged *rangeError
	if errors.As(err, &unranged) {
		b.askFirst(b.at)
		return
	}
	err = b.r.judge(b.ctx, b.at, fmt.Sprintf("the blob %s of %s", b.desc.Digest, b.r.path), err)
	b.faults = append(b.faults, fault{b.at, err})
	var throttled *ThrottledError
	if b.moved && b.again[b.at] < maxCuts && !errors.As(err, &throttled) {
		b.again[b.at]++
		b.left = append(b.left, b.at)
	}
}

// leave ends the current request.
func (b *body) leave() {
	if b.current == nil {
		return
	}
	b.stall.Stop()
	b.stop(nil)
	b.asks()
	_ = b.current.Close()
	b.release()
	b.current = nil
}

// Seek implements io.Seeker for the store, which continues a blob.
func (b *body) Seek(offset int64, whence int) (int64, error) {
	if whence != io.SeekStart || offset < 0 {
		return 0, fmt.Errorf("cannot read blob %s from %d (%d)", b.desc.Digest, offset, whence)
	}
	if offset != b.offset {
		b.leave()
		b.dropAhead()
		b.offset, b.planned, b.started = offset, offset, false
	}
	return offset, nil
}
