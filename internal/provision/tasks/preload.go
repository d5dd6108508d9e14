package tasks

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

// ImagePreload brings an image archive into the runtime. It needs the runtime's Unit
// task, and runs when the runtime answers.
type ImagePreload struct {
	M   provision.Meta
	Ref provision.AssetRef
	// Names are the references that the runtime must know afterwards.
	Names []string
	// Load is the program that imports an archive from standard input:
	// {"ctr", "-n", "k8s.io", "images", "import", "-"}, {"berth", "image", "import", "-"}.
	Load []string
	// CRI is the endpoint that is asked for Names: "unix:///run/containerd/containerd.sock".
	// Where it is empty, Has is run with the name as last argument, and status 0 says yes.
	CRI string
	Has []string
	// Hears is how long the runtime may take to hear of what Load has brought, where that is
	// not a client of CRI; 0 for one that knows when Load ends.
	Hears time.Duration
}

// hearPause is the time between two questions whether it has heard.
const hearPause = 50 * time.Millisecond

// ID is "image NAME".
func (i ImagePreload) ID() string { return "image " + i.Ref.Name }

// Meta returns M.
func (i ImagePreload) Meta() provision.Meta { return i.M }

// Deadline has room for a slow server and a large image.
func (ImagePreload) Deadline() time.Duration { return 30 * time.Minute }

// Objects are the images, where there is a CRI to ask for them.
func (i ImagePreload) Objects(context.Context, provision.Host) ([]provision.Object, error) {
	if len(i.Load) == 0 || len(i.Names) == 0 {
		return nil, fmt.Errorf("image archive %s without names or a program to load it: %w", i.Ref.Name, errs.Invalid)
	}
	if i.CRI == "" {
		return nil, nil
	}
	list := make([]provision.Object, len(i.Names))
	for n, name := range i.Names {
		list[n] = provision.Object{Kind: kindImage, Name: i.CRI + "#" + name}
	}
	return list, nil
}

// Prepare fetches the archive unless the runtime has the images.
func (i ImagePreload) Prepare(ctx context.Context, host provision.Host) error {
	if c, err := i.Check(ctx, host); err == nil && c.Empty() {
		return nil
	}
	_, err := host.Assets().Fetch(ctx, i.archive())
	return err
}

// archive is the asset, not unpacked: runtimes read archives themselves.
func (i ImagePreload) archive() provision.AssetRef {
	ref := i.Ref
	ref.Format = "raw"
	return ref
}

// Check asks the runtime for the names. A runtime that does not answer yet has none.
func (i ImagePreload) Check(ctx context.Context, host provision.Host) (provision.Change, error) {
	if !host.Live() {
		return provision.Change{}, nil
	}
	var diffs []provision.Diff
	for _, name := range i.Names {
		has, err := i.has(ctx, host, name)
		if err != nil && !errors.Is(err, errs.Unavailable) {
			return provision.Change{}, err
		}
		if !has {
			diffs = append(diffs, provision.Diff{
				Object: provision.Object{Kind: kindImage, Name: name}, Action: provision.Create, Reason: "the runtime does not have it",
			})
		}
	}
	return change(diffs...), nil
}

func (i ImagePreload) has(ctx context.Context, host provision.Host, name string) (bool, error) {
	if i.CRI != "" {
		return crisock.HasImage(ctx, i.CRI, name)
	}
	_, err := host.Run(ctx, provision.Command{Args: append(slices.Clone(i.Has), name)})
	return err == nil, nil
}

// Apply gives the archive to the program that loads it.
func (i ImagePreload) Apply(ctx context.Context, host provision.Host) error {
	if !host.Live() {
		return nil
	}
	members, err := host.Assets().Fetch(ctx, i.archive())
	if err != nil {
		return err
	}
	if len(members) != 1 {
		return fmt.Errorf("image archive %s is %d files: %w", i.Ref.Name, len(members), errs.Invalid)
	}
	err = host.Assets().Read(ctx, i.archive(), []string{members[0].Path}, func(_ string, content io.Reader) error {
		_, err := host.Run(ctx, provision.Command{Args: i.Load, Stdin: content})
		return err
	})
	if err != nil {
		return fmt.Errorf("cannot load image archive %s: %w", i.Ref.Name, err)
	}
	ctx, cancel := context.WithTimeout(ctx, i.Hears+hearPause)
	defer cancel()
	for _, name := range i.Names {
		if err := i.heard(ctx, host, name); err != nil {
			return err
		}
	}
	return nil
}

// heard wants that the runtime has an image, and lets it have the time of ctx to hear of it.
func (i ImagePreload) heard(ctx context.Context, host provision.Host, name string) error {
	for {
		has, err := i.has(context.WithoutCancel(ctx), host, name)
		if err != nil || has {
			return err
		}
		if i.Hears == 0 {
			return fmt.Errorf("image archive %s holds no %s: %w", i.Ref.Name, name, errs.Invalid)
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("image archive %s was loaded, and in %v the runtime heard of no %s: does the archive hold it? %w", i.Ref.Name, i.Hears, name, errs.Invalid)
		case <-time.After(hearPause):
		}
	}
}

// imageKind is an image of a runtime, named "ENDPOINT#REFERENCE".
type imageKind struct{}

// Read asks the runtime. One that does not answer has no image.
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

// Restore removes an image that was not there; one that went is not brought back.
func (k imageKind) Restore(ctx context.Context, host provision.Host, name string, state provision.State, _ provision.Content) error {
	now, err := k.Read(ctx, host, name)
	if err != nil || state.Exists || !now.Exists {
		return err
	}
	endpoint, ref, _ := strings.Cut(name, "#")
	return crisock.RemoveImage(ctx, endpoint, ref)
}
