package cri

import (
	"bytes"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"strings"
	"unicode"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	crierrors "k8s.io/cri-api/pkg/errors"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/image"
)

// PullImage implements runtimeapi.ImageServiceServer. It answers the image's id. Which
// image it is depends on its name and the node's platform alone. Of the pod that it is
// pulled for, the namespace may choose the policy. Its annotations, which a kubelet sends
// as the image's, choose nothing.
func (s *Server) PullImage(ctx context.Context, req *runtimeapi.PullImageRequest) (*runtimeapi.PullImageResponse, error) {
	if err := s.checkImage(ctx, req); err != nil {
		return nil, fmt.Errorf("cannot pull image: %w", err)
	}
	auth := req.GetAuth()
	if err := checkAuth(auth); err != nil {
		return nil, fmt.Errorf("cannot pull image: %w", err)
	}
	id, err := s.pull(ctx, req.GetSandboxConfig().GetMetadata().GetNamespace(), req.GetImage().GetImage(), image.Auth{
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

// pull pulls an image for a pod of a namespace, which may be "".
func (s *Server) pull(ctx context.Context, namespace, ref string, auth image.Auth) (string, error) {
	if images, ok := s.opts.Images.(image.NamespacePuller); ok {
		return images.PullFor(ctx, namespace, ref, auth, nil)
	}
	return s.opts.Images.Pull(ctx, ref, auth, nil)
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
