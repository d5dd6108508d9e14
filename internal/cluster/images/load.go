// Package images loads images into the nodes of a cluster. It sends to a node only what the node
// does not have.
package images

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/distribution/reference"
	"golang.org/x/sync/errgroup"

	"github.com/berthrun/berth/internal/cluster/config"
	"github.com/berthrun/berth/internal/cluster/images/imagefile"
	"github.com/berthrun/berth/internal/cluster/inventory"
	"github.com/berthrun/berth/internal/cluster/provider"
	"github.com/berthrun/berth/internal/cluster/report"
	"github.com/berthrun/berth/internal/errs"
)

// Options are what to load, and where to.
type Options struct {
	// Images are names of images of the provider. Archives are paths of files as docker or OCI
	// tools write them; "-" is Stdin.
	Images, Archives []string
	Stdin            io.Reader
	// Nodes are the names of the nodes that get the images; none is all.
	Nodes []string
}

// Loader loads images into clusters of one provider.
type Loader struct {
	Provider provider.Provider
	report.Reporter
}

// Load loads images into the nodes of a cluster, into all of them at once. The error is
// errs.NotFound for an unknown cluster, node or image, and errs.State for a node that does not run.
func (l Loader) Load(ctx context.Context, name string, o Options) error {
	all, err := inventory.Nodes(ctx, l.Provider, name)
	if err != nil {
		return err
	}
	targets, err := receivers(all, o.Nodes)
	if err != nil {
		return err
	}
	for _, archive := range o.Archives {
		load := func() error { return l.loadFile(ctx, targets, archive, nil) }
		if archive == "-" {
			archive, load = "standard input", func() error { return l.loadStdin(ctx, targets, o.Stdin) }
		}
		if err := load(); err != nil {
			return fmt.Errorf("cannot load %s into %s: %w", archive, name, err)
		}
	}
	if len(o.Images) == 0 {
		return nil
	}
	if err := l.loadImages(ctx, targets, o.Images); err != nil {
		return fmt.Errorf("cannot load %s into %s: %w", strings.Join(o.Images, ", "), name, err)
	}
	return nil
}

// receivers returns the requested nodes, without the load balancer, which runs no pods.
func receivers(all []provider.Node, asked []string) ([]provider.Node, error) {
	var found []provider.Node
	for _, n := range all {
		if inventory.Role(n) != config.BalancerRole && (len(asked) == 0 || slices.Contains(asked, n.Name)) {
			found = append(found, n)
		}
	}
	var failed []error
	for _, name := range asked {
		if !slices.ContainsFunc(found, func(n provider.Node) bool { return n.Name == name }) {
			failed = append(failed, fmt.Errorf("unknown node: %q: %w", name, errs.NotFound))
		}
	}
	for _, n := range found {
		if !n.Running {
			failed = append(failed, fmt.Errorf("%s does not run: %w", n.Name, errs.State))
		}
	}
	return found, errors.Join(failed...)
}

// loadImages saves images of the provider into a file first, so that the provider writes them once
// and not once for each node. It does not save images that every node has, by ID.
func (l Loader) loadImages(ctx context.Context, nodes []provider.Node, images []string) error {
	ids, err := l.present(ctx, images)
	if err != nil {
		return err
	}
	asked, err := l.queryAll(ctx, nodes)
	if err != nil {
		return err
	}
	var save []string
	for i, image := range images {
		everywhere, err := l.retag(ctx, asked, ids[i], image)
		if err != nil {
			return err
		}
		if !everywhere {
			save = append(save, image)
		}
	}
	if len(save) == 0 {
		return l.RunStep(fmt.Sprintf("%d nodes have %s already", len(nodes), strings.Join(images, ", ")), func() error { return nil })
	}
	file, err := newSpool()
	if err != nil {
		return err
	}
	defer file.Close()
	err = l.RunStep("Saving "+strings.Join(save, ", "), func() error { return file.explain(l.Provider.Save(ctx, file, save...)) })
	if err != nil {
		return err
	}
	return l.loadFile(ctx, nodes, file.path(), asked)
}

// loadStdin copies standard input into a file, which it sends to each node.
func (l Loader) loadStdin(ctx context.Context, nodes []provider.Node, from io.Reader) error {
	file, err := newSpool()
	if err != nil {
		return err
	}
	defer file.Close()
	read := make(chan error, 1)
	go func() {
		_, err := io.Copy(file, from)
		read <- file.explain(err)
	}()
	err = l.RunStep("Reading standard input", func() error {
		select {
		case err := <-read:
			// The writer may have been interrupted, too, and the input is incomplete.
			return errors.Join(err, context.Cause(ctx))
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	})
	if err != nil {
		return err
	}
	return l.loadFile(ctx, nodes, file.path(), nil)
}

// present returns the IDs of images. The error is errs.NotFound when the provider lacks one.
func (l Loader) present(ctx context.Context, images []string) ([]string, error) {
	var ids []string
	var missing []error
	for _, image := range images {
		found, err := l.Provider.Present(ctx, image)
		switch {
		case err != nil:
			return nil, err
		case found.ID == "":
			missing = append(missing, fmt.Errorf("image: %q not present locally; pull or build it with %s first: %w", image, l.Provider.Name(), errs.NotFound))
		}
		ids = append(ids, "sha256:"+found.ID)
	}
	return ids, errors.Join(missing...)
}

// queryAll asks all nodes at once which images they have.
func (l Loader) queryAll(ctx context.Context, nodes []provider.Node) ([]*receiver, error) {
	asked := make([]*receiver, len(nodes))
	group, ctx := errgroup.WithContext(ctx)
	for i, n := range nodes {
		group.Go(func() (err error) {
			asked[i], err = l.query(ctx, n)
			return err
		})
	}
	return asked, group.Wait()
}

// retag adds an image's name in nodes that have the image under other names, and reports whether
// all nodes have the image.
func (l Loader) retag(ctx context.Context, nodes []*receiver, id, image string) (bool, error) {
	name, err := reference.ParseDockerRef(image)
	if err != nil {
		return false, nil // the archive has the name
	}
	if _, digested := name.(reference.Digested); digested {
		return false, nil // it follows from the content
	}
	everywhere := true
	for _, r := range nodes {
		lacks, there := r.missing(id, []string{name.String()})
		if !there {
			everywhere = false
			continue
		}
		if err := l.tag(ctx, r, id, lacks); err != nil {
			return false, err
		}
	}
	return everywhere, nil
}

// tag adds the names that an image of a node lacks.
func (l Loader) tag(ctx context.Context, r *receiver, id string, lacks []string) error {
	if len(lacks) == 0 {
		return nil
	}
	if err := l.Provider.Exec(ctx, r.name, provider.Command{Args: r.tagCommand(id, lacks)}); err != nil {
		return err
	}
	r.images[id] = append(r.images[id], lacks...)
	return nil
}

// loadFile sends an archive to nodes, without what each of them has. Where known is nil, it asks
// the nodes first.
func (l Loader) loadFile(ctx context.Context, nodes []provider.Node, archive string, known []*receiver) error {
	file, err := imagefile.Open(archive, spoolDir())
	if err != nil {
		return err
	}
	defer file.Close()
	return l.RunStep(fmt.Sprintf("Loading into %d nodes", len(nodes)), func() error {
		if known == nil {
			if known, err = l.queryAll(ctx, nodes); err != nil {
				return err
			}
		}
		group, ctx := errgroup.WithContext(ctx)
		for _, r := range known {
			group.Go(func() error { return l.send(ctx, r, file) })
		}
		return group.Wait()
	})
}

// send sends a node the images of an archive.
func (l Loader) send(ctx context.Context, r *receiver, file *imagefile.File) error {
	whole := true
	for _, img := range file.Images {
		lacks, there := r.missing(img.ID, img.Names)
		if img.ID == "" || !there {
			whole = false
			break
		}
		if err := l.tag(ctx, r, img.ID, lacks); err != nil {
			return err
		}
	}
	if whole {
		return nil
	}
	err := l.sendWithout(ctx, r, file, r.has)
	if err != nil && ctx.Err() == nil && len(r.has.Blobs) > 0 {
		// Somebody may have removed meanwhile what the node had.
		err = l.sendWithout(ctx, r, file, imagefile.Has{})
	}
	return err
}

// sendWithout sends an archive without what the node has.
func (l Loader) sendWithout(ctx context.Context, r *receiver, file *imagefile.File, has imagefile.Has) error {
	args, err := l.importCommand(ctx, r)
	if err != nil {
		return err
	}
	from, to := io.Pipe()
	written := make(chan error, 1)
	go func() {
		_, err := file.Write(to, has)
		written <- err
		to.CloseWithError(err)
	}()
	// Nobody could read the progress of several nodes at once.
	err = l.Provider.Exec(ctx, r.name, provider.Command{Args: args, Stdin: from, Stderr: io.Discard})
	from.CloseWithError(io.ErrClosedPipe)
	if failed := <-written; err == nil && failed != nil {
		return failed
	}
	return err
}
