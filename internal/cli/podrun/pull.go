package podrun

import (
	"context"
	"errors"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berthrun/berth/internal/berthapi"
	"github.com/berthrun/berth/internal/cli/progress"
	"github.com/berthrun/berth/internal/cri/client"
	"github.com/berthrun/berth/internal/errs"
)

// pullAll sees that every image is there, before anything is made.
func (k *keeper) pullAll(ctx context.Context) error {
	for _, list := range [][]corev1.Container{k.pod.Spec.InitContainers, k.pod.Spec.Containers} {
		for i := range list {
			if err := k.pull(ctx, &list[i]); err != nil {
				return err
			}
		}
	}
	return nil
}

func (k *keeper) pull(ctx context.Context, c *corev1.Container) error {
	img, err := k.image(ctx, c.Image)
	if err != nil {
		return err
	}
	switch policy := pullPolicy(c); {
	case policy == corev1.PullNever && img == nil:
		return fmt.Errorf("cannot run container %s: image %s is not there, and imagePullPolicy is Never: %w", c.Name, c.Image, errs.NotFound)
	case policy == corev1.PullAlways, img == nil:
		if err := Pull(ctx, k.Conn, berthapi.PullRequest{Ref: c.Image}, progress.New(k.Say, c.Image)); err != nil {
			return fmt.Errorf("cannot run container %s: %w", c.Name, err)
		}
		if img, err = k.image(ctx, c.Image); err != nil {
			return err
		}
	}
	return k.checkUser(c, img)
}

func (k *keeper) image(ctx context.Context, ref string) (*runtimeapi.Image, error) {
	resp, err := k.Conn.Images.ImageStatus(ctx, &runtimeapi.ImageStatusRequest{Image: &runtimeapi.ImageSpec{Image: ref}})
	return resp.GetImage(), err
}

// pullPolicy is the Pod API's default where the file says nothing: what may change
// under its name is pulled each time.
func pullPolicy(c *corev1.Container) corev1.PullPolicy {
	if c.ImagePullPolicy != "" {
		return c.ImagePullPolicy
	}
	name := c.Image[strings.LastIndex(c.Image, "/")+1:]
	if strings.Contains(name, "@") || (strings.Contains(name, ":") && !strings.HasSuffix(name, ":latest")) {
		return corev1.PullIfNotPresent
	}
	return corev1.PullAlways
}

// Pull pulls with a bar where the runtime is berth, and in silence elsewhere.
func Pull(ctx context.Context, conn *client.Conn, req berthapi.PullRequest, bar *progress.Bar) error {
	_, err := conn.Berth.PullImage(ctx, req, bar.Show)
	bar.Clear()
	if !errors.Is(err, errs.Unsupported) {
		return err
	}
	_, err = conn.Images.PullImage(ctx, &runtimeapi.PullImageRequest{
		Image: &runtimeapi.ImageSpec{Image: req.Ref},
		Auth: &runtimeapi.AuthConfig{
			Username: req.Auth.Username, Password: req.Auth.Password,
			IdentityToken: req.Auth.IdentityToken, RegistryToken: req.Auth.RegistryToken,
		},
	})
	return err
}

// checkUser honours runAsNonRoot, with what the image says of its user.
func (k *keeper) checkUser(c *corev1.Container, img *runtimeapi.Image) error {
	must, user := k.Bundle.RunAsNonRoot(c)
	if !must {
		return nil
	}
	switch {
	case user != nil && *user != 0:
		return nil
	case user == nil && img.GetUid().GetValue() != 0:
		return nil
	case user == nil && img.GetUsername() != "":
		return fmt.Errorf("cannot run container %s: runAsNonRoot is set, and image %s has the user %q, of which nobody knows that it is not root: set runAsUser: %w",
			c.Name, c.Image, img.GetUsername(), errs.Invalid)
	}
	return fmt.Errorf("cannot run container %s: runAsNonRoot is set, and it would run as root: %w", c.Name, errs.Invalid)
}
