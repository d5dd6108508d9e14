package cri

import (
	"bytes"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"strings"
	"unicode"

	"google.golang.org/protobuf/proto"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	crierrors "k8s.io/cri-api/pkg/errors"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/image"
)

// PullImage implements runtimeapi.ImageServiceServer. It answers the image's id. Which
// image it is depends on its name and the platform alone. The runtime handler of the
// image, or of the pod that it is pulled for, says for which platform it is and where its layers go, and the namespace of the
// pod may choose the policy. The annotations, which a kubelet sends as the image's, choose nothing.
func (s *Server) PullImage(ctx context.Context, req *runtimeapi.PullImageRequest) (*runtimeapi.PullImageResponse, error) {
	if err := s.checkImage(ctx, req); err != nil {
		return nil, fmt.Errorf("cannot pull image: %w", err)
	}
	auth := req.GetAuth()
	if err := checkAuth(auth); err != nil {
		return nil, fmt.Errorf("cannot pull image: %w", err)
	}
	target, err := s.targetOfPull(ctx, req)
	if err != nil {
		return nil, fmt.Errorf("cannot pull image: %w", err)
	}
	id, err := s.pull(ctx, target, req.GetImage().GetImage(), image.Auth{
		Username:      auth.GetUsername(),
		Password:      auth.GetPassword(),
		Auth:          auth.GetAuth(),
		ServerAddress: auth.GetServerAddress(),
		IdentityToken: auth.GetIdentityToken(),
		RegistryToken: auth.GetRegistryToken(),
	})
	var away *image.AwayError
	if errors.Is(err, errs.Unavailable) && !errors.As(err, &away) {
		// The kubelet shows this word as the reason of the pod.
		return nil, fmt.Errorf("%w: %w", crierrors.ErrRegistryUnavailable, err)
	}
	if err != nil {
		return nil, badImage("image.image", err)
	}
	if pod := req.GetSandboxConfig().GetMetadata(); pod != nil {
		s.log.Info("image pulled",
			"image", req.GetImage().GetImage(), "id", id, "pod", pod.GetName(),
			"namespace", pod.GetNamespace())
	}
	return &runtimeapi.PullImageResponse{ImageRef: id}, nil
}

// pull pulls an image for a target.
func (s *Server) pull(ctx context.Context, target image.PullTarget, ref string, auth image.Auth) (string, error) {
	if images, ok := s.opts.Images.(image.TargetPuller); ok {
		return images.PullFor(ctx, target, ref, auth, nil)
	}
	if target.Snapshotter != "" {
		return "", fmt.Errorf("this image store has no snapshotters, so no %s: %w", target.Snapshotter, errs.Unsupported)
	}
	if target.Platform != "" {
		return "", fmt.Errorf("this image store has images for the node's platform alone, and none for %s: %w", target.Platform, errs.Unsupported)
	}
	return s.opts.Images.Pull(ctx, ref, auth, nil)
}

// targetOfPull returns what an image is pulled for: the platform and the proxy snapshotter of the runtime handler that the
// request names (KEP-4216), or of that of its pod. No proxy maps the ids of a pod with a user namespace. A client
// without a pod pulls for the default handler.
func (s *Server) targetOfPull(ctx context.Context, req *runtimeapi.PullImageRequest) (image.PullTarget, error) {
	snapshotters, platforms := s.opts.Snapshotters(), s.opts.Platforms()
	pod, handler := req.GetSandboxConfig().GetMetadata(), req.GetImage().GetRuntimeHandler()
	target := image.PullTarget{Namespace: pod.GetNamespace()}
	if pod != nil && handler == "" && len(snapshotters)+len(platforms) > 0 {
		var err error
		if handler, err = s.handlerOfPod(ctx, pod); err != nil {
			return target, err
		}
	}
	target.Platform = platforms[handler]
	users := req.GetSandboxConfig().GetLinux().GetSecurityContext().GetNamespaceOptions().GetUsernsOptions()
	mapped := users != nil && users.GetMode() == runtimeapi.NamespaceMode_POD
	if !mapped || snapshotters[handler] == image.ErofsSnapshotter {
		target.Snapshotter = snapshotters[handler]
	}
	return target, nil
}

// handlerOfPod returns the runtime handler of the sandbox with these metadata, "" if there is none.
func (s *Server) handlerOfPod(ctx context.Context, pod *runtimeapi.PodSandboxMetadata) (string, error) {
	items, err := s.opts.View.ListSandboxes(ctx, nil)
	if err != nil {
		return "", err
	}
	var list runtimeapi.ListPodSandboxResponse
	if err := proto.Unmarshal(items.Wire(), &list); err != nil {
		return "", err
	}
	for _, sandbox := range list.GetItems() {
		if proto.Equal(sandbox.GetMetadata(), pod) {
			return sandbox.GetRuntimeHandler(), nil
		}
	}
	return "", nil
}

// checkAuth refuses credentials that cannot be sent to a registry. It quotes none of them.
func checkAuth(auth *runtimeapi.AuthConfig) error {
	for _, f := range []struct{ name, value string }{
		{"server_address", auth.GetServerAddress()},
		{"identity_token", auth.GetIdentityToken()},
		{"registry_token", auth.GetRegistryToken()},
	} {
		if strings.ContainsFunc(f.value, unicode.IsControl) {
			return invalid("auth.%s: contains a control character", f.name)
		}
	}
	if auth.GetAuth() == "" || auth.GetUsername() != "" || auth.GetIdentityToken() != "" {
		return nil // unused: other credentials take precedence
	}
	decoded, err := base64.StdEncoding.DecodeString(strings.TrimSpace(auth.GetAuth()))
	if err != nil || !bytes.ContainsRune(decoded, ':') {
		return invalid("auth.auth: want base64 of username:password")
	}
	return nil
}
