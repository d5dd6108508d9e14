package berthapi

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	"google.golang.org/grpc"

	"github.com/berthrun/berth/internal/berthapi/berthpb"
	"github.com/berthrun/berth/internal/image"
)

// chunkSize is how many bytes of an archive one message carries.
const chunkSize = 1 << 20

// Client calls the service. A runtime that is not berth, or is an older one, returns an error
// of kind Unsupported (through the connections of package criclient).
type Client struct {
	api berthpb.BerthClient
}

// NewClient makes a client of a connection.
func NewClient(conn grpc.ClientConnInterface) *Client {
	return &Client{berthpb.NewBerthClient(conn)}
}

// ListJobs returns the running jobs, the oldest first.
func (c *Client) ListJobs(ctx context.Context) ([]Job, error) {
	resp, err := c.api.ListJobs(ctx, &berthpb.ListJobsRequest{})
	return jobsFromProto(resp.GetJobs()), err
}

// Metrics returns the daemon's metrics in Prometheus' text format.
func (c *Client) Metrics(ctx context.Context) ([]byte, error) {
	resp, err := c.api.GetMetrics(ctx, &berthpb.GetMetricsRequest{})
	return resp.GetText(), err
}

// ListLayers returns all images with their layers, sorted by id.
func (c *Client) ListLayers(ctx context.Context) ([]LayeredImage, error) {
	resp, err := c.api.ListLayers(ctx, &berthpb.ListLayersRequest{})
	return layersFromProto(resp.GetImages()), err
}

// TagImage gives an image more names.
func (c *Client) TagImage(ctx context.Context, req TagRequest) error {
	_, err := c.api.TagImage(ctx, &berthpb.TagImageRequest{Image: req.Image, Names: req.Names})
	return err
}

// ExplainImage returns where a pull looks for an image, and whether pods of a namespace, "" for none, may use it. With try
// each endpoint is asked.
func (c *Client) ExplainImage(ctx context.Context, namespace string, req PullRequest, try bool) (*image.Explanation, error) {
	resp, err := c.api.ExplainImage(ctx, &berthpb.ExplainImageRequest{Namespace: namespace, Ref: req.Ref, Auth: pullToProto(&req).Auth, Try: try, Handler: req.Handler})
	if err != nil {
		return nil, err
	}
	return explanationFromProto(resp), nil
}

// PullImage pulls and returns the image. progress may be nil.
func (c *Client) PullImage(ctx context.Context, req PullRequest, progress func(Progress)) (*Image, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := c.api.PullImage(ctx, pullToProto(&req))
	if err != nil {
		return nil, err
	}
	images, err := receiveImages(stream, progress)
	if err != nil {
		return nil, err
	}
	if len(images) != 1 {
		return nil, fmt.Errorf("cannot pull image: the daemon answered with %d images", len(images))
	}
	return &images[0], nil
}

// ImportImage imports an archive and returns the images in it. The daemon reads a regular file
// itself if it can; the client sends everything else. progress may be nil.
func (c *Client) ImportImage(ctx context.Context, req ImportRequest, archive io.Reader, progress func(Progress)) ([]Image, error) {
	if file, ok := archive.(*os.File); ok {
		images, err := c.importFile(ctx, req, file, progress)
		if !errors.Is(err, errMustSend) {
			return images, err
		}
	}
	return c.sendArchive(ctx, req, archive, progress)
}

// sendArchive imports an archive that the client sends.
func (c *Client) sendArchive(ctx context.Context, req ImportRequest, archive io.Reader, progress func(Progress)) ([]Image, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := c.api.ImportImage(ctx)
	if err != nil {
		return nil, err
	}
	sent := make(chan error, 1)
	go func() {
		err := sendChunks(stream, req, archive)
		sent <- err
		if err != nil {
			cancel() // the daemon must not take half an archive for a whole one
		}
	}()
	images, err := receiveImages(stream, progress)
	if err != nil {
		select {
		case sendErr := <-sent:
			// The failure on this side caused the daemon's.
			if sendErr != nil {
				return nil, sendErr
			}
		default:
		}
		return nil, err
	}
	return images, nil
}

// ExportImage writes an archive of images. On error the part that was written is no archive.
func (c *Client) ExportImage(ctx context.Context, req ExportRequest, to io.Writer) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := c.api.ExportImage(ctx, &berthpb.ExportImageRequest{Refs: req.Refs})
	if err != nil {
		return err
	}
	return copyChunks(stream.Recv, to, "archive")
}

// copyChunks writes what a stream receives, until it ends. what names it in the error of a write.
func copyChunks[M interface{ GetChunk() []byte }](receive func() (M, error), to io.Writer, what string) error {
	for {
		msg, err := receive()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if _, err := to.Write(msg.GetChunk()); err != nil {
			return fmt.Errorf("cannot write the %s: %w", what, err)
		}
	}
}

// sendChunks sends the options and the archive. It returns an error only if it cannot read the
// archive: the daemon's answer says why the daemon receives no more.
func sendChunks(stream grpc.BidiStreamingClient[berthpb.ImportImageRequest, berthpb.ImageUpdate], req ImportRequest, archive io.Reader) error {
	options := &berthpb.ImportImageRequest{Part: &berthpb.ImportImageRequest_Options{Options: importToProto(req)}}
	if stream.Send(options) != nil {
		return nil
	}
	buf := make([]byte, chunkSize)
	for {
		n, err := io.ReadFull(archive, buf)
		if n > 0 {
			chunk := &berthpb.ImportImageRequest{Part: &berthpb.ImportImageRequest_Chunk{Chunk: buf[:n]}}
			if stream.Send(chunk) != nil {
				return nil
			}
		}
		switch {
		case err == nil:
		case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
			return stream.CloseSend()
		default:
			return fmt.Errorf("cannot read the archive: %w", err)
		}
	}
}

// imageUpdates is the client's side of a call that answers with progress and then images.
type imageUpdates interface {
	Recv() (*berthpb.ImageUpdate, error)
}

// receiveImages reads updates to the end and returns the images. progress may be nil.
func receiveImages(stream imageUpdates, progress func(Progress)) ([]Image, error) {
	var images []Image
	for {
		update, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return images, nil
		}
		if err != nil {
			return nil, err
		}
		if update.GetProgress() != nil && progress != nil {
			progress(progressFromProto(update.GetProgress()))
		}
		images = append(images, imagesFromProto(update.GetImages())...)
	}
}
