package cluster

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
	"github.com/berthrun/berth/internal/cluster/imagefile"
	"github.com/berthrun/berth/internal/cluster/inventory"
	"github.com/berthrun/berth/internal/cluster/provider"
	"github.com/berthrun/berth/internal/errs"
)

// LoadOptions say what is loaded where.
type LoadOptions struct {
	// Images are those of the engine, by name; Archives are files as docker or OCI tools
	// write them, of which "-" is Stdin.
	Images, Archives []string
	Stdin            io.Reader
	// Nodes are those that get them; none is all.
	Nodes []string
}

// Load puts images into the nodes of a cluster, all at once. What a node has of them is
// not sent to it.
func (c *Clusters) Load(ctx context.Context, name string, o LoadOptions) error {
	all, err := inventory.Nodes(ctx, c.Provider, name)
	if err != nil {
		return err
	}
	targets, err := receivers(all, o.Nodes)
	if err != nil {
		return err
	}
	for _, archive := range o.Archives {
		load := func() error { return c.loadFile(ctx, targets, archive, nil) }
		if archive == "-" {
			archive, load = "standard input", func() error { return c.loadStdin(ctx, targets, o.Stdin) }
		}
		if err := load(); err != nil {
			return fmt.Errorf("cannot load %s into %s: %w", archive, name, err)
		}
	}
	if len(o.Images) == 0 {
		return nil
	}
	if err := c.loadImages(ctx, targets, o.Images); err != nil {
		return fmt.Errorf("cannot load %s into %s: %w", strings.Join(o.Images, ", "), name, err)
	}
	return nil
}

// receivers are the nodes that were asked for, without the load balancer, which runs no pods.
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

// loadImages has the engine write its images into a file first: it would write them once for
// each node otherwise. Those that every node has, by ID, are not written at all.
func (c *Clusters) loadImages(ctx context.Context, nodes []provider.Node, images []string) error {
	ids, err := c.present(ctx, images)
	if err != nil {
		return err
	}
	asked, err := c.askAll(ctx, nodes)
	if err != nil {
		return err
	}
	var save []string
	for i, image := range images {
		everywhere, err := c.retag(ctx, asked, ids[i], image)
		if err != nil {
			return err
		}
		if !everywhere {
			save = append(save, image)
		}
	}
	if len(save) == 0 {
		return c.RunStep(fmt.Sprintf("%d nodes have %s already", len(nodes), strings.Join(images, ", ")), func() error { return nil })
	}
	file, err := newSpool()
	if err != nil {
		return err
	}
	defer file.Close()
	err = c.RunStep("Saving "+strings.Join(save, ", "), func() error { return file.why(c.Provider.Save(ctx, file, save...)) })
	if err != nil {
		return err
	}
	return c.loadFile(ctx, nodes, file.path(), asked)
}

// loadStdin keeps what comes in a file first, which each node reads.
func (c *Clusters) loadStdin(ctx context.Context, nodes []provider.Node, from io.Reader) error {
	file, err := newSpool()
	if err != nil {
		return err
	}
	defer file.Close()
	read := make(chan error, 1)
	go func() {
		_, err := io.Copy(file, from)
		read <- file.why(err)
	}()
	err = c.RunStep("Reading standard input", func() error {
		select {
		case err := <-read:
			// Whoever writes may have been interrupted, too, and what came is half of it.
			return errors.Join(err, context.Cause(ctx))
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	})
	if err != nil {
		return err
	}
	return c.loadFile(ctx, nodes, file.path(), nil)
}

// present are the IDs of images that the engine has, all of which it must have.
func (c *Clusters) present(ctx context.Context, images []string) ([]string, error) {
	var ids []string
	var missing []error
	for _, image := range images {
		found, err := c.Provider.Present(ctx, image)
		switch {
		case err != nil:
			return nil, err
		case found.ID == "":
			missing = append(missing, fmt.Errorf("image: %q not present locally; pull or build it with %s first: %w", image, c.Provider.Name(), errs.NotFound))
		}
		ids = append(ids, "sha256:"+found.ID)
	}
	return ids, errors.Join(missing...)
}

// askAll asks nodes what they have, all at once.
func (c *Clusters) askAll(ctx context.Context, nodes []provider.Node) ([]*receiver, error) {
	asked := make([]*receiver, len(nodes))
	group, ctx := errgroup.WithContext(ctx)
	for i, n := range nodes {
		group.Go(func() (err error) {
			asked[i], err = c.ask(ctx, n)
			return err
		})
	}
	return asked, group.Wait()
}

// retag gives an image its name in nodes that have it under others, and tells whether all
// nodes have it.
func (c *Clusters) retag(ctx context.Context, nodes []*receiver, id, image string) (bool, error) {
	name, err := reference.ParseDockerRef(image)
	if err != nil || strings.Contains(name.String(), "@") {
		return false, nil // the archive says what it is called
	}
	everywhere := true
	for _, r := range nodes {
		lacks, there := r.missing(id, []string{name.String()})
		if !there {
			everywhere = false
			continue
		}
		if err := c.tag(ctx, r, id, lacks); err != nil {
			return false, err
		}
	}
	return everywhere, nil
}

// tag gives an image of a node the names that it lacks.
func (c *Clusters) tag(ctx context.Context, r *receiver, id string, lacks []string) error {
	if len(lacks) == 0 {
		return nil
	}
	if err := c.Provider.Exec(ctx, r.name, provider.Command{Args: r.tag(id, lacks)}); err != nil {
		return err
	}
	r.images[id] = append(r.images[id], lacks...)
	return nil
}

// loadFile sends an archive to nodes, to each what it lacks. Where asked is nil, it asks them
// what they have.
func (c *Clusters) loadFile(ctx context.Context, nodes []provider.Node, archive string, asked []*receiver) error {
	file, err := imagefile.Open(archive, spoolDir())
	if err != nil {
		return err
	}
	defer file.Close()
	return c.RunStep(fmt.Sprintf("Loading into %d nodes", len(nodes)), func() error {
		if asked == nil {
			if asked, err = c.askAll(ctx, nodes); err != nil {
				return err
			}
		}
		group, ctx := errgroup.WithContext(ctx)
		for _, r := range asked {
			group.Go(func() error { return c.send(ctx, r, file) })
		}
		return group.Wait()
	})
}

// send gives a node the images of an archive.
func (c *Clusters) send(ctx context.Context, r *receiver, file *imagefile.File) error {
	whole := true
	for _, img := range file.Images {
		lacks, there := r.missing(img.ID, img.Names)
		if img.ID == "" || !there {
			whole = false
			break
		}
		if err := c.tag(ctx, r, img.ID, lacks); err != nil {
			return err
		}
	}
	if whole {
		return nil
	}
	err := c.sendWithout(ctx, r, file, r.has)
	if err != nil && ctx.Err() == nil && len(r.has.Blobs) > 0 {
		// Somebody may have removed in the meantime what was there.
		err = c.sendWithout(ctx, r, file, imagefile.Has{})
	}
	return err
}

// sendWithout sends an archive without what the node has.
func (c *Clusters) sendWithout(ctx context.Context, r *receiver, file *imagefile.File, has imagefile.Has) error {
	args, err := c.take(ctx, r)
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
	// Progress of several nodes at once would be for nobody.
	err = c.Provider.Exec(ctx, r.name, provider.Command{Args: args, Stdin: from, Stderr: io.Discard})
	from.CloseWithError(io.ErrClosedPipe)
	if failed := <-written; err == nil && failed != nil {
		return failed
	}
	return err
}
