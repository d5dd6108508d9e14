package pause

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"runtime"

	"github.com/moby/moby/client"

	"github.com/berthrun/berth/internal/docker/api"
	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/keyed"
)

// Loader loads the image into one engine. Calls at the same time share one load.
type Loader struct {
	client *api.Client
	loads  keyed.Flights[struct{}, string]
}

// NewLoader returns a Loader for the engine of c.
func NewLoader(c *api.Client) *Loader { return &Loader{client: c} }

// Ensure is the function Ensure for the Loader's engine. A caller whose ctx ends leaves, and the
// load goes on for the others.
func (l *Loader) Ensure(ctx context.Context) (imageID string, err error) {
	load := func(ctx context.Context, _ *struct{}) (string, error) { return Ensure(ctx, l.client) }
	flight, err := l.loads.Join(ctx, "load the pause image", load)
	if err != nil {
		return "", err
	}
	defer flight.Leave()
	select {
	case <-flight.Done():
		return flight.Result()
	case <-ctx.Done():
		return "", context.Cause(ctx)
	}
}

// Ensure loads the image into the engine of c, unless the engine has it as Reference, and returns
// the engine's id of it. It takes the name from another image, and loads the image again after
// its removal. Someone may remove it after Ensure: creating a container then fails with NotFound,
// and Ensure helps again.
func Ensure(ctx context.Context, c *api.Client) (imageID string, err error) {
	img, err := build(runtime.GOARCH)
	if err != nil {
		return "", err
	}
	id, err := find(ctx, c)
	switch {
	case errors.Is(err, errs.NotFound):
	case err != nil:
		return "", err
	case img.hasID(id):
		return id, nil
	default:
		slog.Warn("the pause image was replaced by another image, berth loads its own again",
			"image", Reference, "other", id)
	}
	if err := load(ctx, c, img); err != nil {
		return "", err
	}
	if id, err = find(ctx, c); err != nil {
		return "", fmt.Errorf("cannot find the pause image after loading it: %w", err)
	}
	if !img.hasID(id) {
		return "", fmt.Errorf("the engine has image %s as %s after loading the pause image: %w",
			id, Reference, errs.State)
	}
	return id, nil
}

// find returns the id of the image that the engine has as Reference.
func find(ctx context.Context, c *api.Client) (string, error) {
	found, err := c.ImageInspect(ctx, Reference)
	return found.ID, err
}

func load(ctx context.Context, c *api.Client, img *image) error {
	archive, err := img.archive()
	if err != nil {
		return err
	}
	result, err := c.ImageLoad(ctx, bytes.NewReader(archive), client.ImageLoadWithQuiet(true))
	if err != nil {
		return fmt.Errorf("cannot load the pause image: %w", err)
	}
	defer result.Close()
	if err := progress(result); err != nil {
		return fmt.Errorf("cannot load the pause image: %w", err)
	}
	return nil
}

// progress reads the engine's messages about a load until its end, which is the end of the load,
// and returns the error that one of them has.
func progress(from io.Reader) error {
	const maxAnswer = 1 << 20
	messages := json.NewDecoder(io.LimitReader(from, maxAnswer))
	for {
		var message struct {
			Error string `json:"error"`
		}
		err := messages.Decode(&message)
		switch {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return fmt.Errorf("cannot read the engine's answer: %w", err)
		case message.Error != "":
			return fmt.Errorf("the engine failed: %s", message.Error)
		}
	}
}
