package berthapi

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

// chunkSize is how much of an archive one message carries.
const chunkSize = 1 << 20

// Client calls the service. A runtime that is not berth answers with an error of
// kind Unsupported (through the connections of package criclient).
type Client struct {
	conn grpc.ClientConnInterface
}

// NewClient makes a client of a connection.
func NewClient(conn grpc.ClientConnInterface) *Client { return &Client{conn} }

// invoke calls a method with one request and one answer.
func (c *Client) invoke(ctx context.Context, method string, req, answer any) error {
	msg, err := message(req)
	if err != nil {
		return err
	}
	var resp wrapperspb.BytesValue
	if err := c.conn.Invoke(ctx, fullMethod(method), msg, &resp); err != nil {
		return err
	}
	return read(&resp, answer)
}

// ask calls a method with one request and many answers, which end with the context.
func (c *Client) ask(ctx context.Context, method string, req any) (grpc.ClientStream, error) {
	stream, err := c.conn.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true}, fullMethod(method))
	if err != nil {
		return nil, err
	}
	msg, err := message(req)
	if err != nil {
		return nil, err
	}
	if err := errors.Join(stream.SendMsg(msg), stream.CloseSend()); err != nil && !errors.Is(err, io.EOF) {
		return nil, err
	}
	return stream, nil
}

// ListJobs returns the running jobs, the oldest first.
func (c *Client) ListJobs(ctx context.Context) ([]Job, error) {
	var list JobList
	err := c.invoke(ctx, methodListJobs, struct{}{}, &list)
	return list.Jobs, err
}

// ListLayers returns all images with their layers, sorted by id.
func (c *Client) ListLayers(ctx context.Context) ([]LayeredImage, error) {
	var list LayerList
	err := c.invoke(ctx, methodListLayers, struct{}{}, &list)
	return list.Images, err
}

// TagImage gives an image more names.
func (c *Client) TagImage(ctx context.Context, req TagRequest) error {
	return c.invoke(ctx, methodTagImage, &req, &struct{}{})
}

// PullImage pulls and returns the image. progress may be nil.
func (c *Client) PullImage(ctx context.Context, req PullRequest, progress func(Progress)) (*Image, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := c.ask(ctx, methodPullImage, &req)
	if err != nil {
		return nil, err
	}
	images, err := follow(stream, progress)
	if err != nil {
		return nil, err
	}
	if len(images) != 1 {
		return nil, fmt.Errorf("cannot pull image: the daemon answered with %d images", len(images))
	}
	return &images[0], nil
}

// ImportImage imports an archive and returns the images in it. A regular file is read by
// the daemon where it can, all else is sent. progress may be nil.
func (c *Client) ImportImage(ctx context.Context, req ImportRequest, archive io.Reader, progress func(Progress)) ([]Image, error) {
	if file, ok := archive.(*os.File); ok {
		images, err := c.importFile(ctx, req, file, progress)
		if !errors.Is(err, errSend) {
			return images, err
		}
	}
	return c.sendImage(ctx, req, archive, progress)
}

// sendImage imports an archive that is sent.
func (c *Client) sendImage(ctx context.Context, req ImportRequest, archive io.Reader, progress func(Progress)) ([]Image, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := c.conn.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true, ClientStreams: true}, fullMethod(methodImportImage))
	if err != nil {
		return nil, err
	}
	sent := make(chan error, 1)
	go func() {
		err := sendArchive(stream, req, archive)
		sent <- err
		if err != nil {
			cancel() // half an archive must not look like a whole one
		}
	}()
	images, err := follow(stream, progress)
	if err != nil {
		select {
		case sendErr := <-sent:
			// What went wrong on this side is why the other side failed.
			if sendErr != nil {
				return nil, sendErr
			}
		default:
		}
		return nil, err
	}
	return images, nil
}

// ExportImage writes an archive of images. What was written when it fails is no archive.
func (c *Client) ExportImage(ctx context.Context, req ExportRequest, to io.Writer) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := c.ask(ctx, methodExportImage, &req)
	if err != nil {
		return err
	}
	for {
		var chunk wrapperspb.BytesValue
		err := stream.RecvMsg(&chunk)
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if _, err := to.Write(chunk.GetValue()); err != nil {
			return fmt.Errorf("cannot write the archive: %w", err)
		}
	}
}

// sendArchive returns an error only when the archive could not be read: that the
// daemon does not take it any more is told by its answer.
func sendArchive(stream grpc.ClientStream, req ImportRequest, archive io.Reader) error {
	msg, err := message(&req)
	if err != nil {
		return err
	}
	if stream.SendMsg(msg) != nil {
		return nil
	}
	buf := make([]byte, chunkSize)
	for {
		n, err := io.ReadFull(archive, buf)
		if n > 0 && stream.SendMsg(wrapperspb.Bytes(buf[:n])) != nil {
			return nil
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

// follow reads updates to the end.
func follow(stream grpc.ClientStream, progress func(Progress)) ([]Image, error) {
	var images []Image
	for {
		var msg wrapperspb.BytesValue
		if err := stream.RecvMsg(&msg); err != nil {
			if errors.Is(err, io.EOF) {
				return images, nil
			}
			return nil, err
		}
		var update Update
		if err := read(&msg, &update); err != nil {
			return nil, err
		}
		if update.Progress != nil && progress != nil {
			progress(*update.Progress)
		}
		images = append(images, update.Images...)
	}
}
