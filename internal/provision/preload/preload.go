// Package preload has the task that loads image archives into a running container runtime.
package preload

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/provision"
	"github.com/berthrun/berth/internal/provision/crisock"
)

// Archive is a task: an image archive that a program loads into the runtime. It needs the task of
// the runtime's unit, and loads the archive when the runtime answers.
type Archive struct {
	M   provision.Meta
	Ref provision.AssetRef
	// Names are the references that the runtime must know afterwards.
	Names []string
	// Load is the program that imports an archive from standard input:
	// {"ctr", "-n", "k8s.io", "images", "import", "-"}, {"berth", "image", "import", "-"}.
	Load []string
	// CRI is the endpoint of the runtime that Names are looked up in:
	// "unix:///run/containerd/containerd.sock". Where it is empty, the program Has gets the name as
	// its last argument, and exits with status 0 where the runtime has the image.
	CRI string
	Has []string
	// Delay is how long the runtime may take to list an image after Load has ended, where Load is
	// no client of CRI; 0 where the runtime lists it at once.
	Delay time.Duration
}

// pollInterval is the time between two lookups of an image in the runtime.
const pollInterval = 50 * time.Millisecond

var _ provision.Preparer = Archive{}

// kindImage is the kind of images. Its name is part of the journal's format.
const kindImage = "image"

// Kinds returns the kind of images.
func Kinds() map[string]provision.Kind { return map[string]provision.Kind{kindImage: imageKind{}} }

// ID is "image NAME".
func (a Archive) ID() string { return "image " + a.Ref.Name }

// Meta returns M.
func (a Archive) Meta() provision.Meta { return a.M }

// Deadline is long enough for a slow server and a large image.
func (Archive) Deadline() time.Duration { return 30 * time.Minute }

// Objects are the images, where the runtime has a CRI endpoint.
func (a Archive) Objects(context.Context, provision.Host) ([]provision.Object, error) {
	if len(a.Load) == 0 || len(a.Names) == 0 {
		return nil, fmt.Errorf("image archive %s without names or a program to load it: %w", a.Ref.Name, errs.Invalid)
	}
	if a.CRI == "" {
		return nil, nil
	}
	list := make([]provision.Object, len(a.Names))
	for n, name := range a.Names {
		list[n] = provision.Object{Kind: kindImage, Name: a.CRI + "#" + name}
	}
	return list, nil
}

// Prepare fetches the archive unless the runtime has the images.
func (a Archive) Prepare(ctx context.Context, host provision.Host) error {
	if c, err := a.Check(ctx, host); err == nil && c.Empty() {
		return nil
	}
	_, err := host.Assets().Fetch(ctx, a.archive())
	return err
}

// archive is the asset as it is: runtimes unpack archives themselves.
func (a Archive) archive() provision.AssetRef {
	ref := a.Ref
	ref.Format = "raw"
	return ref
}

// Check looks the names up in the runtime. A runtime that does not answer yet has no image.
func (a Archive) Check(ctx context.Context, host provision.Host) (provision.Change, error) {
	if !host.Live() {
		return provision.Change{}, nil
	}
	var diffs []provision.Diff
	for _, name := range a.Names {
		has, err := a.has(ctx, host, name)
		if err != nil && !errors.Is(err, errs.Unavailable) {
			return provision.Change{}, err
		}
		if !has {
			diffs = append(diffs, provision.Diff{
				Object: provision.Object{Kind: kindImage, Name: name}, Action: provision.Create, Reason: "the runtime does not have it",
			})
		}
	}
	return provision.Change{Diffs: diffs}, nil
}

func (a Archive) has(ctx context.Context, host provision.Host, name string) (bool, error) {
	if a.CRI != "" {
		return crisock.HasImage(ctx, a.CRI, name)
	}
	_, err := host.Run(ctx, provision.Command{Args: append(slices.Clone(a.Has), name)})
	return err == nil, nil
}

// Apply pipes the archive into the program that loads it.
func (a Archive) Apply(ctx context.Context, host provision.Host) error {
	if !host.Live() {
		return nil
	}
	members, err := host.Assets().Fetch(ctx, a.archive())
	if err != nil {
		return err
	}
	if len(members) != 1 {
		return fmt.Errorf("image archive %s is %d files: %w", a.Ref.Name, len(members), errs.Invalid)
	}
	err = host.Assets().Read(ctx, a.archive(), []string{members[0].Path}, func(_ string, content io.Reader) error {
		_, err := host.Run(ctx, provision.Command{Args: a.Load, Stdin: content})
		return err
	})
	if err != nil {
		return fmt.Errorf("cannot load image archive %s: %w", a.Ref.Name, err)
	}
	ctx, cancel := context.WithTimeout(ctx, a.Delay+pollInterval)
	defer cancel()
	for _, name := range a.Names {
		if err := a.awaitImage(ctx, host, name); err != nil {
			return err
		}
	}
	return nil
}

// awaitImage waits until the runtime has an image, at most until ctx ends.
func (a Archive) awaitImage(ctx context.Context, host provision.Host, name string) error {
	for {
		has, err := a.has(context.WithoutCancel(ctx), host, name)
		if err != nil || has {
			return err
		}
		if a.Delay == 0 {
			return fmt.Errorf("image archive %s holds no %s: %w", a.Ref.Name, name, errs.Invalid)
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("image archive %s was loaded, and in %v the runtime heard of no %s: does the archive hold it? %w", a.Ref.Name, a.Delay, name, errs.Invalid)
		case <-time.After(pollInterval):
		}
	}
}

// imageKind is an image of a runtime, named "ENDPOINT#REFERENCE".
type imageKind struct{}

// Read looks the image up in the runtime. A runtime that does not answer has no image.
func (imageKind) Read(ctx context.Context, host provision.Host, name string) (provision.State, error) {
	endpoint, ref, _ := strings.Cut(name, "#")
	if !host.Live() {
		return provision.State{}, nil
	}
	has, err := crisock.HasImage(ctx, endpoint, ref)
	if errors.Is(err, errs.Unavailable) {
		return provision.State{}, nil
	}
	return provision.State{Exists: has}, err
}

// Restore removes an image that was not there before. It does not load an image again.
func (k imageKind) Restore(ctx context.Context, host provision.Host, name string, state provision.State, _ provision.Content) error {
	now, err := k.Read(ctx, host, name)
	if err != nil || state.Exists || !now.Exists {
		return err
	}
	endpoint, ref, _ := strings.Cut(name, "#")
	return crisock.RemoveImage(ctx, endpoint, ref)
}
