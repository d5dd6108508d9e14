package berth

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berthrun/berth/internal/berthapi"
	"github.com/berthrun/berth/internal/cluster/provider"
	"github.com/berthrun/berth/internal/errs"
)

// pulls is how often a pull is tried: registries and networks fail for moments.
const pulls = 4

// Ensure pulls a missing image.
func (e *Provider) Ensure(ctx context.Context, image string, out io.Writer) (pulled bool, err error) {
	found, err := e.Present(ctx, image)
	if err != nil || found.ID != "" {
		return false, err
	}
	if out == nil {
		out = io.Discard
	}
	for try := 1; ; try++ {
		e.traceCall("pull", image)
		_, err := e.conn.Berth.PullImage(ctx, berthapi.PullRequest{Ref: image}, func(p berthapi.Progress) {
			fmt.Fprintf(out, "%s: %s %d/%d\n", image, p.Stage, p.Done, p.Total)
		})
		switch {
		case err == nil:
			return true, nil
		case try == pulls, errors.Is(err, errs.NotFound), ctx.Err() != nil, strings.HasPrefix(image, "localhost/"):
			return true, fmt.Errorf("image %q is not present in berth, and cannot be pulled: %w", image, err)
		}
		select {
		case <-ctx.Done():
			return true, context.Cause(ctx)
		case <-time.After(time.Duration(try) * time.Second):
		}
	}
}

// Present finds an image.
func (e *Provider) Present(ctx context.Context, image string) (provider.Image, error) {
	status, err := e.conn.Images.ImageStatus(ctx, &runtimeapi.ImageStatusRequest{Image: &runtimeapi.ImageSpec{Image: image}, Verbose: true})
	if err != nil {
		return provider.Image{}, fmt.Errorf("cannot look for the image %s: %w", image, err)
	}
	found := provider.Image{ID: strings.TrimPrefix(status.GetImage().GetId(), "sha256:")}
	if text := status.GetInfo()["imageSpec"]; text != "" {
		var spec struct {
			Config struct{ Labels map[string]string }
		}
		if err := json.Unmarshal([]byte(text), &spec); err != nil {
			return provider.Image{}, fmt.Errorf("berth's report of the image %s is not JSON: %w", image, err)
		}
		found.Labels = spec.Config.Labels
	}
	return found, nil
}

// Save writes an archive of images.
func (e *Provider) Save(ctx context.Context, to io.Writer, images ...string) error {
	e.traceCall(append([]string{"save"}, images...)...)
	if err := e.conn.Berth.ExportImage(ctx, berthapi.ExportRequest{Refs: images}, to); err != nil {
		return fmt.Errorf("cannot save %s: %w", strings.Join(images, ", "), err)
	}
	return nil
}

// Load reads an archive of images. It pins them: otherwise a kubelet of this host would remove the
// image of stopped nodes.
func (e *Provider) Load(ctx context.Context, from io.Reader) error {
	e.traceCall("load")
	if _, err := e.conn.Berth.ImportImage(ctx, berthapi.ImportRequest{Pin: true}, from, nil); err != nil {
		return fmt.Errorf("cannot load images: %w", err)
	}
	return nil
}
