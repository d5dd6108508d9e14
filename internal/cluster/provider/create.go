package provider

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/netip"
	"slices"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/berthrun/berth/internal/cluster/plan"
	"github.com/berthrun/berth/internal/cluster/provider/command"
	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/undo"
)

// Create creates containers. Everything that an attempt creates has its label, so that an undo need
// not know how far it came.
func (e *CLI) Create(ctx context.Context, r Request) (err error) {
	if err := e.unused(ctx, r.Specs); err != nil {
		return err
	}
	if err := e.makeModules(r.Specs); err != nil {
		return err
	}
	var chosen choices
	addresses, err := e.addresses(ctx, r.Network, r.Specs, &chosen)
	if err != nil {
		return err
	}
	attempt := rand.Text()
	var u undo.Stack
	defer u.OnError(ctx, &err)
	if !r.Retain {
		u.Push("make "+e.name+" containers", func(ctx context.Context) error { return e.purge(ctx, LabelAttempt+"="+attempt) })
	}
	group, ctx := errgroup.WithContext(ctx)
	if e.serial {
		group.SetLimit(1)
	}
	for i, spec := range r.Specs {
		group.Go(func() error {
			if ctx.Err() != nil {
				return context.Cause(ctx)
			}
			if err := e.createOne(ctx, spec, r, addresses[i], &chosen, attempt); err != nil {
				return fmt.Errorf("cannot create %s: %w", spec.Name, err)
			}
			if r.Done != nil {
				r.Done(spec.Name)
			}
			return nil
		})
	}
	return group.Wait()
}

// makeModules creates the directory of the kernel's modules on a host that has none: docker would
// create it for a mount, podman refuses to. The modules that nodes need may be built in.
func (e *CLI) makeModules(specs []Spec) error {
	const modules = "/lib/modules"
	mounted := slices.ContainsFunc(specs, func(s Spec) bool {
		return slices.ContainsFunc(s.Mounts, func(m plan.Mount) bool { return m.Source == modules })
	})
	if !mounted || e.facts.Remote || e.mkdir == nil {
		return nil
	}
	if _, err := fs.Stat(e.host, strings.TrimPrefix(modules, "/")); !errors.Is(err, fs.ErrNotExist) {
		return nil // it exists, or the engine reports the error
	}
	if err := e.mkdir(modules); err != nil {
		return fmt.Errorf("nodes mount %s, which this host does not have and which cannot be made; say as root: mkdir -p %[1]s: %w", modules, err)
	}
	return nil
}

// createOne creates a container with its volumes, and waits for the systemd of a node.
func (e *CLI) createOne(ctx context.Context, spec Spec, r Request, addresses []netip.Addr, chosen *choices, attempt string) error {
	volumes, err := e.lacking(ctx, spec)
	if err != nil {
		return err
	}
	for _, volume := range volumes {
		if err := e.createVolume(ctx, spec, volume, attempt); err != nil {
			return err
		}
	}
	if err := e.start(ctx, spec, r, addresses, chosen, attempt); err != nil {
		return e.explain(err, spec, r.Network.Name)
	}
	if spec.Command != nil {
		return nil
	}
	wait := r.Wait
	if wait == 0 {
		wait = DefaultWait
	}
	return e.ready(ctx, spec.Name, "", wait)
}

// start creates and starts a container at its addresses, or at others when another process has chosen
// the same at the same time and got them.
func (e *CLI) start(ctx context.Context, spec Spec, r Request, addresses []netip.Addr, chosen *choices, attempt string) error {
	for try := 1; ; try++ {
		args, err := e.runArgs(r, spec, addresses, attempt)
		if err != nil {
			return err
		}
		refused := e.launch(ctx, args, secretFile(spec.Env))
		if len(addresses) == 0 || try == addressTries || !addressTaken(refused) {
			return refused
		}
		// Most engines leave the container that they could not start.
		if err := e.remove(ctx, e.names, spec.Name); err != nil {
			return errors.Join(refused, err)
		}
		others, err := e.addresses(ctx, r.Network, []Spec{spec}, chosen)
		if err != nil {
			return errors.Join(refused, err)
		}
		addresses = others[0]
	}
}

// runTimeout bounds the creation of a container, which takes a second or two.
const runTimeout = 2 * time.Minute

// launch creates and starts a container. It does not end with ctx: a podman that is killed while it
// sets up the network never frees the container's addresses.
func (e *CLI) launch(ctx context.Context, args []string, stdin io.Reader) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), runTimeout)
	defer cancel()
	return e.run.Run(ctx, command.Call{Args: args, Stdin: stdin})
}

// lacking are the volumes of a container to create: all but those that a Release left for it.
func (e *CLI) lacking(ctx context.Context, spec Spec) ([]plan.Volume, error) {
	if !spec.Reuse {
		return spec.Volumes, nil
	}
	left, err := e.volumesOf(ctx, spec.Name)
	if err != nil {
		return nil, err
	}
	return slices.DeleteFunc(slices.Clone(spec.Volumes), func(v plan.Volume) bool { return slices.Contains(left, v.Name) }), nil
}

// volumesOf are the names of the volumes that belong to a container.
func (e *CLI) volumesOf(ctx context.Context, name string) ([]string, error) {
	found, err := command.Words(ctx, e.run, "volume", "ls", "-q", "--filter", "label="+LabelNode+"="+name)
	if err != nil {
		return nil, fmt.Errorf("cannot list volumes of %s: %w", name, err)
	}
	return found, nil
}

// createVolume creates a volume with labels of its container, cluster and attempt.
func (e *CLI) createVolume(ctx context.Context, spec Spec, volume plan.Volume, attempt string) error {
	args := []string{
		"volume", "create",
		"--label", plan.LabelCluster + "=" + spec.Labels[plan.LabelCluster],
		"--label", LabelNode + "=" + spec.Name,
		"--label", LabelAttempt + "=" + attempt,
		volume.Name,
	}
	if _, err := command.Output(ctx, e.run, args...); err != nil {
		return fmt.Errorf("cannot make the volume %s: %w", volume.Name, err)
	}
	return nil
}

// unused checks that names are free. One of berth's volumes without its container is left from a
// killed create or delete, unless the container should reuse it.
func (e *CLI) unused(ctx context.Context, specs []Spec) error {
	names, err := e.names(ctx)
	if err != nil {
		return err
	}
	var taken []string
	for _, spec := range specs {
		if slices.Contains(names, spec.Name) {
			taken = append(taken, spec.Name)
		}
	}
	if len(taken) > 0 {
		return fmt.Errorf("container(s) called %s exist already in %s; choose another name for the cluster, or delete them: %w", strings.Join(taken, ", "), e.name, errs.Exists)
	}
	volumes, err := command.Words(ctx, e.run, "volume", "ls", "-q")
	if err != nil {
		return fmt.Errorf("cannot list volumes of %s: %w", e.name, err)
	}
	for _, spec := range specs {
		for _, v := range spec.Volumes {
			if !slices.Contains(volumes, v.Name) {
				continue
			}
			ours, err := e.volumesOf(ctx, spec.Name)
			if err != nil {
				return err
			}
			if !slices.Contains(ours, v.Name) {
				return fmt.Errorf("a volume called %s exists already in %s, and is not of berth; choose another name for the cluster, or %s volume rm %s: %w", v.Name, e.name, e.name, v.Name, errs.Exists)
			}
			if spec.Reuse {
				continue
			}
			if _, err := command.Output(ctx, e.run, "volume", "rm", v.Name); errs.IgnoreNotFound(err) != nil {
				return fmt.Errorf("cannot remove the volume %s that was left of an earlier node: %w", v.Name, err)
			}
		}
	}
	return nil
}

// explain names the field to change if the engine's error has only a port or a path. It also
// explains addresses that are reserved without a container.
func (e *CLI) explain(err error, spec Spec, network string) error {
	for _, m := range spec.Mounts {
		if command.Says(err, m.Source) && command.Says(err, "no such file or directory", "does not exist") {
			return fmt.Errorf("%s, which extraMounts of %s has as hostPath, does not exist on this host; make it, or name another: %w", m.Source, spec.Name, err)
		}
	}
	if command.Says(err, "is not available in range set") {
		return fmt.Errorf("no address of %d could be had; CNI holds those of containers that are gone where it could not undo what it had begun: "+
			"see the files with the names of addresses in /var/lib/cni/networks/%s, which have the IDs of containers: %w", addressTries, network, err)
	}
	if !command.Says(err, "address already in use", "port is already allocated", "address already", "bind for") {
		return err
	}
	var fields []string
	for _, p := range spec.Ports {
		if p.Field != "" && command.Says(err, fmt.Sprintf(":%d", p.Host)) {
			fields = append(fields, p.Field)
		}
	}
	if len(fields) == 0 {
		return err
	}
	return fmt.Errorf("a port of the host is in use; choose another in %s: %w", strings.Join(fields, ", "), err)
}
