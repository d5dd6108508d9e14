package cri

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/image"
)

// ListImages implements runtimeapi.ImageServiceServer. A filter names one image.
func (s *Server) ListImages(ctx context.Context, req *runtimeapi.ListImagesRequest) (*runtimeapi.ListImagesResponse, error) {
	images, err := s.listImages(ctx, req.GetFilter())
	if err != nil {
		return nil, err
	}
	return &runtimeapi.ListImagesResponse{Images: images}, nil
}

func (s *Server) listImages(ctx context.Context, filter *runtimeapi.ImageFilter) ([]*runtimeapi.Image, error) {
	if err := s.checkHandler(ctx, "filter.image", filter.GetImage()); err != nil {
		return nil, fmt.Errorf("cannot list images: %w", err)
	}
	if filter.GetImage().GetImage() != "" {
		img, err := s.findImage(ctx, filter.GetImage())
		if errors.Is(err, errs.NotFound) {
			return nil, nil
		}
		if err != nil {
			return nil, badImage("filter.image.image", err)
		}
		return []*runtimeapi.Image{imageMessage(img)}, nil
	}
	images, err := s.opts.Images.List(ctx)
	if err != nil {
		return nil, err
	}
	messages := make([]*runtimeapi.Image, 0, len(images))
	for i := range images {
		messages = append(messages, imageMessage(&images[i]))
	}
	return messages, nil
}

// ImageStatus implements runtimeapi.ImageServiceServer. For an image that is not present the
// response is empty, without an error. An image with a runtime handler is present for the platform of that one, and where
// that one has its layers, so that a kubelet pulls it there.
func (s *Server) ImageStatus(ctx context.Context, req *runtimeapi.ImageStatusRequest) (*runtimeapi.ImageStatusResponse, error) {
	if err := s.checkImage(ctx, req); err != nil {
		return nil, fmt.Errorf("cannot get the status of an image: %w", err)
	}
	img, err := s.findImage(ctx, req.GetImage())
	if errors.Is(err, errs.NotFound) {
		return s.absentImage(req)
	}
	if err != nil {
		return nil, badImage("image.image", err)
	}
	if !s.isFor(img, req.GetImage().GetRuntimeHandler()) {
		return &runtimeapi.ImageStatusResponse{}, nil
	}
	resp := &runtimeapi.ImageStatusResponse{Image: imageMessage(img)}
	if !req.GetVerbose() {
		return resp, nil
	}
	spec, err := s.opts.Images.Details(ctx, img.ID)
	if errors.Is(err, errs.NotFound) { // removed meanwhile
		return &runtimeapi.ImageStatusResponse{}, nil
	}
	if err != nil {
		return nil, err
	}
	info := map[string]any{"chainID": img.ChainID, "imageSpec": spec}
	if img.Encrypted > 0 {
		info["encryptedLayers"] = img.Encrypted
	}
	if len(img.Snapshotters) > 0 {
		info["snapshotters"], info["lazy"] = img.Snapshotters, img.Lazy
	}
	if img.Artifact != nil {
		info = map[string]any{"chainID": img.ChainID, "artifact": img.Artifact}
	}
	// Tools read this key.
	resp.Info, err = asJSON(map[string]any{"info": info})
	return resp, err
}

// absentImage is the status of an image that is not present.
func (s *Server) absentImage(req *runtimeapi.ImageStatusRequest) (*runtimeapi.ImageStatusResponse, error) {
	resp := &runtimeapi.ImageStatusResponse{}
	images, ok := s.opts.Images.(damageReporter)
	if !ok || !req.GetVerbose() {
		return resp, nil
	}
	lost := images.LostNames(s.opts.Platforms()[req.GetImage().GetRuntimeHandler()], req.GetImage().GetImage())
	if len(lost) == 0 {
		return resp, nil
	}
	var err error
	resp.Info, err = asJSON(map[string]any{image.InfoLostNames: lost})
	return resp, err
}

// findImage finds an image for the platform of the spec's runtime handler. Without a handler it is that of the node, and an
// id finds any image: a kubelet removes images by their ids.
func (s *Server) findImage(ctx context.Context, spec *runtimeapi.ImageSpec) (*image.Image, error) {
	if images, ok := s.opts.Images.(image.PlatformStore); ok && spec.GetRuntimeHandler() != "" {
		return images.GetFor(ctx, s.opts.Platforms()[spec.GetRuntimeHandler()], spec.GetImage())
	}
	return s.opts.Images.Get(ctx, spec.GetImage())
}

// isFor reports whether an image is where a runtime handler has its layers. Any place will do without a handler, for a
// handler without a proxy snapshotter, and for an artifact, which no snapshotter has.
func (s *Server) isFor(img *image.Image, handler string) bool {
	snapshotter := ""
	if handler != "" && img.Artifact == nil {
		snapshotter = s.opts.Snapshotters()[handler]
	}
	return snapshotter == "" || slices.Contains(img.Snapshotters, snapshotter)
}

// RemoveImage implements runtimeapi.ImageServiceServer.
func (s *Server) RemoveImage(ctx context.Context, req *runtimeapi.RemoveImageRequest) (*runtimeapi.RemoveImageResponse, error) {
	if err := s.checkImage(ctx, req); err != nil {
		return nil, fmt.Errorf("cannot remove image: %w", err)
	}
	if err := s.removeImage(ctx, req.GetImage()); errs.IgnoreNotFound(err) != nil {
		return nil, badImage("image.image", err)
	}
	return &runtimeapi.RemoveImageResponse{}, nil
}

// removeImage removes what findImage finds.
func (s *Server) removeImage(ctx context.Context, spec *runtimeapi.ImageSpec) error {
	if images, ok := s.opts.Images.(image.PlatformStore); ok && spec.GetRuntimeHandler() != "" {
		return images.RemoveFor(ctx, s.opts.Platforms()[spec.GetRuntimeHandler()], spec.GetImage())
	}
	return s.opts.Images.Remove(ctx, spec.GetImage())
}

// ImageFsInfo implements runtimeapi.ImageServiceServer.
func (s *Server) ImageFsInfo(ctx context.Context, _ *runtimeapi.ImageFsInfoRequest) (*runtimeapi.ImageFsInfoResponse, error) {
	usage, err := s.opts.Images.Usage(ctx)
	if err != nil {
		return nil, err
	}
	return &runtimeapi.ImageFsInfoResponse{
		ImageFilesystems: filesystems(usage.Images), ContainerFilesystems: filesystems(usage.Containers),
	}, nil
}

func filesystems(list []image.Usage) []*runtimeapi.FilesystemUsage {
	messages := make([]*runtimeapi.FilesystemUsage, 0, len(list))
	for _, usage := range list {
		messages = append(messages, &runtimeapi.FilesystemUsage{
			Timestamp:  usage.At.UnixNano(),
			FsId:       &runtimeapi.FilesystemIdentifier{Mountpoint: usage.Mountpoint},
			UsedBytes:  &runtimeapi.UInt64Value{Value: uint64(max(usage.Bytes, 0))},
			InodesUsed: &runtimeapi.UInt64Value{Value: uint64(max(usage.Inodes, 0))},
		})
	}
	return messages
}

func (s *Server) checkImage(ctx context.Context, req interface{ GetImage() *runtimeapi.ImageSpec }) error {
	if req.GetImage().GetImage() == "" {
		return invalid("image.image is empty")
	}
	return s.checkHandler(ctx, "image", req.GetImage())
}

// checkHandler refuses an unknown runtime handler. All handlers share one store. An image has the
// same id for each of them that has the same platform.
func (s *Server) checkHandler(ctx context.Context, field string, spec *runtimeapi.ImageSpec) error {
	requested := spec.GetRuntimeHandler()
	if requested == "" {
		return nil
	}
	info, err := s.opts.Node.EngineInfo(ctx)
	if err != nil {
		return err
	}
	accepted := make([]string, 0, len(info.Handlers))
	for _, handler := range info.Handlers {
		if handler.GetName() == requested {
			return nil
		}
		accepted = append(accepted, strconv.Quote(handler.GetName()))
	}
	return invalid("%s.runtime_handler: unknown runtime handler %q; accepted are %s", field, requested, strings.Join(accepted, ", "))
}

// badImage names the field of a request whose image name is invalid.
func badImage(field string, err error) error {
	if errors.Is(err, errs.Invalid) {
		return fmt.Errorf("%s: %w", field, err)
	}
	return err
}

// imageMessage converts an image. The user is in the form that the kubelet needs for
// runAsNonRoot: a number as uid, a name as username, and neither for an image without a user.
func imageMessage(img *image.Image) *runtimeapi.Image {
	msg := &runtimeapi.Image{
		Id:          img.ID,
		RepoTags:    img.Tags,
		RepoDigests: img.Digests,
		Size:        uint64(max(img.Size, 0)),
		Pinned:      img.Pinned,
	}
	if annotations := annotationsOf(img); len(annotations) > 0 {
		msg.Spec = &runtimeapi.ImageSpec{Annotations: annotations}
	}
	user, _, _ := strings.Cut(img.Config.User, ":")
	if uid, err := strconv.ParseInt(user, 10, 64); err == nil {
		msg.Uid = &runtimeapi.Int64Value{Value: uid}
	} else {
		msg.Username = user
	}
	return msg
}

// annotationsOf are those of an image's manifest, the type of an artifact, and the platform of an image that is not for the
// node's. No manifest can claim to be one of these.
func annotationsOf(img *image.Image) map[string]string {
	own := map[string]string{}
	if img.Artifact != nil {
		own[image.AnnotationArtifactType] = img.Artifact.Type
	} else if !img.IsFor("") {
		own[image.AnnotationPlatform] = img.Platform()
	}
	annotations := maps.Clone(img.Annotations)
	delete(annotations, image.AnnotationArtifactType)
	delete(annotations, image.AnnotationPlatform)
	maps.Copy(own, annotations)
	return own
}
