package reconciler

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/provision"
)

// node is a task and the nodes that it waits for.
type node struct {
	task  provision.Task
	meta  provision.Meta
	needs []int
}

// graph is a target's tasks, each after all that it needs, and by position among equals.
type graph struct {
	nodes []node
	// unit maps a unit's name to the node of its task.
	unit  map[string]int
	gates map[string]provision.Gate
}

// restarter is the task that runs a unit; nil where none does.
func (g *graph) restarter(unit string) provision.Restarter {
	i, ok := g.unit[unit]
	if !ok {
		return nil
	}
	task, _ := g.nodes[i].task.(provision.Restarter)
	return task
}

// newGraph sorts a target. It reports all faults together.
func newGraph(target provision.Target) (*graph, error) {
	byID := map[string]int{}
	units := map[string]int{}
	var faults []error
	for i, t := range target.Tasks {
		if _, ok := byID[t.ID()]; ok {
			faults = append(faults, fmt.Errorf("two tasks are called %q: %w", t.ID(), errs.Invalid))
		}
		byID[t.ID()] = i
		if r, ok := t.(provision.Restarter); ok {
			units[r.Unit()] = i
		}
	}
	needs := make([][]int, len(target.Tasks))
	for i, t := range target.Tasks {
		for _, id := range t.Meta().Needs {
			n, ok := byID[id]
			if !ok {
				faults = append(faults, fmt.Errorf("task %q needs %q, which there is not: %w", t.ID(), id, errs.Invalid))
				continue
			}
			needs[i] = append(needs[i], n)
		}
	}
	if err := errors.Join(faults...); err != nil {
		return nil, err
	}
	orderRestarts(target.Tasks, needs, units)
	order, err := sortTasks(target.Tasks, needs)
	if err != nil {
		return nil, err
	}
	return newOrdered(target, needs, order)
}

// newOrdered numbers the nodes by order.
func newOrdered(target provision.Target, needs [][]int, order []int) (*graph, error) {
	g := &graph{unit: map[string]int{}, gates: map[string]provision.Gate{}}
	place := make([]int, len(order))
	for to, from := range order {
		place[from] = to
	}
	for _, from := range order {
		n := node{task: target.Tasks[from], meta: target.Tasks[from].Meta()}
		for _, need := range needs[from] {
			n.needs = append(n.needs, place[need])
		}
		if r, ok := n.task.(provision.Restarter); ok {
			g.unit[r.Unit()] = len(g.nodes)
		}
		g.nodes = append(g.nodes, n)
	}
	for _, gate := range target.Gates {
		if _, ok := g.gates[gate.Unit]; ok {
			return nil, fmt.Errorf("two gates guard %s: %w", gate.Unit, errs.Invalid)
		}
		g.gates[gate.Unit] = gate
	}
	return g, nil
}

// orderRestarts puts each unit's task after those that ask for its restart, but for
// those which need the unit: then the restart comes at the end.
func orderRestarts(tasks []provision.Task, needs [][]int, units map[string]int) {
	for i, t := range tasks {
		for _, name := range t.Meta().Restarts {
			u, ok := units[name]
			if ok && u != i && !reaches(needs, i, u) {
				needs[u] = append(needs[u], i)
			}
		}
	}
}

// reaches reports whether from waits for to, directly or not.
func reaches(needs [][]int, from, to int) bool {
	seen := make([]bool, len(needs))
	var walk func(i int) bool
	walk = func(i int) bool {
		if i == to {
			return true
		}
		if seen[i] {
			return false
		}
		seen[i] = true
		return slices.ContainsFunc(needs[i], walk)
	}
	return walk(from)
}

// sortTasks returns the tasks' indices, needs first. A cycle is an error that names it.
func sortTasks(tasks []provision.Task, needs [][]int) ([]int, error) {
	const (
		open = iota + 1
		closed
	)
	state := make([]int, len(tasks))
	var order, path []int
	var visit func(i int) error
	visit = func(i int) error {
		switch state[i] {
		case closed:
			return nil
		case open:
			var names []string
			for _, p := range path[slices.Index(path, i):] {
				names = append(names, tasks[p].ID())
			}
			return fmt.Errorf("tasks wait for each other: %s → %s: %w", strings.Join(names, " → "), tasks[i].ID(), errs.Invalid)
		}
		state[i] = open
		path = append(path, i)
		for _, n := range needs[i] {
			if err := visit(n); err != nil {
				return err
			}
		}
		path = path[:len(path)-1]
		state[i] = closed
		order = append(order, i)
		return nil
	}
	for i := range tasks {
		if err := visit(i); err != nil {
			return nil, err
		}
	}
	return order, nil
}
