package berthapi

import (
	"bufio"
	"context"
	"fmt"
	"io"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/image"
)

// Server answers the service's calls. Both fields are required.
type Server struct {
	Images Images
	// Jobs tells what runs, the oldest first.
	Jobs func() []Job
}

// Images is what the service needs of an image store; see image.Store.
type Images interface {
	image.Catalog
	Pull(ctx context.Context, ref string, auth image.Auth, progress func(image.Progress)) (id string, err error)
	Get(ctx context.Context, ref string) (*image.Image, error)
	Import(ctx context.Context, archive io.Reader, name string, pin bool, progress func(image.Progress)) ([]image.Image, error)
	Export(ctx context.Context, refs []string, to io.Writer) error
}

// Register adds the service to a gRPC server.
func (s *Server) Register(to grpc.ServiceRegistrar) {
	to.RegisterService(&grpc.ServiceDesc{
		ServiceName: serviceName,
		HandlerType: (*any)(nil),
		Methods: []grpc.MethodDesc{
			{MethodName: methodListJobs, Handler: unary(methodListJobs, s.listJobs)},
			{MethodName: methodListLayers, Handler: unary(methodListLayers, s.listLayers)},
			{MethodName: methodTagImage, Handler: unary(methodTagImage, s.tagImage)},
		},
		Streams: []grpc.StreamDesc{
			{StreamName: methodPullImage, ServerStreams: true, Handler: s.handlePullImage},
			{StreamName: methodImportImage, ServerStreams: true, ClientStreams: true, Handler: s.handleImportImage},
			{StreamName: methodImportFile, ServerStreams: true, Handler: s.handleImportFile},
			{StreamName: methodExportImage, ServerStreams: true, Handler: s.handleExportImage},
		},
	}, s)
}

// unary is the handler of a call with one request and one answer.
func unary(method string, call func(ctx context.Context, req *wrapperspb.BytesValue) (any, error)) grpc.MethodHandler {
	return func(srv any, ctx context.Context, decode func(any) error, interceptor grpc.UnaryServerInterceptor) (any, error) {
		var req wrapperspb.BytesValue
		if err := decode(&req); err != nil {
			return nil, fmt.Errorf("cannot read the request: %w: %w", errs.Invalid, err)
		}
		answer := func(ctx context.Context, _ any) (any, error) {
			v, err := call(ctx, &req)
			if err != nil {
				return nil, err
			}
			return message(v)
		}
		if interceptor == nil {
			return answer(ctx, &req)
		}
		return interceptor(ctx, &req, &grpc.UnaryServerInfo{Server: srv, FullMethod: fullMethod(method)}, answer)
	}
}

func (s *Server) listJobs(context.Context, *wrapperspb.BytesValue) (any, error) {
	return &JobList{Jobs: s.Jobs()}, nil
}

func (s *Server) handlePullImage(_ any, stream grpc.ServerStream) error {
	var req PullRequest
	if err := receive(stream, &req); err != nil {
		return err
	}
	if req.Ref == "" {
		return fmt.Errorf("cannot pull image: ref is empty: %w", errs.Invalid)
	}
	return answer(stream, func(ctx context.Context, progress func(image.Progress)) ([]Image, error) {
		id, err := s.Images.Pull(ctx, req.Ref, image.Auth{
			Username:      req.Auth.Username,
			Password:      req.Auth.Password,
			IdentityToken: req.Auth.IdentityToken,
			RegistryToken: req.Auth.RegistryToken,
		}, progress)
		if err != nil {
			return nil, err
		}
		pulled, err := s.Images.Get(ctx, id)
		if err != nil {
			return nil, err
		}
		return []Image{{ID: pulled.ID, Tags: pulled.Tags, Size: pulled.Size}}, nil
	})
}

func (s *Server) handleImportImage(_ any, stream grpc.ServerStream) error {
	var req ImportRequest
	if err := receive(stream, &req); err != nil {
		return err
	}
	return answer(stream, func(ctx context.Context, progress func(image.Progress)) ([]Image, error) {
		return s.load(ctx, &chunks{stream: stream}, req, progress)
	})
}

// load imports an archive.
func (s *Server) load(ctx context.Context, archive io.Reader, req ImportRequest, progress func(image.Progress)) ([]Image, error) {
	imported, err := s.Images.Import(ctx, archive, req.Name, req.Pin, progress)
	if err != nil {
		return nil, err
	}
	images := make([]Image, 0, len(imported))
	for i := range imported {
		images = append(images, Image{ID: imported[i].ID, Tags: imported[i].Tags, Size: imported[i].Size})
	}
	return images, nil
}

func (s *Server) handleExportImage(_ any, stream grpc.ServerStream) error {
	var req ExportRequest
	if err := receive(stream, &req); err != nil {
		return err
	}
	// The exporter writes many small pieces.
	archive := bufio.NewWriterSize(chunkWriter{stream}, chunkSize)
	if err := s.Images.Export(stream.Context(), req.Refs, archive); err != nil {
		return err
	}
	return archive.Flush()
}

// chunkWriter sends what is written to it.
type chunkWriter struct{ stream grpc.ServerStream }

// Write implements io.Writer.
func (w chunkWriter) Write(p []byte) (int, error) {
	for sent := 0; sent < len(p); sent += chunkSize {
		if err := w.stream.SendMsg(wrapperspb.Bytes(p[sent:min(sent+chunkSize, len(p))])); err != nil {
			return sent, fmt.Errorf("cannot send the archive: %w", err)
		}
	}
	return len(p), nil
}

func fullMethod(method string) string { return "/" + serviceName + "/" + method }

func receive(stream grpc.ServerStream, v any) error {
	var msg wrapperspb.BytesValue
	if err := stream.RecvMsg(&msg); err != nil {
		return fmt.Errorf("cannot read the request: %w: %w", errs.Invalid, err)
	}
	return read(&msg, v)
}

// chunks reads the archive's bytes from the stream.
type chunks struct {
	stream grpc.ServerStream
	unread []byte
}

// Read implements io.Reader.
func (c *chunks) Read(p []byte) (int, error) {
	for len(c.unread) == 0 {
		var msg wrapperspb.BytesValue
		if err := c.stream.RecvMsg(&msg); err != nil {
			if err == io.EOF { //nolint:errorlint // gRPC returns it bare, and io.Reader wants it bare
				return 0, io.EOF
			}
			return 0, fmt.Errorf("cannot read the archive from the client: %w", err)
		}
		c.unread = msg.GetValue()
	}
	n := copy(p, c.unread)
	c.unread = c.unread[n:]
	return n, nil
}

// answer does the work and meanwhile tells the client of its progress. A slow
// client misses steps of it and never slows the work.
func answer(stream grpc.ServerStream, work func(ctx context.Context, progress func(image.Progress)) ([]Image, error)) error {
	ctx, cancel := context.WithCancel(stream.Context())
	defer cancel()
	newest := make(chan image.Progress, 1)
	told := make(chan error, 1)
	go func() {
		var err error
		for p := range newest {
			if err == nil {
				err = send(stream, &Update{Progress: &Progress{Stage: p.Stage, Done: p.Done, Total: p.Total}})
			}
			if err != nil {
				cancel() // the client is gone
			}
		}
		told <- err
	}()
	box := &mailbox{newest: newest}
	images, err := work(ctx, box.put)
	box.close()
	if sendErr := <-told; err == nil {
		err = sendErr
	}
	if err != nil {
		return err
	}
	return send(stream, &Update{Images: images})
}

func send(stream grpc.ServerStream, update *Update) error {
	msg, err := message(update)
	if err != nil {
		return err
	}
	if err := stream.SendMsg(msg); err != nil {
		return fmt.Errorf("cannot tell the client: %w", err)
	}
	return nil
}
