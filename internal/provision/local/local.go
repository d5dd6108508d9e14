// Package local opens a machine for the operations of `berth node`: with the objects of all tasks, the history, and
// a lock against other processes that change it.
package local

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"time"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/provision"
	"github.com/berthrun/berth/internal/provision/assets"
	"github.com/berthrun/berth/internal/provision/machine"
	"github.com/berthrun/berth/internal/provision/node"
	"github.com/berthrun/berth/internal/provision/node/facts"
	"github.com/berthrun/berth/internal/provision/node/handover"
	"github.com/berthrun/berth/internal/provision/node/nodefile"
	"github.com/berthrun/berth/internal/provision/preload"
	"github.com/berthrun/berth/internal/provision/reconciler"
	"github.com/berthrun/berth/internal/provision/tasks"
	"github.com/berthrun/berth/internal/sys/sysfd"
	"github.com/berthrun/berth/internal/version"
)

const (
	// DefaultRetryFor bounds by default how long one task is retried, gateFor how long a
	// runtime has to become healthy.
	DefaultRetryFor = 2 * time.Minute
	gateFor         = time.Minute
	// lockWait bounds the wait for another process that changes the machine.
	lockWait  = 30 * time.Minute
	lockPause = time.Second
	// DefaultPackageWait is by default how long an apply waits for the package manager.
	DefaultPackageWait = 10 * time.Minute
)

// Options say which machine is opened, and how long its tasks may take.
type Options struct {
	// Root is the root directory of the machine. With another than /, only files, packages and links change.
	Root string
	// Berth is the path of the program berth, which a node with berth as its runtime gets.
	Berth string
	// PackageWait is how long to wait for another user of the package manager.
	PackageWait time.Duration
	// RetryFor is how long one task is retried.
	RetryFor time.Duration
	// TaskFor is how long one task may take; 0 for its kind's deadline.
	TaskFor time.Duration
	// Report receives progress; nil for none.
	Report reconciler.Report
}

// Machine is an open machine. Close it.
type Machine struct {
	Host       *machine.Machine
	Reconciler *reconciler.Reconciler
	berth      string
	lock       *sysfd.Lock
}

// Open opens a machine for reading.
func Open(o Options) (*Machine, error) {
	if os.Geteuid() != 0 {
		return nil, fmt.Errorf("cannot work on the machine: this needs root: %w", errs.Unsupported)
	}
	root, err := filepath.Abs(o.Root)
	if err != nil {
		return nil, fmt.Errorf("cannot find root directory %s: %w", o.Root, err)
	}
	host, err := machine.New(root, machine.Options{
		Assets: func(files provision.Files) provision.Assets {
			return assets.New(files, reconciler.StateDir+"/assets")
		},
		PackageWait: o.PackageWait,
		DigestFile:  reconciler.StateDir + "/digests",
	})
	if err != nil {
		return nil, err
	}
	m := &Machine{Host: host, berth: o.Berth}
	m.Reconciler, err = reconciler.New(reconciler.Config{
		Host: host, Kinds: kinds(), Report: o.Report, Version: version.Version, RetryFor: o.RetryFor, TaskFor: o.deadline, GateFor: gateFor,
		Wanted: func(ctx context.Context, entry int) (provision.Target, error) { return m.Kept(ctx, entry) },
	})
	if err != nil {
		return nil, errors.Join(err, host.Close())
	}
	return m, nil
}

// deadline bounds the time of a task. That of packages begins when the package manager is free.
func (o Options) deadline(t provision.Task, usual time.Duration) time.Duration {
	if o.TaskFor > 0 {
		usual = o.TaskFor
	}
	if _, ok := t.(tasks.Packages); ok {
		usual += o.PackageWait
	}
	return usual
}

// kinds are the objects of all tasks that a node has.
func kinds() map[string]provision.Kind {
	all := tasks.Kinds()
	maps.Copy(all, handover.Kinds())
	maps.Copy(all, preload.Kinds())
	return all
}

// Change opens a machine for changes, under a lock: one process at a time may change it. If another process has the
// lock, Change calls waiting once with the reason and waits, at most half an hour; without waiting it returns the
// reason at once, of kind Unavailable.
func Change(ctx context.Context, o Options, waiting func(reason error)) (*Machine, error) {
	if os.Geteuid() != 0 {
		return nil, fmt.Errorf("cannot change the machine: this needs root: %w", errs.Unsupported)
	}
	lock, err := machine.Lock(o.Root)
	deadline := time.Now().Add(lockWait)
	for shown := false; waiting != nil && errors.Is(err, errs.Unavailable) && time.Now().Before(deadline); shown = true {
		if !shown {
			waiting(err)
		}
		select {
		case <-ctx.Done():
			return nil, err
		case <-time.After(lockPause):
		}
		lock, err = machine.Lock(o.Root)
	}
	if err != nil {
		return nil, err
	}
	m, err := Open(o)
	if err != nil {
		return nil, errors.Join(err, lock.Remove())
	}
	m.lock = lock
	return m, nil
}

// Close releases the machine and its lock. Its error says what is lost by that: nothing that an apply has done.
func (m *Machine) Close() error {
	var errList []error
	if m.lock != nil {
		errList = append(errList, m.Host.KeepDigests(), m.lock.Remove())
	}
	return errors.Join(append(errList, m.Host.Close())...)
}

// Target builds the target of a node file, and checks the sources of its assets. text is the file, shown its name in
// errors, which name the line of a fault. file is its path on the machine, "" for one that is not there.
func (m *Machine) Target(ctx context.Context, n *nodefile.Node, text []byte, shown, file string) (provision.Target, error) {
	target, err := m.build(ctx, n, file)
	return target, nodefile.Locate(facts.CheckSources(n).Join(err), shown, text)
}

func (m *Machine) build(ctx context.Context, n *nodefile.Node, file string) (provision.Target, error) {
	found, err := facts.Detect(ctx, m.Host, n, m.berth, file)
	if err != nil {
		return provision.Target{}, err
	}
	return node.Build(n, found)
}

// Kept is the target of the node file of an entry in the history, for the machine as it is now.
func (m *Machine) Kept(ctx context.Context, number int) (provision.Target, error) {
	wish := m.Reconciler.Journal().NodeFile(number)
	if wish == "" {
		return provision.Target{}, fmt.Errorf("the history has no node file of entry %d: %w", number, errs.NotFound)
	}
	r, err := m.Reconciler.Journal().Content(wish)
	if err != nil {
		return provision.Target{}, err
	}
	defer r.Close()
	text, err := io.ReadAll(io.LimitReader(r, nodefile.MaxSize))
	if err != nil {
		return provision.Target{}, fmt.Errorf("cannot read the node file of entry %d: %w", number, err)
	}
	name := fmt.Sprintf("node file of entry %d", number)
	wanted, err := nodefile.Load(name, text)
	if err != nil {
		return provision.Target{}, err
	}
	target, err := m.build(ctx, wanted, nodefile.DefaultFile)
	return target, nodefile.Locate(err, name, text)
}
