package kubeapi

import "slices"

// Among returns the nodes that have one of the names, and the names of the others.
func Among(nodes []Node, names []string) (found []Node, others []string) {
	for _, n := range nodes {
		if slices.Contains(names, n.Name) {
			found = append(found, n)
			continue
		}
		others = append(others, n.Name)
	}
	return found, others
}

// Every returns a condition for Wait: the API has nodes of all names, and each is as wanted. Other
// nodes do not count.
func Every(names []string, wanted func(Node) bool) func([]Node) bool {
	return func(nodes []Node) bool {
		found, _ := Among(nodes, names)
		return len(found) == len(names) && !slices.ContainsFunc(found, func(n Node) bool { return !wanted(n) })
	}
}
