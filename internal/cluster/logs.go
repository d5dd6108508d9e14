package cluster

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
	"github.com/berthrun/berth/internal/cluster/innode"
	"github.com/berthrun/berth/internal/cluster/inventory"
	"github.com/berthrun/berth/internal/cluster/kubeadm"
	"github.com/berthrun/berth/internal/cluster/nodeimage"
	"github.com/berthrun/berth/internal/cluster/noderuntime"
	"github.com/berthrun/berth/internal/cluster/provider"
	"github.com/berthrun/berth/internal/cluster/redact"
	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/version"
)

// Logs writes what helps to find a fault into a directory, under the names that kind's
// `export logs` has: of the engine, and in a directory for each node what is known of it.
// Of a cluster that is half made or sick all is written that there is; what a node could
// not tell is warned of. The error is of files that cannot be written.
func (c *Clusters) Logs(ctx context.Context, name, dir string) error {
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

// nodeCommands are the commands whose output is a file of a node. Each ends: a node that is sick
// may have a daemon that answers nobody.
func nodeCommands(r noderuntime.Runtime) map[string]string {
	all := map[string]string{
		"journal.log": "journalctl --no-pager",
		"kubelet.log": "journalctl --no-pager --unit=kubelet.service",
		"units.txt":   "systemctl --no-pager --all --failed; systemctl --no-pager list-jobs",
		"network.txt": "ip address; ip route; ip -6 route; ip rule; nft list ruleset",
		"disk.txt":    "df -h /var /run; df -i /var /run",
	}
	switch r.Name {
	case "berth":
		maps.Copy(all, map[string]string{
			"kubernetes-version.txt": "cat " + nodeimage.VersionFile,
			"berth.log":              "journalctl --no-pager --unit=berth.service --unit=berth-supervisor.service",
			"berth-info.txt":         "berth info",
			"images.log":             "berth image ls",
			"pods.log":               "berth pod ls",
			"jobs.log":               "berth jobs",
		})
	case "containerd":
		maps.Copy(all, map[string]string{
			"kubernetes-version.txt": "cat " + noderuntime.KindVersionFile,
			"containerd.log":         "journalctl --no-pager --unit=containerd.service",
			"containerd-config.toml": "containerd config dump",
			"images.log":             "ctr --namespace=k8s.io images list",
			"containers.log":         "ctr --namespace=k8s.io containers list; ctr --namespace=k8s.io tasks list",
		})
	}
	return all
}

// balancerLogs are the files of a load balancer.
func balancerLogs() map[string]string {
	return map[string]string{"haproxy.cfg": "cat " + innode.HAProxyFile, "network.txt": "ip address; ip route; ip -6 route"}
}

// clusterCommands are those of the first control plane that has a cluster.
func clusterCommands() map[string]string {
	const kubectl = "kubectl --kubeconfig=" + kubeadm.AdminFile + " --request-timeout=20s "
	return map[string]string{
		"cluster-nodes.txt":  kubectl + "get nodes --output=wide; " + kubectl + "describe nodes",
		"cluster-pods.txt":   kubectl + "get pods,deployments,daemonsets,services,persistentvolumeclaims,persistentvolumes --all-namespaces --output=wide",
		"cluster-events.txt": kubectl + "get events --all-namespaces --sort-by=.metadata.creationTimestamp",
	}
}

// nodeLogs are files of one node. One that does not run has its log and what the engine says
// of it.
func (c *Clusters) nodeLogs(ctx context.Context, n provider.Node, dir string) error {
	if err := private(dir); err != nil {
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
		return errors.Join(append(failed, c.told(ctx, n.Name, dir, balancerLogs())...)...)
	}
	runtime, _, err := noderuntime.Identify(ctx, c.Provider, n)
	if err != nil {
		said, _, _ := strings.Cut(err.Error(), "\n")
		c.Warn(fmt.Sprintf("which container runtime %s has cannot be told, and nothing is asked of it: %s", n.Name, said))
	}
	commands := nodeCommands(runtime)
	if inventory.Role(n) == config.ControlPlane {
		maps.Copy(commands, clusterCommands())
	}
	failed = append(failed, c.told(ctx, n.Name, dir, commands)...)
	return errors.Join(append(failed, c.varLog(ctx, n.Name, dir))...)
}

// told writes what commands in a container say.
func (c *Clusters) told(ctx context.Context, name, dir string, commands map[string]string) []error {
	var failed []error
	for _, file := range slices.Sorted(maps.Keys(commands)) {
		failed = append(failed, c.save(filepath.Join(dir, file), func(w io.Writer) error {
			// Its own words are in the file.
			args := []string{"timeout", "60", "sh", "-c", commands[file]}
			both := &together{to: w}
			return c.Provider.Exec(ctx, name, provider.Command{Args: args, Stdout: both, Stderr: both})
		}))
	}
	return failed
}

// private is a directory for whoever exports, also one that was there.
func private(dir string) error {
	if err := os.MkdirAll(dir, logsDirMode); err != nil {
		return err
	}
	return os.Chmod(dir, logsDirMode)
}

// together lets two write to one.
type together struct {
	mu sync.Mutex
	to io.Writer
}

func (t *together) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.to.Write(p)
}

// varLog copies /var/log of a node, of pods above all. The journal is there as text.
func (c *Clusters) varLog(ctx context.Context, node, dir string) error {
	if err := os.MkdirAll(dir, logsDirMode); err != nil {
		return err
	}
	// A log that grows while it is read is status 1.
	const pack = "tar --create --file=- --directory=/var/log --dereference --hard-dereference --exclude=./journal " +
		"--ignore-failed-read --warning=none . || [ $? -eq 1 ]"
	r, w := io.Pipe()
	packed := make(chan error, 1)
	go func() {
		err := c.Provider.Exec(ctx, node, provider.Command{Args: []string{"sh", "-c", pack}, Stdout: w})
		w.CloseWithError(err)
		packed <- err
	}()
	err := unpack(dir, r)
	_ = r.CloseWithError(err) // so that nobody writes on
	if failed := <-packed; failed != nil {
		c.Warn(fmt.Sprintf("/var/log of %s is not whole: %s", node, errs.Message(failed)))
		return nil
	}
	return err
}

// Logs are for whoever exports them: engines, nodes and pods tell more than others may know.
const (
	logsDirMode  = 0o700
	logsFileMode = 0o600
)

// save writes a file without the secrets that are known by their form, also what a source that
// fails has written; its failure is warned of.
func (c *Clusters) save(file string, from func(io.Writer) error) (err error) {
	if err := os.MkdirAll(filepath.Dir(file), logsDirMode); err != nil {
		return err
	}
	f, err := os.OpenFile(file, os.O_CREATE|os.O_WRONLY|os.O_TRUNC, logsFileMode)
	if err != nil {
		return err
	}
	// One that was there may have been for others, too.
	if err := f.Chmod(logsFileMode); err != nil {
		return errors.Join(err, f.Close())
	}
	clean := redact.To(f)
	if failed := from(clean); failed != nil {
		said, _, _ := strings.Cut(failed.Error(), "\n")
		c.Warn(fmt.Sprintf("%s is not whole: %s", file, redact.Text(said)))
	}
	return errors.Join(clean.Close(), f.Close())
}
