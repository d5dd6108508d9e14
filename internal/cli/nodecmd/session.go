package nodecmd

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

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
	// retryFor bounds how long one task is tried again, unless told otherwise, gateFor how
	// long a runtime has to become healthy.
	retryFor = 2 * time.Minute
	gateFor  = time.Minute
	// lockWait is how long --wait waits for another apply.
	lockWait  = 30 * time.Minute
	lockPause = time.Second
	// packageWait is how long apply waits for the package manager, unless told otherwise.
	packageWait = 10 * time.Minute
)

// places are the flags that say what is worked on.
type places struct {
	file, root string
	// sha256 is the digest that the node file must have; empty for none.
	sha256 string
	// packageWait is how long another user of the package manager is waited for.
	packageWait time.Duration
	// retryFor is how long one task is tried again.
	retryFor time.Duration
	// taskFor is how long one task may take; 0 for what its kind says.
	taskFor time.Duration
}

func (p *places) register(cmd *cobra.Command, withFile bool) {
	p.packageWait, p.retryFor = packageWait, retryFor
	cmd.Flags().StringVar(&p.root, "root", "/", "root directory of the machine; another than / does not run: files, packages and links only")
	if withFile {
		cmd.Flags().StringVarP(&p.file, "file", "f", DefaultFile, "node file; - is standard input, https://…#sha256=… a server's; below --root when not given")
		cmd.Flags().StringVar(&p.sha256, "sha256", "", "digest that the node file must have; a server's file needs one")
	}
}

// session is one machine being worked on. Close it.
type session struct {
	host       *machine.Machine
	reconciler *reconciler.Reconciler
	report     *reporter
	lock       *sysfd.Lock
}

// open opens the machine, to be looked at.
func (p *places) open(cmd *cobra.Command) (*session, error) {
	if os.Geteuid() != 0 {
		return nil, fmt.Errorf("cannot work on the machine: only root may: %w", errs.Unsupported)
	}
	root, err := filepath.Abs(p.root)
	if err != nil {
		return nil, fmt.Errorf("cannot find root directory %s: %w", p.root, err)
	}
	p.root = root
	host, err := machine.New(root, machine.Options{
		Assets: func(files provision.Files) provision.Assets {
			return assets.New(files, reconciler.StateDir+"/assets")
		},
		PackageWait: p.packageWait,
		DigestFile:  reconciler.StateDir + "/digests",
	})
	if err != nil {
		return nil, err
	}
	s := &session{host: host, report: newReporter(cmd.ErrOrStderr())}
	s.reconciler, err = reconciler.New(reconciler.Config{
		Host: host, Kinds: kinds(), Report: s.report, Version: version.Version, RetryFor: p.retryFor, TaskFor: p.deadline, GateFor: gateFor,
		Wanted: func(ctx context.Context, entry int) (provision.Target, error) { return s.kept(ctx, entry) },
	})
	if err != nil {
		return nil, errors.Join(err, host.Close())
	}
	return s, nil
}

// deadline bounds the time of a task. That of packages begins when the package manager is free.
func (p *places) deadline(t provision.Task, usual time.Duration) time.Duration {
	if p.taskFor > 0 {
		usual = p.taskFor
	}
	if _, ok := t.(tasks.Packages); ok {
		usual += p.packageWait
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

// change opens the machine, to be changed: nobody else may at the same time. With wait
// another's change is waited for.
func (p *places) change(ctx context.Context, cmd *cobra.Command, wait bool) (*session, error) {
	if os.Geteuid() != 0 {
		return nil, fmt.Errorf("cannot change the machine: only root may: %w", errs.Unsupported)
	}
	lock, err := machine.Lock(p.root)
	deadline := time.Now().Add(lockWait)
	told := false
	for wait && errors.Is(err, errs.Unavailable) && time.Now().Before(deadline) {
		if !told {
			fmt.Fprintf(cmd.ErrOrStderr(), "waiting: %s\n", errs.Message(err))
			told = true
		}
		select {
		case <-ctx.Done():
			return nil, err
		case <-time.After(lockPause):
		}
		lock, err = machine.Lock(p.root)
	}
	if err != nil {
		return nil, err
	}
	s, err := p.open(cmd)
	if err != nil {
		return nil, errors.Join(err, lock.Remove())
	}
	s.lock = lock
	return s, nil
}

// close gives up what the session holds.
func (s *session) close() {
	if s.lock != nil {
		if err := s.host.KeepDigests(); err != nil {
			s.report.Note("digests", err.Error())
		}
		if err := s.lock.Remove(); err != nil {
			s.report.Note("lock", err.Error())
		}
	}
	s.report.end()
	s.host.Close()
}

// target reads the node file and what it makes of this machine. text is the file.
func (p *places) target(ctx context.Context, cmd *cobra.Command, s *session) (target provision.Target, text []byte, err error) {
	if p.root != "/" && !cmd.Flags().Changed("file") {
		p.file = filepath.Join(p.root, DefaultFile)
	}
	n, text, err := load(ctx, p.file, p.sha256, cmd.InOrStdin())
	if err != nil {
		return provision.Target{}, nil, err
	}
	target, err = s.build(ctx, n, p.onMachine())
	err = facts.CheckSources(n).Join(err)
	return target, text, nodefile.Locate(err, shownFile(p.file), text)
}

// build makes a target of a description that lies at file on the machine.
func (s *session) build(ctx context.Context, n *nodefile.Node, file string) (provision.Target, error) {
	berth, err := os.Executable()
	if err != nil {
		return provision.Target{}, fmt.Errorf("cannot find the running binary: %w", err)
	}
	facts, err := facts.Detect(ctx, s.host, n, berth, file)
	if err != nil {
		return provision.Target{}, err
	}
	return node.Build(n, facts)
}

// onMachine is where the node file lies as the machine sees it; empty when it does not.
func (p *places) onMachine() string {
	if p.file == "-" || remote(p.file) {
		return ""
	}
	file, err := filepath.Abs(p.file)
	if err != nil {
		return ""
	}
	if p.root == "/" {
		return file
	}
	if rest, ok := strings.CutPrefix(file, p.root+"/"); ok {
		return "/" + rest
	}
	return ""
}

// untilSignal ends the context at the first signal that asks us to end; what was begun
// is undone then. A second one ends the process.
func untilSignal(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, stop := signal.NotifyContext(ctx, syscall.SIGINT, syscall.SIGTERM)
	context.AfterFunc(ctx, stop)
	return ctx, stop
}
