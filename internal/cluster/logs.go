package cluster

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sync/errgroup"

	"github.com/berthrun/berth/internal/cluster/provider"
)

// Logs writes what helps to find a fault into a directory, as kind's `export logs` does: of
// the engine, and in a directory for each node what is known of it. A node that is not up
// has less; what could not be had is joined into the error, and all else is there.
func (c *Clusters) Logs(ctx context.Context, name, dir string) error {
	all, err := c.Nodes(ctx, name)
	if err != nil {
		return err
	}
	failed := []error{c.save(filepath.Join(dir, c.Engine.Name()+"-info.txt"), func(w io.Writer) error { return c.Engine.Describe(ctx, "", w) })}
	var group errgroup.Group
	of := make([]error, len(all))
	for i, n := range all {
		group.Go(func() error {
			of[i] = c.nodeLogs(ctx, n, filepath.Join(dir, n.Name))
			return nil
		})
	}
	_ = group.Wait() // the errors are in of
	if err := errors.Join(append(failed, of...)...); err != nil {
		return fmt.Errorf("cannot export all logs of %s: %w", name, err)
	}
	return nil
}

// nodeLogs are files of one node. Those that a command in the node makes have its name.
func (c *Clusters) nodeLogs(ctx context.Context, n provider.Node, dir string) error {
	failed := []error{
		c.save(filepath.Join(dir, "serial.log"), func(w io.Writer) error { return c.Engine.Logs(ctx, n.Name, w) }),
		c.save(filepath.Join(dir, "inspect.json"), func(w io.Writer) error { return c.Engine.Describe(ctx, n.Name, w) }),
	}
	if !n.Running {
		return errors.Join(failed...)
	}
	for file, command := range map[string]string{
		"kubernetes-version.txt": "cat /usr/share/berth/kubernetes-version",
		"journal.log":            "journalctl --no-pager",
		"kubelet.log":            "journalctl --no-pager --unit=kubelet.service",
		"berth.log":              "journalctl --no-pager --unit=berth.service --unit=berth-supervisor.service",
		"berth-info.txt":         "berth info",
		"images.log":             "berth image ls",
		"pods.log":               "berth pod ls",
		"jobs.log":               "berth jobs",
		"network.txt":            "ip address; ip route; ip -6 route; nft list ruleset",
	} {
		failed = append(failed, c.save(filepath.Join(dir, file), func(w io.Writer) error {
			return c.Engine.Exec(ctx, n.Name, provider.Command{Args: []string{"sh", "-c", command}, Stdout: w, Stderr: w})
		}))
	}
	// A tree of links and files of pods: one archive, so that nothing of a node is unpacked here.
	failed = append(failed, c.save(filepath.Join(dir, "var-log.tar"), func(w io.Writer) error {
		args := strings.Fields("tar --create --file=- --directory=/var/log --exclude=./journal --ignore-failed-read --warning=no-file-changed .")
		return c.Engine.Exec(ctx, n.Name, provider.Command{Args: args, Stdout: w})
	}))
	return errors.Join(failed...)
}

// save writes a file, also what a source that fails has written.
func (c *Clusters) save(file string, from func(io.Writer) error) (err error) {
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		return err
	}
	f, err := os.Create(file)
	if err != nil {
		return err
	}
	err = from(f)
	return errors.Join(err, f.Close())
}
