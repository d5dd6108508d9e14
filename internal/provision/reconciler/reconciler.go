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

// StateDir is where a machine keeps its journal, its assets and what else provisioning
// must remember.
const StateDir = "/var/lib/berth/node"

// Config is what a Reconciler works with.
type Config struct {
	Host provision.Host
	// Kinds reads and restores objects (tasks.Kinds).
	Kinds map[string]provision.Kind
	// Report is told what happens; nil for nobody.
	Report Report
	// Version of berth, for the history.
	Version string
	// RetryFor bounds the time that one task is tried again for; 0 for one try.
	RetryFor time.Duration
	// TaskFor bounds the time of one task, its tries included, given what its kind says; nil
	// for that.
	TaskFor func(t provision.Task, usual time.Duration) time.Duration
	// GateFor bounds the time that a restarted unit has to become healthy.
	GateFor time.Duration
	// Wanted is what the node file of an entry of the history makes of the machine as it is
	// when it is asked: the gates of what an undoing goes back to. Nil where nobody knows.
	Wanted func(ctx context.Context, entry int) (provision.Target, error)
	// Now and Sleep are the clock; nil for the real one.
	Now   func() time.Time
	Sleep func(ctx context.Context, d time.Duration) error
}

// Report is told what happens. Its methods may be called concurrently.
type Report interface {
	// Step is called when a task begins or a unit is restarted: "install", "restart containerd.service".
	Step(what string)
	// Done is called when it has ended.
	Done(what string, took time.Duration, err error)
	// Note tells what is waited for, and what is worth knowing.
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

// step runs f and reports it. Notes that are told through its context carry what.
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
