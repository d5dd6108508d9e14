// Package logs collects logs and state of a cluster into a directory of this host.
package logs

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"golang.org/x/sync/errgroup"

	"github.com/berthrun/berth/internal/cluster/config"
	"github.com/berthrun/berth/internal/cluster/inventory"
	"github.com/berthrun/berth/internal/cluster/noderuntime"
	"github.com/berthrun/berth/internal/cluster/provider"
	"github.com/berthrun/berth/internal/cluster/redact"
	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/version"
)

// Collector collects the logs of clusters of one provider.
type Collector struct {
	Provider provider.Provider
	// Warn reports what a node or the provider could not deliver.
	Warn func(text string)
}

// Collect writes logs and state of a cluster into a directory, under the file names of kind's
// `export logs`: those of the provider, and a directory for each node. It also works for a cluster
// that is incomplete or does not answer: it writes what there is, and warns of the rest. The error
// is errs.NotFound for an unknown cluster, or that of files that cannot be written.
func (c Collector) Collect(ctx context.Context, name, dir string) error {
	all, err := inventory.Nodes(ctx, c.Provider, name)
	if err != nil {
		return err
	}
	failed := []error{
		c.save(filepath.Join(dir, c.Provider.Name()+"-info.txt"), func(w io.Writer) error { return c.Provider.Describe(ctx, "", w) }),
		c.save(filepath.Join(dir, "berth-version.txt"), func(w io.Writer) error {
			_, err := fmt.Fprintln(w, version.Version, version.Commit)
			return err
		}),
	}
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
	return ctx.Err()
}

// nodeLogs writes the files of one node. A node that does not run has only its log and what the
// provider reports of it.
func (c Collector) nodeLogs(ctx context.Context, n provider.Node, dir string) error {
	if err := makePrivate(dir); err != nil {
		return err
	}
	failed := []error{
		c.save(filepath.Join(dir, "serial.log"), func(w io.Writer) error { return c.Provider.Logs(ctx, n.Name, w) }),
		c.save(filepath.Join(dir, "inspect.json"), func(w io.Writer) error { return c.Provider.Describe(ctx, n.Name, w) }),
	}
	if !n.Running {
		return errors.Join(failed...)
	}
	if inventory.Role(n) == config.BalancerRole {
		return errors.Join(append(failed, c.runAll(ctx, n.Name, dir, balancerCommands())...)...)
	}
	runtime, _, err := noderuntime.Identify(ctx, c.Provider, n)
	if err != nil {
		said, _, _ := strings.Cut(err.Error(), "\n")
		c.Warn(fmt.Sprintf("cannot identify the container runtime of %s, so its state is missing: %s", n.Name, said))
	}
	commands := nodeCommands(runtime)
	if inventory.Role(n) == config.ControlPlane {
		maps.Copy(commands, clusterCommands())
	}
	failed = append(failed, c.runAll(ctx, n.Name, dir, commands)...)
	return errors.Join(append(failed, c.varLog(ctx, n.Name, dir))...)
}

// runAll writes the output of commands in a container. Each command has a time limit: a daemon of
// the node may not answer.
func (c Collector) runAll(ctx context.Context, name, dir string, commands map[string]string) []error {
	var failed []error
	for _, file := range slices.Sorted(maps.Keys(commands)) {
		failed = append(failed, c.save(filepath.Join(dir, file), func(w io.Writer) error {
			// Error messages go to the file, too.
			args := []string{"timeout", "60", "sh", "-c", commands[file]}
			both := &lockedWriter{to: w}
			return c.Provider.Exec(ctx, name, provider.Command{Args: args, Stdout: both, Stderr: both})
		}))
	}
	return failed
}

// makePrivate makes a directory, or an existing one, accessible to the calling user alone.
func makePrivate(dir string) error {
	if err := os.MkdirAll(dir, dirMode); err != nil {
		return err
	}
	return os.Chmod(dir, dirMode)
}

// lockedWriter serializes the writes of two writers.
type lockedWriter struct {
	mu sync.Mutex
	to io.Writer
}

func (w *lockedWriter) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.to.Write(p)
}

// varLog copies /var/log of a node, with the logs of pods. It leaves out the journal, which is
// there as text.
func (c Collector) varLog(ctx context.Context, node, dir string) error {
	if err := os.MkdirAll(dir, dirMode); err != nil {
		return err
	}
	// A log that grows while it is read is status 1.
	const pack = "tar --create --file=- --directory=/var/log --dereference --hard-dereference --exclude=./journal " +
		"--ignore-failed-read --warning=none . || [ $? -eq 1 ]"
	r, w := io.Pipe()
	packed := make(chan error, 1)
	go func() {
		err := c.Provider.Exec(ctx, node, provider.Command{Args: []string{"sh", "-c", pack}, Stdout: w, Raw: true})
		w.CloseWithError(err)
		packed <- err
	}()
	err := unpack(dir, r)
	_ = r.CloseWithError(err) // ends the writer
	if failed := <-packed; failed != nil {
		c.Warn(fmt.Sprintf("/var/log of %s is not whole: %s", node, errs.Message(failed)))
		return nil
	}
	return err
}

// Logs may have what other users must not read.
const (
	dirMode  = 0o700
	fileMode = 0o600
)

// save writes a file without the secrets that package redact knows. It keeps the output of a source
// that fails, and warns of the failure.
func (c Collector) save(file string, from func(io.Writer) error) (err error) {
	if err := os.MkdirAll(filepath.Dir(file), dirMode); err != nil {
		return err
	}
	f, err := os.OpenFile(file, os.O_CREATE|os.O_WRONLY|os.O_TRUNC, fileMode)
	if err != nil {
		return err
	}
	// An existing file may have another mode.
	if err := f.Chmod(fileMode); err != nil {
		return errors.Join(err, f.Close())
	}
	clean := redact.To(f)
	if failed := from(clean); failed != nil {
		said, _, _ := strings.Cut(failed.Error(), "\n")
		c.Warn(fmt.Sprintf("%s is not whole: %s", file, redact.Text(said)))
	}
	return errors.Join(clean.Close(), f.Close())
}
