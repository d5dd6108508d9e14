// Package session opens the machine that a command of `berth node` works on.
package session

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/berthrun/berth/internal/cli/interrupt"
	"github.com/berthrun/berth/internal/cli/nodecmd/source"
	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/provision"
	"github.com/berthrun/berth/internal/provision/local"
	"github.com/berthrun/berth/internal/provision/node/nodefile"
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
	p.PackageWait, p.RetryFor = local.DefaultPackageWait, local.DefaultRetryFor
	cmd.Flags().StringVar(&p.Root, "root", "/", "root directory of the machine; other than /, only files, packages and links")
	if withFile {
		cmd.Flags().StringVarP(&p.File, "file", "f", nodefile.DefaultFile, "node file; - is standard input, https://…#sha256=… a server's; below --root when not given")
		cmd.Flags().StringVar(&p.SHA256, "sha256", "", "digest that the node file must have; a server's file needs one")
	}
}

// Session is one open machine, and the progress of what is done on it. Close it.
type Session struct {
	*local.Machine
	Report *Reporter
}

// Open opens the machine for reading.
func (p *Flags) Open(cmd *cobra.Command) (*Session, error) {
	return p.open(cmd, local.Open)
}

// Change opens the machine for changes, under a lock: one process at a time may change it.
// With wait it waits until another process has released the lock.
func (p *Flags) Change(ctx context.Context, cmd *cobra.Command, wait bool) (*Session, error) {
	var waiting func(error)
	if wait {
		waiting = func(reason error) { fmt.Fprintf(cmd.ErrOrStderr(), "waiting: %s\n", errs.Message(reason)) }
	}
	return p.open(cmd, func(o local.Options) (*local.Machine, error) { return local.Change(ctx, o, waiting) })
}

func (p *Flags) open(cmd *cobra.Command, open func(local.Options) (*local.Machine, error)) (*Session, error) {
	root, err := filepath.Abs(p.Root)
	if err != nil {
		return nil, fmt.Errorf("cannot find root directory %s: %w", p.Root, err)
	}
	berth, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("cannot find the running binary: %w", err)
	}
	p.Root = root
	report := newReporter(cmd.ErrOrStderr())
	m, err := open(local.Options{Root: root, Berth: berth, PackageWait: p.PackageWait, RetryFor: p.RetryFor, TaskFor: p.TaskFor, Report: report})
	if err != nil {
		return nil, err
	}
	return &Session{m, report}, nil
}

// Close releases the machine and its lock.
func (s *Session) Close() {
	if err := s.Machine.Close(); err != nil {
		s.Report.Note("close", err.Error())
	}
	s.Report.End()
}

// Target reads the node file, and builds its target for this machine. text is the file.
func (p *Flags) Target(ctx context.Context, cmd *cobra.Command, s *Session) (target provision.Target, text []byte, err error) {
	if p.Root != "/" && !cmd.Flags().Changed("file") {
		p.File = filepath.Join(p.Root, nodefile.DefaultFile)
	}
	n, text, err := source.Load(ctx, p.File, p.SHA256, cmd.InOrStdin())
	if err != nil {
		return provision.Target{}, nil, err
	}
	target, err = s.Machine.Target(ctx, n, text, source.Shown(p.File), p.pathOnMachine())
	return target, text, err
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

// Interruptible calls do with a context that a signal, or the end of the connection to the machine, ends; do then undoes what
// it began.
func Interruptible(cmd *cobra.Command, do func(ctx context.Context) error) error {
	return interrupt.Run(cmd.Context(), func(text string) { fmt.Fprintln(cmd.ErrOrStderr(), text) }, do)
}
