package berthapi

import (
	"context"
	"fmt"
	"sync"

	"google.golang.org/grpc"

	"github.com/berthrun/berth/internal/berthapi/berthpb"
	"github.com/berthrun/berth/internal/image"
)

// withProgress runs work and sends its progress, then the images. A slow client misses
// progress and never slows the work. A client that is gone cancels the work.
func withProgress(stream grpc.ServerStream, work func(ctx context.Context, progress func(image.Progress)) ([]image.Image, error)) error {
	ctx, cancel := context.WithCancel(stream.Context())
	defer cancel()
	latest := newLatestProgress()
	sent := make(chan error, 1)
	go func() {
		var err error
		for p := range latest.values {
			if err == nil {
				err = sendUpdate(stream, progressToProto(p))
			}
			if err != nil {
				cancel()
			}
		}
		sent <- err
	}()
	images, err := work(ctx, latest.put)
	latest.close()
	if sendErr := <-sent; err == nil {
		err = sendErr
	}
	if err != nil {
		return err
	}
	return sendUpdate(stream, imagesToProto(images...))
}

func sendUpdate(stream grpc.ServerStream, update *berthpb.ImageUpdate) error {
	if err := stream.SendMsg(update); err != nil {
		return fmt.Errorf("cannot send the progress to the client: %w", err)
	}
	return nil
}

// latestProgress holds the newest progress that the reader has not received. put replaces it
// and never blocks.
type latestProgress struct {
	mu     sync.Mutex
	values chan image.Progress // holds one
	closed bool
}

func newLatestProgress() *latestProgress {
	return &latestProgress{values: make(chan image.Progress, 1)}
}

func (l *latestProgress) put(p image.Progress) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return
	}
	select {
	case <-l.values:
	default:
	}
	l.values <- p
}

func (l *latestProgress) close() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.closed = true
	close(l.values)
}
