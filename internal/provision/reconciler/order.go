package reconciler

import "github.com/berthrun/berth/internal/provision"

// Order returns a target's tasks in the order in which Apply would begin them, one after the other.
// It reports all faults of the target together.
func Order(target provision.Target) ([]provision.Task, error) {
	g, err := newGraph(target)
	if err != nil {
		return nil, err
	}
	tasks := make([]provision.Task, len(g.nodes))
	for i, n := range g.nodes {
		tasks[i] = n.task
	}
	return tasks, nil
}
