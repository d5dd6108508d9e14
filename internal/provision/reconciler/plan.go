package reconciler

import (
	"context"
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"

	"golang.org/x/sync/errgroup"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/provision"
	"github.com/berthrun/berth/internal/provision/journal"
)

// workers is how many tasks are checked or applied at a time.
const workers = 8

// Plan is what an apply would do.
type Plan struct {
	// Steps are the tasks that would change something, in order.
	Steps []Step `json:"steps"`
	// Restarts are units that would be restarted.
	Restarts []Restart `json:"restarts,omitempty"`
	// Unwanted are objects that are ours and that the target does not want any more.
	Unwanted []journal.Owned `json:"unwanted,omitempty"`
	// Unfinished is the entry of an apply that was interrupted and that none after it has continued
	// to its end, or 0.
	Unfinished int `json:"unfinished,omitempty"`
}

// Step is one task's change.
type Step struct {
	Task     string           `json:"task"`
	Why      string           `json:"why,omitempty"`
	Diffs    []provision.Diff `json:"diffs"`
	Disrupts string           `json:"disrupts,omitempty"`
}

// Restart is a unit that would be restarted.
type Restart struct {
	Unit string `json:"unit"`
	// Because lists the tasks, or on a way back the objects, that ask for it.
	Because []string `json:"because"`
	// Disrupts says what happens to running pods; empty when they keep running.
	Disrupts string `json:"disrupts,omitempty"`
}

// Empty reports whether nothing would be done.
func (p *Plan) Empty() bool { return len(p.Steps) == 0 && len(p.Restarts) == 0 }

// Disruptions lists what would happen to running pods.
func (p *Plan) Disruptions() []string {
	var list []string
	for _, s := range p.Steps {
		if s.Disrupts != "" {
			list = append(list, s.Task+": "+s.Disrupts)
		}
	}
	return append(list, restartDisruptions(p.Restarts)...)
}

func restartDisruptions(restarts []Restart) []string {
	var list []string
	for _, r := range restarts {
		if r.Disrupts != "" {
			list = append(list, "restart of "+r.Unit+": "+r.Disrupts)
		}
	}
	return list
}

// consent refuses a disruption of running pods without the user's consent.
func consent(disruptions []string, given bool) error {
	if len(disruptions) == 0 || given {
		return nil
	}
	return fmt.Errorf("nothing was changed: running pods would be hit (%s), which needs your consent (--allow-disruption): %w",
		strings.Join(disruptions, "; "), errs.State)
}

// Plan compares the machine with the target. It changes nothing.
func (rc *Reconciler) Plan(ctx context.Context, target provision.Target) (*Plan, error) {
	g, err := newGraph(target)
	if err != nil {
		return nil, err
	}
	plan, _, err := rc.plan(ctx, g)
	return plan, err
}

// plan also returns the objects of each node.
func (rc *Reconciler) plan(ctx context.Context, g *graph) (*Plan, [][]provision.Object, error) {
	changes := make([]provision.Change, len(g.nodes))
	objects := make([][]provision.Object, len(g.nodes))
	if err := rc.checkAll(ctx, g, changes, objects); err != nil {
		return nil, nil, err
	}
	if err := oneOwner(g, objects); err != nil {
		return nil, nil, err
	}
	plan := &Plan{Unwanted: rc.unwanted(g, objects)}
	for i, n := range g.nodes {
		if !changes[i].Empty() {
			plan.Steps = append(plan.Steps, Step{
				Task: n.task.ID(), Why: n.meta.Why, Diffs: changes[i].Diffs, Disrupts: changes[i].Disrupts,
			})
		}
	}
	plan.Unfinished = rc.journal.Interrupted()
	var err error
	plan.Restarts, err = rc.restarts(ctx, g, changes)
	return plan, objects, err
}

// checkAll checks all tasks. It reports all faults together.
func (rc *Reconciler) checkAll(ctx context.Context, g *graph, changes []provision.Change, objects [][]provision.Object) error {
	faults := make([]error, len(g.nodes))
	var group errgroup.Group
	group.SetLimit(workers)
	for i, n := range g.nodes {
		group.Go(func() error {
			var err error
			if objects[i], err = n.task.Objects(ctx, rc.Host); err == nil {
				changes[i], err = rc.check(ctx, n)
			}
			if err != nil {
				faults[i] = fmt.Errorf("cannot plan %s: %w", n.task.ID(), err)
			}
			return nil
		})
	}
	if err := group.Wait(); err != nil {
		return err
	}
	return errors.Join(faults...)
}

// check compares the machine with one task.
func (rc *Reconciler) check(ctx context.Context, n node) (change provision.Change, err error) {
	err = within(ctx, rc.taskDeadline(n.task), func(ctx context.Context) error {
		change, err = n.task.Check(ctx, rc.Host)
		return err
	})
	return change, err
}

// oneOwner refuses a target in which two tasks own one object.
func oneOwner(g *graph, objects [][]provision.Object) error {
	owner := map[provision.Object]string{}
	var faults []error
	for i, n := range g.nodes {
		for _, o := range objects[i] {
			if other, ok := owner[o]; ok && !shared(o) {
				faults = append(faults, fmt.Errorf("%s and %s both want %s: %w", other, n.task.ID(), o, errs.Invalid))
			}
			owner[o] = n.task.ID()
		}
	}
	return errors.Join(faults...)
}

// shared reports whether several tasks may have an object: packages come along with others, and a
// node that ran two runtimes before has a handover from each, which stops the kubelet.
func shared(o provision.Object) bool {
	return o.Kind == provision.KindPackage || o.Kind == provision.KindJSONFile || o.Kind == provision.KindKubelet
}

// unwanted lists what is ours and in no task any more. Directories that hold wanted
// objects stay, and so do packages that came along with a task's own.
func (rc *Reconciler) unwanted(g *graph, objects [][]provision.Object) []journal.Owned {
	wanted := map[provision.Object]bool{}
	dirs := map[string]bool{}
	ids := map[string]bool{}
	fetched := map[string]bool{}
	for i, n := range g.nodes {
		ids[n.task.ID()] = true
		fetched[n.task.ID()] = len(objects[i]) > 0
		for _, o := range objects[i] {
			wanted[o] = true
			for _, dir := range rc.parents(o) {
				dirs[dir] = true
			}
		}
	}
	var list []journal.Owned
	for _, o := range rc.journal.Owned() {
		switch {
		case wanted[o.Object], o.Object.Kind == provision.KindDir && dirs[o.Object.Name]:
		case cameAlong(o) && !slices.ContainsFunc(namesOf(o), func(name string) bool {
			return !wanted[provision.Object{Kind: provision.KindPackage, Name: name}]
		}):
		case ids[o.Task] && !fetched[o.Task]: // not known before it is fetched
		default:
			list = append(list, o)
		}
	}
	return list
}

// cameAlong reports whether the package manager installed a package as a dependency of a package that the task names.
func cameAlong(o journal.Owned) bool {
	return o.Object.Kind == provision.KindPackage && !slices.Contains(namesOf(o), o.Object.Name)
}

// namesOf lists the packages that the task of a package names. They are in its ID, which changes with them: what came along
// keeps the ID that the task had then.
func namesOf(o journal.Owned) []string {
	words := strings.Fields(o.Task)
	return words[min(len(words), 1):]
}

// parents lists the directories above an object, innermost first.
func (rc *Reconciler) parents(o provision.Object) []string {
	placed, ok := rc.Kinds[o.Kind].(provision.Placed)
	if !ok {
		return nil
	}
	var list []string
	for dir := path.Dir(placed.Path(o.Name)); dir != "/" && dir != "."; dir = path.Dir(dir) {
		list = append(list, dir)
	}
	return list
}

// reasons are units with what asks for their restart.
type reasons struct {
	units   []string
	because map[string][]string
}

func (r *reasons) add(unit, reason string) {
	if r.because == nil {
		r.because = map[string][]string{}
	}
	if r.because[unit] == nil {
		r.units = append(r.units, unit)
	}
	if !slices.Contains(r.because[unit], reason) {
		r.because[unit] = append(r.because[unit], reason)
	}
}

// restarts lists the running units that an apply would restart.
func (rc *Reconciler) restarts(ctx context.Context, g *graph, changes []provision.Change) ([]Restart, error) {
	var because reasons
	for i, n := range g.nodes {
		if changes[i].Empty() {
			continue
		}
		for _, unit := range n.meta.Restarts {
			because.add(unit, n.task.ID())
		}
		if r, ok := n.task.(provision.Restarter); ok && changesFiles(changes[i]) {
			because.add(r.Unit(), n.task.ID())
		}
	}
	for _, unit := range rc.journal.Pending() {
		because.add(unit, "an apply before, which did not come to it")
	}
	return rc.running(ctx, g, &because)
}

// running makes restarts of those units that run.
func (rc *Reconciler) running(ctx context.Context, g *graph, because *reasons) ([]Restart, error) {
	var list []Restart
	for _, unit := range because.units {
		r := Restart{Unit: unit, Because: because.because[unit]}
		if i, ok := g.unit[unit]; ok {
			r.Disrupts = g.nodes[i].task.(provision.Restarter).Disruption()
		}
		active, err := rc.active(ctx, unit)
		if err != nil {
			return nil, err
		}
		if active {
			list = append(list, r)
		}
	}
	slices.SortFunc(list, func(a, b Restart) int { return strings.Compare(a.Unit, b.Unit) })
	return list, nil
}

func changesFiles(c provision.Change) bool {
	return slices.ContainsFunc(c.Diffs, func(d provision.Diff) bool { return d.Object.Kind == provision.KindFile })
}

// stopped reports whether a unit does not run because somebody stopped it, or because it never ran.
// A unit that has failed, or restarts again and again, is not stopped.
func (rc *Reconciler) stopped(ctx context.Context, unit string) (bool, error) {
	if !rc.Host.Live() {
		return true, nil
	}
	state, err := rc.Host.Units().State(ctx, unit)
	return state.Active == "" || state.Active == "inactive" || state.Active == "deactivating", err
}

func (rc *Reconciler) active(ctx context.Context, unit string) (bool, error) {
	if !rc.Host.Live() {
		return false, nil
	}
	state, err := rc.Host.Units().State(ctx, unit)
	return state.Active == "active" || state.Active == "reloading" || state.Active == "refreshing", err
}
