package provider

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/berthrun/berth/internal/cluster/provider/command"
	"github.com/berthrun/berth/internal/errs"
)

// pulls is how often a pull is tried: registries and networks fail for moments.
const pulls = 4

// Ensure pulls a missing image.
func (e *CLI) Ensure(ctx context.Context, image string, out io.Writer) (bool, error) {
	found, err := e.Present(ctx, image)
	if err != nil || found.ID != "" {
		return false, err
	}
	name := e.imageName(image)
	if strings.HasPrefix(name, "localhost/") {
		// podman gives this prefix to images that it has built; no registry has that name.
		return false, fmt.Errorf("image %q is not present in %s, and is in no registry to be pulled from: %w", image, e.name, errs.NotFound)
	}
	if out != nil {
		out = &shared{to: out}
	}
	for try := 1; ; try++ {
		err := e.run.Run(ctx, command.Call{Args: []string{"pull", name}, Stdout: out, Stderr: out})
		switch {
		case err == nil:
			return true, nil
		case try == pulls, errors.Is(err, errs.NotFound), ctx.Err() != nil:
			return true, fmt.Errorf("image %q is not present, and cannot be pulled: %w", image, err)
		}
		select {
		case <-ctx.Done():
			return true, context.Cause(ctx)
		case <-time.After(time.Duration(try) * time.Second):
		}
	}
}

// Present finds an image.
func (e *CLI) Present(ctx context.Context, image string) (Image, error) {
	out, err := command.Output(ctx, e.run, "image", "inspect", e.imageName(image))
	if errors.Is(err, errs.NotFound) {
		return Image{}, e.builtHere(ctx, image)
	}
	if err != nil {
		return Image{}, fmt.Errorf("cannot look for the image %s: %w", image, err)
	}
	var found []struct {
		ID     string
		Config struct{ Labels map[string]string }
	}
	if err := json.Unmarshal(out, &found); err != nil {
		return Image{}, fmt.Errorf("the report of %s about the image %s is not a JSON list: %w", e.name, image, err)
	}
	if len(found) == 0 {
		return Image{}, nil
	}
	return Image{ID: strings.TrimPrefix(found[0].ID, "sha256:"), Labels: found[0].Config.Labels}, nil
}

// builtHere refuses the short name of an image that podman has built as localhost/NAME: a node
// would take it for an image of docker.io.
func (e *CLI) builtHere(ctx context.Context, image string) error {
	name := e.imageName(image)
	if !e.qualify || !strings.HasPrefix(name, "docker.io/") || strings.HasPrefix(image, "docker.io/") {
		return nil
	}
	if _, err := command.Output(ctx, e.run, "image", "inspect", "localhost/"+image); err != nil {
		return nil // it does not exist
	}
	return fmt.Errorf("%s has no image %s, but localhost/%s; say that, or the former in full: %w", e.name, name, image, errs.NotFound)
}

// Save writes an archive of images.
func (e *CLI) Save(ctx context.Context, to io.Writer, images ...string) error {
	args := append([]string{"save"}, e.save...)
	if len(images) > 1 {
		args = append(args, e.saveAll...)
	}
	for _, image := range images {
		args = append(args, e.imageName(image))
	}
	if err := e.run.Run(ctx, command.Call{Args: args, Stdout: to, Raw: true}); err != nil {
		return fmt.Errorf("cannot save %s: %w", strings.Join(images, ", "), err)
	}
	return nil
}

// Load reads an archive of images.
func (e *CLI) Load(ctx context.Context, from io.Reader) error {
	if err := e.run.Run(ctx, command.Call{Args: []string{"load"}, Stdin: from}); err != nil {
		return fmt.Errorf("cannot load images: %w", err)
	}
	return nil
}

// imageName is an image's name in the form that the engine needs.
func (e *CLI) imageName(image string) string {
	if e.qualify {
		return qualified(image)
	}
	return image
}
