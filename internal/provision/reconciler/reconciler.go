// Package reconciler makes a machine what a target says: it plans, applies, prunes, rolls
// back and resets, and writes each step to the journal before it is taken.
package reconciler

import (
	"context"
	"fmt"
	"time"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/provision"
	"github.com/berthrun/berth/internal/provision/journal"
)

// StateDir is where a machine keeps its journal, its assets and other state of provisioning.
const StateDir = "/var/lib/berth/node"

// Config is what a Reconciler works with.
type Config struct {
	Host provision.Host
	// Kinds reads and restores objects (tasks.Kinds).
	Kinds map[string]provision.Kind
	// Report receives progress; nil for none.
	Report Report
	// Version of berth, for the history.
	Version string
	// RetryFor bounds the time in which one task is retried; 0 for one try.
	RetryFor time.Duration
	// TaskFor bounds the time of one task with its retries, given its kind's deadline; nil for that
	// deadline.
	TaskFor func(t provision.Task, usual time.Duration) time.Duration
	// GateFor bounds the time that a restarted unit has to become healthy.
	GateFor time.Duration
	// Wanted returns the target of the node file of a history entry, for the machine as it is at
	// the call: its gates guard an undo. Nil if unknown.
	Wanted func(ctx context.Context, entry int) (provision.Target, error)
	// Now and Sleep are the clock; nil for the real one.
	Now   func() time.Time
	Sleep func(ctx context.Context, d time.Duration) error
}

// Report receives progress. Its methods may be called concurrently.
type Report interface {
	// Step is called when a task begins or a unit is restarted: "install", "restart
	// containerd.service".
	Step(what string)
	// Done is called when it has ended.
	Done(what string, took time.Duration, err error)
	// Note says what the run waits for, and other progress.
	Note(what, note string)
}

// Reconciler works on one machine.
type Reconciler struct {
	Config
	journal *journal.Journal
}

// New opens the journal of a machine. The caller holds the machine's lock if it is
// going to change anything.
func New(c Config) (*Reconciler, error) {
	if c.Now == nil {
		c.Now = time.Now
	}
	if c.Sleep == nil {
		c.Sleep = sleep
	}
	if c.Report == nil {
		c.Report = silent{}
	}
	j, err := journal.Open(c.Host.Files(), StateDir, c.Now)
	if err != nil {
		return nil, err
	}
	return &Reconciler{Config: c, journal: j}, nil
}

// Journal is the machine's journal, to be read.
func (rc *Reconciler) Journal() *journal.Journal { return rc.journal }

func (rc *Reconciler) kind(o provision.Object) (provision.Kind, error) {
	kind, ok := rc.Kinds[o.Kind]
	if !ok {
		return nil, fmt.Errorf("object %s is of a kind that this version does not know: %w", o, errs.Unsupported)
	}
	return kind, nil
}

// step runs f and reports it. Notes through its context carry what.
func (rc *Reconciler) step(ctx context.Context, what string, f func(ctx context.Context) error) error {
	rc.Report.Step(what)
	start := rc.Now()
	err := f(provision.WithNotes(ctx, func(note string) { rc.Report.Note(what, note) }))
	rc.Report.Done(what, rc.Now().Sub(start), err)
	return err
}

type silent struct{}

func (silent) Step(string)                       {}
func (silent) Done(string, time.Duration, error) {}
func (silent) Note(string, string)               {}

func sleep(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-t.C:
		return nil
	}
}
