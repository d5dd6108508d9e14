// Package provision changes a machine to what a list of tasks says, and back.
//
// A task describes a few objects of a machine as they should be: a file with its content, a unit
// enabled and running. The reconciler orders tasks by their needs, shows what would change (plan),
// changes it (apply), and can undo it to any earlier apply or to what was there before the first
// (rollback, reset), because the journal keeps the state of each object from before it was touched.
//
// The package knows nothing of container runtimes, nor of the node file: package tasks has the
// kinds of tasks, package node makes them.
package provision

import (
	"context"
	"time"
)

// Task describes objects as they should be. Implementations are plain values: runs that build equal
// tasks get equal plans.
type Task interface {
	// ID names the task among all of a target: its kind and name, "file /etc/hosts".
	ID() string
	// Meta returns how the task relates to others.
	Meta() Meta
	// Objects lists what the task owns, in the order in which Apply changes it.
	// Only the owner changes an object, and two tasks never own the same. It
	// reads only. A task whose objects depend on something that it must fetch first
	// is a Preparer, and knows them after Prepare.
	Objects(ctx context.Context, host Host) ([]Object, error)
	// Check compares the machine with the task; it reads only, and works at any time, prepared or
	// not. The zero Change means that there is nothing to do.
	Check(ctx context.Context, host Host) (Change, error)
	// Apply makes the objects as the task describes them. It may be killed at any point, and is
	// then called again: it must finish what it finds half done. After it Check finds no change. An
	// error that wraps errs.Unavailable is tried again.
	Apply(ctx context.Context, host Host) error
}

// Meta is how a task relates to other tasks, and why it exists.
type Meta struct {
	// Needs lists IDs of tasks that are applied before this one. An ID that is not in
	// the target is an error.
	Needs []string
	// Restarts lists units ("containerd.service") that must be restarted when the task has changed
	// something. Each is restarted once, after the last task that asks for it: if the target has a
	// Unit task of that name, at that task, which comes after all of them; otherwise at the end.
	Restarts []string
	// Why names the part of the node file that the task is for ("runtime containerd",
	// "spec.sysctls"). Plans show it.
	Why string
}

// Preparer is a task that fetches something before the machine may be changed.
// Apply prepares all tasks before it changes anything, so that a server that is down
// or a bad hash leave the node as it is.
type Preparer interface {
	Task
	// Prepare fills caches, of berth's and of the package manager's, and nothing else. A second
	// call is cheap.
	Prepare(ctx context.Context, host Host) error
}

// Timed is a task that needs more or less time than most.
type Timed interface {
	Task
	// Deadline is how long the task may take to be prepared, checked or applied. Its context ends
	// then, and its programs are killed.
	Deadline() time.Duration
}

// Restarter is a task that runs a unit. The reconciler calls Restart instead of the host's when a
// task requests a restart of that unit.
type Restarter interface {
	Task
	// Unit is the unit's full name.
	Unit() string
	// Disruption says what a restart does to running pods; empty when they keep running.
	Disruption() string
	// Restart restarts the unit and returns when it is active.
	Restart(ctx context.Context, host Host) error
}

// Target is what a machine should be.
type Target struct {
	// Tasks in any order; the reconciler sorts them by needs, and by position among equals.
	Tasks []Task
	// Gates guard the restart of units; at most one a unit.
	Gates []Gate
	// Advice are probes that run after all is applied. Their findings and warnings are reported,
	// and undo nothing.
	Advice []Probe
}

// Gate guards one unit: it prevents a restart that would break the node, and undoes the whole apply
// after one that did.
type Gate struct {
	// Unit is the guarded unit.
	Unit string
	// Before holds cross-checks that read files and run binaries' own validators.
	// They run when all files are in place, before the restart or first start.
	Before []Probe
	// After holds probes of the running service. Each is retried until the gate's Deadline, or
	// until it returns errs.Unsupported.
	After []Probe
}

// Probe is one check of a gate.
type Probe interface {
	// Name says what is checked: "cgroup driver of kubelet and containerd".
	Name() string
	// Run returns nil when all is well, and an error that says what is wrong and where to look. It
	// changes nothing permanently.
	Run(ctx context.Context, host Host) error
}
