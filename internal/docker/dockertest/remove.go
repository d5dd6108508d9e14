package dockertest

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"syscall"

	"github.com/moby/sys/mountinfo"

	"github.com/berthrun/berth/internal/require"
	"github.com/berthrun/berth/internal/sys/cgroup"
	"github.com/berthrun/berth/internal/sys/sysmount"
)

// remove ends the containers and the engine, and removes what they left on the host.
func (d *Daemon) remove() {
	ctx, stop := context.WithTimeout(context.Background(), require.Patience(patience))
	defer stop()
	if d.cgroup != "" {
		// An engine that stops them would wait for those that ignore SIGTERM.
		d.check(d.killContainers(ctx))
	}
	d.end(syscall.SIGTERM)
	d.check(d.killShims())
	if d.cgroup != "" {
		d.check(d.removeCgroup(ctx))
	}
	d.check(d.detachMounts())
	if d.t.Failed() {
		d.t.Logf("end of the Docker engine's log:\n%s", d.LogTail())
	}
	d.check(os.RemoveAll(d.dir))
	for _, file := range d.hostFiles {
		_ = os.Remove(file) // a directory with files of others stays
	}
}

// check reports an error and lets the removal go on.
func (d *Daemon) check(err error) {
	if err != nil {
		d.t.Errorf("cannot remove the Docker engine: %v", err)
	}
}

func (d *Daemon) killContainers(ctx context.Context) error {
	tree, err := cgroup.Find()
	if err != nil {
		return err
	}
	return tree.Paths(d.cgroup).Kill(ctx)
}

// removeCgroup also kills containers that a shim has started meanwhile.
func (d *Daemon) removeCgroup(ctx context.Context) error {
	tree, err := cgroup.Find()
	if err != nil {
		return err
	}
	paths := tree.Paths(d.cgroup)
	return errors.Join(paths.Kill(ctx), paths.Remove(ctx))
}

// killShims kills the processes whose command line names the engine's directory: shims and
// what they run. It looks again until none is left, because a shim starts processes.
func (d *Daemon) killShims() error {
	for {
		processes, err := filepath.Glob("/proc/[0-9]*")
		if err != nil {
			return err
		}
		found := false
		for _, dir := range processes {
			pid, err := strconv.Atoi(filepath.Base(dir))
			if err != nil || pid == os.Getpid() {
				continue
			}
			pidfd := d.openOwn(pid)
			if pidfd == nil {
				continue
			}
			found = true
			err = endProcess(pidfd)
			pidfd.Close()
			if err != nil {
				return err
			}
		}
		if !found {
			return nil
		}
	}
}

// detachMounts detaches what is mounted below the engine's directory, the newest mount first.
func (d *Daemon) detachMounts() error {
	mounts, err := mountinfo.GetMounts(mountinfo.PrefixFilter(d.dir))
	if err != nil {
		return err
	}
	var failed []error
	for i := range mounts {
		failed = append(failed, sysmount.Detach(mounts[len(mounts)-1-i].Mountpoint))
	}
	return errors.Join(failed...)
}
