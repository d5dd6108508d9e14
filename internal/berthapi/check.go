package berthapi

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"

	"github.com/opencontainers/go-digest"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/berthrun/berth/internal/berthapi/berthpb"
	"github.com/berthrun/berth/internal/image"
)

// CheckImages implements berthpb.BerthServer.
func (h *handlers) CheckImages(req *berthpb.CheckImagesRequest, stream grpc.ServerStreamingServer[berthpb.CheckUpdate]) error {
	auditor, err := h.auditor()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(stream.Context())
	defer cancel()
	feed := newCheckFeed()
	sent := make(chan error, 1)
	go func() {
		err := feed.sendAll(stream.Send)
		if err != nil {
			cancel() // nobody gets the report
		}
		sent <- err
	}()
	report, err := auditor.Check(ctx, req.GetRepair(), feed.put)
	feed.close()
	if sendErr := <-sent; err == nil {
		err = sendErr
	}
	if err != nil {
		return err
	}
	return stream.Send(&berthpb.CheckUpdate{Report: checkToProto(report)})
}

// checkFeed is what a client has not received of a check: all damage, and the newest progress. A slow client
// misses progress and never slows the check.
type checkFeed struct {
	// news is filled by put, and closed at the end.
	news chan struct{}

	mu     sync.Mutex
	closed bool
	// queue ends with the newest progress, or has none.
	queue []image.CheckUpdate
}

func newCheckFeed() *checkFeed { return &checkFeed{news: make(chan struct{}, 1)} }

// put adds an update. It does not block.
func (f *checkFeed) put(u image.CheckUpdate) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.closed {
		return
	}
	if n := len(f.queue); n > 0 && f.queue[n-1].Damage == nil {
		if u.Damage != nil {
			u.Progress = f.queue[n-1].Progress
		}
		f.queue = f.queue[:n-1]
	}
	f.queue = append(f.queue, u)
	select {
	case f.news <- struct{}{}:
	default: // the sender has not looked yet
	}
}

func (f *checkFeed) close() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.closed = true
	close(f.news)
}

func (f *checkFeed) take() []image.CheckUpdate {
	f.mu.Lock()
	defer f.mu.Unlock()
	defer func() { f.queue = nil }()
	return f.queue
}

// sendAll sends updates until the feed is closed and empty.
func (f *checkFeed) sendAll(send func(*berthpb.CheckUpdate) error) error {
	for open := true; open; {
		_, open = <-f.news
		for _, u := range f.take() {
			if err := send(checkUpdateToProto(u)); err != nil {
				return fmt.Errorf("cannot send the progress to the client: %w", err)
			}
		}
	}
	return nil
}

func checkUpdateToProto(u image.CheckUpdate) *berthpb.CheckUpdate {
	sent := &berthpb.CheckUpdate{}
	if u.Damage != nil {
		sent.Damage = damageToProto(u.Damage)
	}
	if u.Progress.Stage != "" {
		sent.Progress = progressToProto(u.Progress).GetProgress()
	}
	return sent
}

func checkToProto(report *image.CheckReport) *berthpb.CheckReport {
	sent := &berthpb.CheckReport{Blobs: int64(report.Blobs), Layers: int64(report.Layers), Bytes: report.Bytes, Notes: validTexts(report.Notes), Unchecked: validTexts(report.Unchecked)}
	for i := range report.Damage {
		sent.Damage = append(sent.Damage, damageToProto(&report.Damage[i]))
	}
	for _, q := range report.Quarantined {
		sent.Quarantined = append(sent.Quarantined, &berthpb.Quarantined{
			Dir: validText(q.Dir), At: timestamppb.New(q.At), Objects: validTexts(q.Objects), Lost: validTexts(q.Lost),
		})
	}
	return sent
}

func checkFromProto(r *berthpb.CheckReport) *image.CheckReport {
	report := &image.CheckReport{
		Blobs: int(r.GetBlobs()), Layers: int(r.GetLayers()), Bytes: r.GetBytes(), Damage: []image.Damage{}, Notes: list(r.GetNotes()), Unchecked: list(r.GetUnchecked()),
		Quarantined: []image.Quarantined{},
	}
	for _, d := range r.GetDamage() {
		report.Damage = append(report.Damage, damageFromProto(d))
	}
	for _, q := range r.GetQuarantined() {
		report.Quarantined = append(report.Quarantined, image.Quarantined{
			Dir: q.GetDir(), At: q.GetAt().AsTime(), Objects: list(q.GetObjects()), Lost: q.GetLost(),
		})
	}
	return report
}

func damageToProto(d *image.Damage) *berthpb.Damage {
	return &berthpb.Damage{
		Object: d.Object, Digest: d.Digest.String(), Path: validText(d.Path), Problem: validText(d.Problem), Images: d.Images, Containers: d.Containers,
		Repaired: d.Repaired, Repair: validText(d.Repair), Advice: validText(d.Advice),
	}
}

func damageFromProto(d *berthpb.Damage) image.Damage {
	return image.Damage{
		Object: d.GetObject(), Digest: digest.Digest(d.GetDigest()), Path: d.GetPath(), Problem: d.GetProblem(), Images: list(d.GetImages()),
		Containers: list(d.GetContainers()), Repaired: d.GetRepaired(), Repair: d.GetRepair(), Advice: d.GetAdvice(),
	}
}

// CheckImages has the daemon check all images, and repair them if repair is set. progress and damaged, which
// may be nil, get the progress, and each damaged object after its repair.
func (c *Client) CheckImages(ctx context.Context, repair bool, progress func(Progress), damaged func(image.Damage)) (*image.CheckReport, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := c.api.CheckImages(ctx, &berthpb.CheckImagesRequest{Repair: repair})
	if err != nil {
		return nil, err
	}
	var report *image.CheckReport
	for {
		u, err := stream.Recv()
		switch {
		case errors.Is(err, io.EOF) && report != nil:
			return report, nil
		case errors.Is(err, io.EOF):
			return nil, errors.New("cannot check the image store: the daemon has sent no report")
		case err != nil:
			return nil, err
		}
		if u.GetDamage() != nil && damaged != nil {
			damaged(damageFromProto(u.GetDamage()))
		}
		if u.GetProgress() != nil && progress != nil {
			progress(progressFromProto(u.GetProgress()))
		}
		if r := u.GetReport(); r != nil {
			report = checkFromProto(r)
		}
	}
}
