package berthapi

import (
	"bufio"
	"context"
	"fmt"
	"io"

	"google.golang.org/grpc"

	"github.com/berthrun/berth/internal/berthapi/berthpb"
	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/image"
	"github.com/berthrun/berth/internal/network"
)

// Server serves the service's calls. Images and Jobs are required.
type Server struct {
	Images Images
	// Jobs returns the running jobs, the oldest first.
	Jobs func() []Job
	// Control follows and cancels jobs; without its functions these calls are refused.
	Control JobControl
	// Plugins is nil for a network that has no CNI plugins.
	Plugins Plugins
	// Checks is nil for a network that has no attachments of CNI plugins.
	Checks network.Checker
	// Metrics returns the daemon's metrics in Prometheus' text format, nil for none.
	Metrics func(ctx context.Context) ([]byte, error)
	// Owned returns what the daemon has records of, nil for none.
	Owned func() (Owned, error)
	// Platform returns the platform of a runtime handler's images, as image.ParsePlatform does. Kind Invalid for an unknown
	// handler.
	// Nil means that all have those for the node's.
	Platform func(handler string) (string, error)
}

// Images is the part of an image store that the service needs; see image.Store.
type Images interface {
	image.Catalog
	Pull(ctx context.Context, ref string, auth image.Auth, progress func(image.Progress)) (id string, err error)
	Get(ctx context.Context, ref string) (*image.Image, error)
	Import(ctx context.Context, archive io.Reader, name string, pin bool, progress func(image.Progress)) ([]image.Image, error)
	Export(ctx context.Context, refs []string, to io.Writer) error
}

// Register adds the service to a gRPC server.
func (s *Server) Register(to grpc.ServiceRegistrar) {
	berthpb.RegisterBerthServer(to, &handlers{images: s.Images, jobs: s.Jobs, control: s.Control, plugins: s.Plugins, checks: s.Checks, metrics: s.Metrics, owned: s.Owned, platform: s.Platform})
	refuseV1(to)
}

// handlers implements the generated interface.
type handlers struct {
	berthpb.UnsafeBerthServer // a call that the service gains must be implemented here

	images   Images
	jobs     func() []Job
	control  JobControl
	plugins  Plugins
	checks   network.Checker
	metrics  func(ctx context.Context) ([]byte, error)
	owned    func() (Owned, error)
	platform func(handler string) (string, error)
}

// GetMetrics implements berthpb.BerthServer.
func (h *handlers) GetMetrics(ctx context.Context, _ *berthpb.GetMetricsRequest) (*berthpb.GetMetricsResponse, error) {
	if h.metrics == nil {
		return nil, fmt.Errorf("this daemon has no metrics: %w", errs.Unsupported)
	}
	text, err := h.metrics(ctx)
	if err != nil {
		return nil, err
	}
	return &berthpb.GetMetricsResponse{Text: text}, nil
}

// ListJobs implements berthpb.BerthServer.
func (h *handlers) ListJobs(context.Context, *berthpb.ListJobsRequest) (*berthpb.ListJobsResponse, error) {
	return &berthpb.ListJobsResponse{Jobs: jobsToProto(h.jobs())}, nil
}

// ListLayers implements berthpb.BerthServer.
func (h *handlers) ListLayers(ctx context.Context, _ *berthpb.ListLayersRequest) (*berthpb.ListLayersResponse, error) {
	all, err := h.images.Layers(ctx)
	if err != nil {
		return nil, err
	}
	return &berthpb.ListLayersResponse{Images: layersToProto(all)}, nil
}

// TagImage implements berthpb.BerthServer.
func (h *handlers) TagImage(ctx context.Context, req *berthpb.TagImageRequest) (*berthpb.TagImageResponse, error) {
	if req.GetImage() == "" || len(req.GetNames()) == 0 {
		return nil, fmt.Errorf("cannot name an image: want the image and at least one name: %w", errs.Invalid)
	}
	return &berthpb.TagImageResponse{}, h.images.Tag(ctx, req.GetImage(), req.GetNames())
}

// PullImage implements berthpb.BerthServer.
func (h *handlers) PullImage(req *berthpb.PullImageRequest, stream grpc.ServerStreamingServer[berthpb.ImageUpdate]) error {
	if req.GetRef() == "" {
		return fmt.Errorf("cannot pull image: ref is empty: %w", errs.Invalid)
	}
	return withProgress(stream, func(ctx context.Context, progress func(image.Progress)) ([]image.Image, error) {
		id, err := h.pull(ctx, req, progress)
		if err != nil {
			return nil, err
		}
		pulled, err := h.images.Get(ctx, id)
		if err != nil {
			return nil, err
		}
		return []image.Image{*pulled}, nil
	})
}

func (h *handlers) pull(ctx context.Context, req *berthpb.PullImageRequest, progress func(image.Progress)) (id string, err error) {
	target, err := h.targetOf(req.GetHandler())
	if err != nil {
		return "", fmt.Errorf("cannot pull image: %w", err)
	}
	images, ok := h.images.(image.TargetPuller)
	if !ok {
		return h.images.Pull(ctx, req.GetRef(), authFromProto(req.GetAuth()), progress)
	}
	return images.PullFor(ctx, target, req.GetRef(), authFromProto(req.GetAuth()), progress)
}

// targetOf returns what an image of a handler is pulled for: its platform. The image is unpacked on the node.
func (h *handlers) targetOf(handler string) (target image.PullTarget, err error) {
	if h.platform != nil && handler != "" {
		target.Platform, err = h.platform(handler)
	}
	return target, err
}

// ImportImage implements berthpb.BerthServer.
func (h *handlers) ImportImage(stream grpc.BidiStreamingServer[berthpb.ImportImageRequest, berthpb.ImageUpdate]) error {
	first, err := stream.Recv()
	if err != nil {
		return fmt.Errorf("cannot read the request: %w: %w", errs.Invalid, err)
	}
	if first.GetOptions() == nil {
		return fmt.Errorf("cannot import: the first message has no options: %w", errs.Invalid)
	}
	return withProgress(stream, func(ctx context.Context, progress func(image.Progress)) ([]image.Image, error) {
		return h.importArchive(ctx, &chunkReader{stream: stream}, first.GetOptions(), progress)
	})
}

// importArchive imports an archive that is read.
func (h *handlers) importArchive(ctx context.Context, archive io.Reader, opts *berthpb.ImportOptions, progress func(image.Progress)) ([]image.Image, error) {
	return h.images.Import(ctx, archive, opts.GetName(), opts.GetPin(), progress)
}

// ExportImage implements berthpb.BerthServer.
func (h *handlers) ExportImage(req *berthpb.ExportImageRequest, stream grpc.ServerStreamingServer[berthpb.ExportImageResponse]) error {
	// The exporter writes many small pieces.
	archive := bufio.NewWriterSize(chunkWriter(func(chunk []byte) error { return stream.Send(&berthpb.ExportImageResponse{Chunk: chunk}) }), chunkSize)
	if err := h.images.Export(stream.Context(), req.GetRefs(), archive); err != nil {
		return err
	}
	return archive.Flush()
}

// chunkWriter sends what is written to it in chunks.
type chunkWriter func(chunk []byte) error

// Write implements io.Writer.
func (send chunkWriter) Write(p []byte) (int, error) {
	for sent := 0; sent < len(p); sent += chunkSize {
		if err := send(p[sent:min(sent+chunkSize, len(p))]); err != nil {
			return sent, fmt.Errorf("cannot send the answer: %w", err)
		}
	}
	return len(p), nil
}

// chunkReader reads an archive that is received in chunks.
type chunkReader struct {
	stream grpc.BidiStreamingServer[berthpb.ImportImageRequest, berthpb.ImageUpdate]
	unread []byte
}

// Read implements io.Reader.
func (r *chunkReader) Read(p []byte) (int, error) {
	for len(r.unread) == 0 {
		msg, err := r.stream.Recv()
		if err == io.EOF { //nolint:errorlint // gRPC returns it bare, and io.Reader wants it bare
			return 0, io.EOF
		}
		if err != nil {
			return 0, fmt.Errorf("cannot read the archive from the client: %w", err)
		}
		r.unread = msg.GetChunk()
	}
	n := copy(p, r.unread)
	r.unread = r.unread[n:]
	return n, nil
}

// ExplainImage implements berthpb.BerthServer.
func (h *handlers) ExplainImage(ctx context.Context, req *berthpb.ExplainImageRequest) (*berthpb.ExplainImageResponse, error) {
	explainer, ok := h.images.(image.Explainer)
	if !ok {
		return nil, fmt.Errorf("cannot explain image %q: a Docker Engine pulls the images of this daemon: %w", req.GetRef(), errs.Unsupported)
	}
	target, err := h.targetOf(req.GetHandler())
	if err != nil {
		return nil, fmt.Errorf("cannot explain image: %w", err)
	}
	target.Namespace = req.GetNamespace()
	explained, err := explainer.Explain(ctx, target, req.GetRef(), authFromProto(req.GetAuth()), req.GetTry())
	if err != nil {
		return nil, err
	}
	return explanationToProto(explained), nil
}
