// Package node turns a machine into a Kubernetes node, as `berth node` does: it plans and applies a node file. The
// command and this package share the history of a machine, and its lock.
//
// The API follows semantic versioning from berth v1.0 on. Before that, a minor version may change it; the release notes
// name each change.
package node

import (
	"context"
	"encoding/json"
	"errors"
	"time"

	"github.com/berthrun/berth/internal/provision"
	"github.com/berthrun/berth/internal/provision/local"
	"github.com/berthrun/berth/internal/provision/node/nodefile"
	"github.com/berthrun/berth/internal/provision/reconciler"
)

// Options say which machine is worked on, and how.
type Options struct {
	// Root is the root directory of the machine, "" for /. With another than /, such as that of an image that is built,
	// only files, packages and links change.
	Root string
	// Berth is the path of the program berth, which a node with berth as its runtime gets.
	Berth string
	// AllowDisruption allows the disruption of running pods that Plan shows. Without it, Apply refuses.
	AllowDisruption bool
	// Progress receives the end of each task, with its error. nil for nobody. It may be called at the same time.
	Progress func(task string, took time.Duration, err error)
}

// Step is what one task would change.
type Step struct {
	// Task names the task, Why the field of the node file that requires it.
	Task, Why string
	// Changes describe the objects that change: "file /etc/containerd/config.toml: content differs".
	Changes []string
}

// Plan is what an apply would do.
type Plan struct {
	// Steps are in the order in which they would be taken.
	Steps []Step
	// Restarts are the units that would be restarted.
	Restarts []string
	// Disruptions say what would happen to running pods.
	Disruptions []string
	// JSON is the plan as `berth node plan --output json` prints it, without secrets.
	JSON []byte
}

// Empty reports whether the machine is as the node file describes it.
func (p *Plan) Empty() bool { return len(p.Steps) == 0 && len(p.Restarts) == 0 }

// Outcome is what an apply has done.
type Outcome struct {
	// Number is that of the entry in the history; 0 when there was nothing to do.
	Number int
	// Changed are the tasks that changed something, Restarted the units that were restarted.
	Changed, Restarted []string
	// Warnings are findings that stopped nothing.
	Warnings []string
}

// Validate checks a node file. The error is of kind Invalid, and names each fault by line and column. name is what the
// error calls the file.
func Validate(name string, text []byte) error {
	_, err := nodefile.Load(name, text)
	return err
}

// MakePlan returns what an apply of a node file would change. It changes nothing. It needs root.
func MakePlan(ctx context.Context, nodeFile []byte, o Options) (plan *Plan, err error) {
	m, err := local.Open(o.local())
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, m.Close()) }()
	target, err := targetOf(ctx, m, nodeFile)
	if err != nil {
		return nil, err
	}
	found, err := m.Reconciler.Plan(ctx, target)
	if err != nil {
		return nil, err
	}
	shown, err := m.Reconciler.Shown(found)
	if err != nil {
		return nil, err
	}
	encoded, err := json.MarshalIndent(shown, "", "  ")
	if err != nil {
		return nil, err
	}
	plan = &Plan{Disruptions: shown.Disruptions(), JSON: encoded}
	for _, s := range shown.Steps {
		step := Step{Task: s.Task, Why: s.Why}
		for _, d := range s.Diffs {
			step.Changes = append(step.Changes, d.Object.String()+": "+d.Reason)
		}
		plan.Steps = append(plan.Steps, step)
	}
	for _, r := range shown.Restarts {
		plan.Restarts = append(plan.Restarts, r.Unit)
	}
	return plan, nil
}

// Apply makes a machine what a node file describes. It records each change before it makes it. If a task fails, or if
// the runtime is not healthy after its restart, Apply undoes all changes and returns the reason. Kind Unavailable when
// another process changes the machine. It needs root.
func Apply(ctx context.Context, nodeFile []byte, o Options) (outcome *Outcome, err error) {
	m, err := local.Change(ctx, o.local(), nil)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, m.Close()) }()
	target, err := targetOf(ctx, m, nodeFile)
	if err != nil {
		return nil, err
	}
	done, err := m.Reconciler.Apply(ctx, target, reconciler.ApplyOptions{NodeFile: nodeFile, AllowDisruption: o.AllowDisruption})
	if done == nil {
		return nil, err
	}
	return &Outcome{Number: done.Number, Changed: done.Changed, Restarted: done.Restarted, Warnings: done.Warnings}, err
}

// targetOf reads a node file, and builds its target.
func targetOf(ctx context.Context, m *local.Machine, nodeFile []byte) (provision.Target, error) {
	const name = "node file"
	n, err := nodefile.Load(name, nodeFile)
	if err != nil {
		return provision.Target{}, err
	}
	return m.Target(ctx, n, nodeFile, name, "")
}

func (o Options) local() local.Options {
	if o.Root == "" {
		o.Root = "/"
	}
	made := local.Options{Root: o.Root, Berth: o.Berth, PackageWait: local.DefaultPackageWait, RetryFor: local.DefaultRetryFor}
	if o.Progress != nil {
		made.Report = progress(o.Progress)
	}
	return made
}

// progress passes on the ends of tasks.
type progress func(task string, took time.Duration, err error)

// Step implements reconciler.Report.
func (progress) Step(string) {}

// Done implements reconciler.Report.
func (p progress) Done(task string, took time.Duration, err error) { p(task, took, err) }

// Note implements reconciler.Report.
func (progress) Note(string, string) {}
