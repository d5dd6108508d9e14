package cluster

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"golang.org/x/sync/errgroup"

	"github.com/berthrun/berth/internal/cluster/config"
	"github.com/berthrun/berth/internal/cluster/provider"
	"github.com/berthrun/berth/internal/errs"
)

// LoadOptions say what is loaded where.
type LoadOptions struct {
	// Images are those of the engine, by name; Archives are files as docker or OCI tools
	// write them.
	Images, Archives []string
	// Nodes are those that get them; none is all.
	Nodes []string
}

// Load puts images into the nodes of a cluster, all at once.
func (c *Clusters) Load(ctx context.Context, name string, o LoadOptions) error {
	all, err := c.Nodes(ctx, name)
	if err != nil {
		return err
	}
	targets, err := receivers(all, o.Nodes)
	if err != nil {
		return err
	}
	for _, archive := range o.Archives {
		if err := c.loadFile(ctx, targets, archive); err != nil {
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
		if Role(n) != config.BalancerRole && (len(asked) == 0 || slices.Contains(asked, n.Name)) {
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
// each node otherwise.
func (c *Clusters) loadImages(ctx context.Context, nodes []provider.Node, images []string) error {
	var missing []error
	for _, image := range images {
		id, err := c.Engine.Present(ctx, image)
		switch {
		case err != nil:
			return err
		case id == "":
			missing = append(missing, fmt.Errorf("image: %q not present locally; pull or build it with %s first: %w", image, c.Engine.Name(), errs.NotFound))
		}
	}
	if len(missing) > 0 {
		return errors.Join(missing...)
	}
	file, err := newSpool()
	if err != nil {
		return err
	}
	defer file.Close()
	err = c.step("Saving "+strings.Join(images, ", "), func() error { return file.why(c.Engine.Save(ctx, file, images...)) })
	if err != nil {
		return err
	}
	return c.loadFile(ctx, nodes, file.path())
}

func (c *Clusters) loadFile(ctx context.Context, nodes []provider.Node, archive string) error {
	return c.step(fmt.Sprintf("Loading into %d nodes", len(nodes)), func() error {
		group, ctx := errgroup.WithContext(ctx)
		for _, n := range nodes {
			group.Go(func() error {
				file, err := os.Open(archive)
				if err != nil {
					return err
				}
				defer file.Close()
				// Progress of several nodes at once would be for nobody.
				return c.Engine.Exec(ctx, n.Name, provider.Command{Args: []string{"berth", "image", "import", "-"}, Stdin: file, Stderr: io.Discard})
			})
		}
		return group.Wait()
	})
}
