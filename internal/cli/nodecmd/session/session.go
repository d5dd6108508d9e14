// Package session opens the machine that a command of `berth node` works on.
package session

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/berthrun/berth/internal/provision/node/facts"
	"github.com/berthrun/berth/internal/provision/preload"

	"github.com/spf13/cobra"

	"github.com/berthrun/berth/internal/cli/nodecmd/source"
	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/provision"
	"github.com/berthrun/berth/internal/provision/assets"
	"github.com/berthrun/berth/internal/provision/machine"
	"github.com/berthrun/berth/internal/provision/node"
	"github.com/berthrun/berth/internal/provision/node/handover"
	"github.com/berthrun/berth/internal/provision/node/nodefile"
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
	// lockWait is how long --wait waits for another apply.
	lockWait  = 30 * time.Minute
	lockPause = time.Second
	// DefaultPackageWait is by default how long apply waits for the package manager.
	DefaultPackageWait = 10 * time.Minute
)

// Flags are the flags that select the machine and the node file.
type Flags struct {
	File, Root string
	// SHA256 is the digest that the node file must have; empty for none.
	SHA256 string
	// PackageWait is how long to wait for another user of the package manager.
	PackageWait time.Duration
	// RetryFor is how long one task is retried.
	RetryFor time.Duration
	// TaskFor is how long one task may take; 0 for its kind's deadline.
	TaskFor time.Duration
}

// Register adds the flags, with withFile also those of the node file.
func (p *Flags) Register(cmd *cobra.Command, withFile bool) {
	p.PackageWait, p.RetryFor = DefaultPackageWait, DefaultRetryFor
	cmd.Flags().StringVar(&p.Root, "root", "/", "root directory of the machine; other than /, only files, packages and links")
	if withFile {
		cmd.Flags().StringVarP(&p.File, "file", "f", source.DefaultFile, "node file; - is standard input, https://…#sha256=… a server's; below --root when not given")
		cmd.Flags().StringVar(&p.SHA256, "sha256", "", "digest that the node file must have; a server's file needs one")
	}
}

// Session is one open machine. Close it.
type Session struct {
	Host       *machine.Machine
	Reconciler *reconciler.Reconciler
	Report     *Reporter
	lock       *sysfd.Lock
}

// Open opens the machine for reading.
func (p *Flags) Open(cmd *cobra.Command) (*Session, error) {
	if os.Geteuid() != 0 {
		return nil, fmt.Errorf("cannot work on the machine: this needs root: %w", errs.Unsupported)
	}
	root, err := filepath.Abs(p.Root)
	if err != nil {
		return nil, fmt.Errorf("cannot find root directory %s: %w", p.Root, err)
	}
	p.Root = root
	host, err := machine.New(root, machine.Options{
		Assets: func(files provision.Files) provision.Assets {
			return assets.New(files, reconciler.StateDir+"/assets")
		},
		PackageWait: p.PackageWait,
		DigestFile:  reconciler.StateDir + "/digests",
	})
	if err != nil {
		return nil, err
	}
	s := &Session{Host: host, Report: newReporter(cmd.ErrOrStderr())}
	s.Reconciler, err = reconciler.New(reconciler.Config{
		Host: host, Kinds: kinds(), Report: s.Report, Version: version.Version, RetryFor: p.RetryFor, TaskFor: p.deadline, GateFor: gateFor,
		Wanted: func(ctx context.Context, entry int) (provision.Target, error) { return s.Kept(ctx, entry) },
	})
	if err != nil {
		return nil, errors.Join(err, host.Close())
	}
	return s, nil
}

// deadline bounds the time of a task. That of packages begins when the package manager is free.
func (p *Flags) deadline(t provision.Task, usual time.Duration) time.Duration {
	if p.TaskFor > 0 {
		usual = p.TaskFor
	}
	if _, ok := t.(tasks.Packages); ok {
		usual += p.PackageWait
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

// Change opens the machine for changes, under a lock: one process at a time may change it.
// With wait it waits until another process has released the lock.
func (p *Flags) Change(ctx context.Context, cmd *cobra.Command, wait bool) (*Session, error) {
	if os.Geteuid() != 0 {
		return nil, fmt.Errorf("cannot change the machine: this needs root: %w", errs.Unsupported)
	}
	lock, err := machine.Lock(p.Root)
	deadline := time.Now().Add(lockWait)
	waitingShown := false
	for wait && errors.Is(err, errs.Unavailable) && time.Now().Before(deadline) {
		if !waitingShown {
			fmt.Fprintf(cmd.ErrOrStderr(), "waiting: %s\n", errs.Message(err))
			waitingShown = true
		}
		select {
		case <-ctx.Done():
			return nil, err
		case <-time.After(lockPause):
		}
		lock, err = machine.Lock(p.Root)
	}
	if err != nil {
		return nil, err
	}
	s, err := p.Open(cmd)
	if err != nil {
		return nil, errors.Join(err, lock.Remove())
	}
	s.lock = lock
	return s, nil
}

// Close releases the machine and its lock.
func (s *Session) Close() {
	if s.lock != nil {
		if err := s.Host.KeepDigests(); err != nil {
			s.Report.Note("digests", err.Error())
		}
		if err := s.lock.Remove(); err != nil {
			s.Report.Note("lock", err.Error())
		}
	}
	s.Report.End()
	s.Host.Close()
}

// Target reads the node file, and builds its target for this machine. text is the file.
func (p *Flags) Target(ctx context.Context, cmd *cobra.Command, s *Session) (target provision.Target, text []byte, err error) {
	if p.Root != "/" && !cmd.Flags().Changed("file") {
		p.File = filepath.Join(p.Root, source.DefaultFile)
	}
	n, text, err := source.Load(ctx, p.File, p.SHA256, cmd.InOrStdin())
	if err != nil {
		return provision.Target{}, nil, err
	}
	target, err = s.build(ctx, n, p.pathOnMachine())
	err = facts.CheckSources(n).Join(err)
	return target, text, nodefile.Locate(err, source.Shown(p.File), text)
}

// build builds the target of a node file whose path on the machine is file.
func (s *Session) build(ctx context.Context, n *nodefile.Node, file string) (provision.Target, error) {
	berth, err := os.Executable()
	if err != nil {
		return provision.Target{}, fmt.Errorf("cannot find the running binary: %w", err)
	}
	facts, err := facts.Detect(ctx, s.Host, n, berth, file)
	if err != nil {
		return provision.Target{}, err
	}
	return node.Build(n, facts)
}

// pathOnMachine is the node file's path on the machine; empty if it is not on the machine.
func (p *Flags) pathOnMachine() string {
	if p.File == "-" || source.IsRemote(p.File) {
		return ""
	}
	file, err := filepath.Abs(p.File)
	if err != nil {
		return ""
	}
	if p.Root == "/" {
		return file
	}
	if rest, ok := strings.CutPrefix(file, p.Root+"/"); ok {
		return "/" + rest
	}
	return ""
}

// UntilSignal ends the context at the first SIGINT or SIGTERM; the command then undoes what it
// began. A second signal ends the process.
func UntilSignal(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, stop := signal.NotifyContext(ctx, syscall.SIGINT, syscall.SIGTERM)
	context.AfterFunc(ctx, stop)
	return ctx, stop
}

// Kept is the target of an entry's node file for the machine as it is now.
func (s *Session) Kept(ctx context.Context, number int) (provision.Target, error) {
	wish := s.Reconciler.Journal().NodeFile(number)
	if wish == "" {
		return provision.Target{}, fmt.Errorf("the history has no node file of entry %d: %w", number, errs.NotFound)
	}
	r, err := s.Reconciler.Journal().Content(wish)
	if err != nil {
		return provision.Target{}, err
	}
	defer r.Close()
	text, err := io.ReadAll(io.LimitReader(r, source.MaxSize))
	if err != nil {
		return provision.Target{}, fmt.Errorf("cannot read the node file of entry %d: %w", number, err)
	}
	name := fmt.Sprintf("node file of entry %d", number)
	wanted, err := nodefile.Load(name, text)
	if err != nil {
		return provision.Target{}, err
	}
	target, err := s.build(ctx, wanted, source.DefaultFile)
	return target, nodefile.Locate(err, name, text)
}
