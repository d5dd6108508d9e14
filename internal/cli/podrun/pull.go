package podrun

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berthrun/berth/internal/berthapi"
	"github.com/berthrun/berth/internal/cli/podyaml/pullsecret"
	"github.com/berthrun/berth/internal/cli/progress"
	"github.com/berthrun/berth/internal/criclient"
	"github.com/berthrun/berth/internal/engine"
	"github.com/berthrun/berth/internal/errs"
)

// pullAll ensures that every image is present, before anything is created.
func (k *podRun) pullAll(ctx context.Context) error {
	if err := k.setImageHandler(ctx); err != nil {
		return err
	}
	credentials, missing := k.Bundle.Credentials()
	for _, name := range missing {
		k.say("the file has no Secret %s of imagePullSecrets: pulling without it", name)
	}
	for _, list := range [][]corev1.Container{k.pod.Spec.InitContainers, k.pod.Spec.Containers} {
		for i := range list {
			c := &list[i]
			img, err := k.pull(ctx, "run container "+c.Name, c.Image, c.ImagePullPolicy, credentials)
			if err != nil {
				return err
			}
			if err := k.checkUser(c, img); err != nil {
				return err
			}
		}
	}
	for i := range k.pod.Spec.Volumes {
		v := &k.pod.Spec.Volumes[i]
		if v.Image == nil {
			continue
		}
		if _, err := k.pull(ctx, "make volume "+v.Name, v.Image.Reference, v.Image.PullPolicy, credentials); err != nil {
			return err
		}
	}
	return nil
}

// setImageHandler has requests for images name the pod's handler if berth has a platform for it. The images of other
// handlers are those of the node.
func (k *podRun) setImageHandler(ctx context.Context) error {
	if k.Bundle.Handler == "" {
		return nil
	}
	var resp *runtimeapi.StatusResponse
	err := k.retryUnavailable(ctx, func(ctx context.Context) (err error) {
		resp, err = k.Conn.Runtime.Status(ctx, &runtimeapi.StatusRequest{Verbose: true})
		return err
	})
	if err != nil {
		return err
	}
	var info struct {
		Handlers []engine.HandlerInfo `json:"handlers"`
	}
	if json.Unmarshal([]byte(resp.GetInfo()["engine"]), &info) != nil {
		return nil //nolint:nilerr // of another runtime
	}
	for _, h := range info.Handlers {
		if h.Name == k.Bundle.Handler && h.Platform != "" {
			k.imageHandler = h.Name
		}
	}
	return nil
}

func (k *podRun) pull(ctx context.Context, what, ref string, policy corev1.PullPolicy, credentials []pullsecret.Credential) (*runtimeapi.Image, error) {
	img, err := k.image(ctx, ref)
	if err != nil {
		return nil, err
	}
	policy = pullPolicy(ref, policy)
	if policy == corev1.PullNever && img == nil {
		return nil, fmt.Errorf("cannot %s: image %s is not there, and the pull policy is Never: %w", what, ref, errs.NotFound)
	}
	if img != nil && policy != corev1.PullAlways {
		return img, nil
	}
	id, err := k.pullWith(ctx, ref, credentials)
	if err != nil {
		return nil, fmt.Errorf("cannot %s: %w", what, err)
	}
	img, err = k.image(ctx, ref)
	if err != nil || id == "" || img.GetId() == id {
		return img, err
	}
	// The name has no registry, and the node has an older image from one that is tried before.
	if k.pulled == nil {
		k.pulled = map[string]string{}
	}
	k.pulled[ref] = id
	return k.image(ctx, id)
}

// usePulled has a container use what was pulled for it, where its name means another image of the node.
func (k *podRun) usePulled(config *runtimeapi.ContainerConfig) {
	images := []*runtimeapi.ImageSpec{config.GetImage()}
	for _, mount := range config.GetMounts() {
		images = append(images, mount.GetImage())
	}
	for _, img := range images {
		if id := k.pulled[img.GetImage()]; id != "" {
			img.Image = id
		}
	}
}

// pullWith tries the credentials that are for an image, the best first, or none. It returns what Pull returns.
func (k *podRun) pullWith(ctx context.Context, ref string, credentials []pullsecret.Credential) (id string, err error) {
	type fitting struct {
		fit  int
		auth berthapi.Auth
	}
	var all []fitting
	for i := range credentials {
		c := &credentials[i]
		if fit, ok := c.For(ref); ok {
			all = append(all, fitting{fit, berthapi.Auth{Username: c.Username, Password: c.Password, IdentityToken: c.IdentityToken}})
		}
	}
	slices.SortStableFunc(all, func(a, b fitting) int { return cmp.Compare(b.fit, a.fit) })
	if len(all) == 0 {
		all = append(all, fitting{})
	}
	var failed []error
	for _, f := range all {
		id, err := Pull(ctx, k.Conn, berthapi.PullRequest{Ref: ref, Auth: f.auth, Handler: k.imageHandler}, progress.New(k.Say, ref))
		if err == nil {
			return id, nil
		}
		failed = append(failed, err)
	}
	return "", errors.Join(failed...)
}

func (k *podRun) image(ctx context.Context, ref string) (*runtimeapi.Image, error) {
	var resp *runtimeapi.ImageStatusResponse
	err := k.retryUnavailable(ctx, func(ctx context.Context) (err error) {
		resp, err = k.Conn.Images.ImageStatus(ctx, &runtimeapi.ImageStatusRequest{
			Image: &runtimeapi.ImageSpec{Image: ref, RuntimeHandler: k.imageHandler},
		})
		return err
	})
	return resp.GetImage(), err
}

// pullPolicy is the Pod API's default if the file sets none: an image that may change under its
// name is pulled each time.
func pullPolicy(ref string, policy corev1.PullPolicy) corev1.PullPolicy {
	if policy != "" {
		return policy
	}
	name := ref[strings.LastIndex(ref, "/")+1:]
	if strings.Contains(name, "@") || (strings.Contains(name, ":") && !strings.HasSuffix(name, ":latest")) {
		return corev1.PullIfNotPresent
	}
	return corev1.PullAlways
}

// Pull pulls with a progress bar if the runtime is berth, and silently otherwise. It returns the image's id if the runtime
// is berth, and "" otherwise: others may return a name.
func Pull(ctx context.Context, conn *criclient.Conn, req berthapi.PullRequest, bar *progress.Bar) (id string, err error) {
	img, err := conn.Berth.PullImage(ctx, req, bar.Show)
	bar.Clear()
	if err == nil {
		return img.ID, nil
	}
	if !errors.Is(err, errs.Unsupported) {
		return "", err
	}
	_, err = conn.Images.PullImage(ctx, &runtimeapi.PullImageRequest{
		Image: &runtimeapi.ImageSpec{Image: req.Ref, RuntimeHandler: req.Handler},
		Auth: &runtimeapi.AuthConfig{
			Username: req.Auth.Username, Password: req.Auth.Password,
			IdentityToken: req.Auth.IdentityToken, RegistryToken: req.Auth.RegistryToken,
		},
	})
	return "", err
}

// checkUser enforces runAsNonRoot, with the image's user.
func (k *podRun) checkUser(c *corev1.Container, img *runtimeapi.Image) error {
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
		return fmt.Errorf("cannot run container %s: runAsNonRoot is set, and image %s has the user %q, which may be root: set runAsUser: %w",
			c.Name, c.Image, img.GetUsername(), errs.Invalid)
	}
	return fmt.Errorf("cannot run container %s: runAsNonRoot is set, and it would run as root: %w", c.Name, errs.Invalid)
}
