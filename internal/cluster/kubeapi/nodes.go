package kubeapi

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"

	"github.com/berthrun/berth/internal/errs"
)

// Node has the fields of a Node object that berth uses.
type Node struct {
	Name string
	// Ready is the condition of that name. Why is its message, or what it says in place of one.
	Ready bool
	Why   string
	// Seen is the last heartbeat of the condition, by the node's clock, in seconds; zero for none.
	Seen time.Time
	// PodCIDRs are the ranges of its pods' addresses. Addresses are its internal ones.
	PodCIDRs, Addresses []string
}

func nodeOf(object *corev1.Node) Node {
	n := Node{Name: object.Name, PodCIDRs: object.Spec.PodCIDRs, Why: "its kubelet has said nothing yet"}
	for _, condition := range object.Status.Conditions {
		if condition.Type == corev1.NodeReady {
			n.Ready, n.Why = condition.Status == corev1.ConditionTrue, condition.Message
			n.Seen = condition.LastHeartbeatTime.UTC()
		}
	}
	for _, address := range object.Status.Addresses {
		if address.Type == corev1.NodeInternalIP {
			n.Addresses = append(n.Addresses, address.Address)
		}
	}
	return n
}

// WaitForNodes returns the nodes, sorted by name, as soon as they are as wanted. It retries while
// the API server does not answer. When the context ends, it returns the last nodes and the last
// error.
func (c *Client) WaitForNodes(ctx context.Context, wanted func([]Node) bool) ([]Node, error) {
	var last error
	for {
		nodes, err := c.follow(ctx, wanted)
		if err == nil {
			return nodes, nil
		}
		if ctx.Err() == nil || last == nil {
			last = err
		}
		c.http.CloseIdleConnections()
		select {
		case <-ctx.Done():
			return nodes, errors.Join(context.Cause(ctx), last)
		case <-time.After(c.pause):
		}
	}
}

// errWatchEnded: the server ends each watch after a while. The nodes are listed again then.
var errWatchEnded = errors.New("the watch ended")

// follow lists the nodes, and watches them from there on.
func (c *Client) follow(ctx context.Context, wanted func([]Node) bool) ([]Node, error) {
	var list corev1.NodeList
	result := c.nodes().Do(ctx)
	if err := result.Error(); err != nil {
		return nil, requestError(err)
	}
	if err := result.Into(&list); err != nil {
		return nil, fmt.Errorf("cannot read the list of nodes: %w: %w", errs.Unavailable, err)
	}
	known := map[string]Node{}
	for i := range list.Items {
		known[list.Items[i].Name] = nodeOf(&list.Items[i])
	}
	if nodes := sorted(known); wanted(nodes) {
		return nodes, nil
	}
	events, err := c.nodes().Param("watch", "true").Param("resourceVersion", list.ResourceVersion).Watch(ctx)
	if err != nil {
		return sorted(known), requestError(err)
	}
	defer events.Stop()
	for event := range events.ResultChan() {
		object, ok := event.Object.(*corev1.Node)
		switch {
		case !ok:
			return sorted(known), errWatchEnded
		case event.Type == watch.Deleted:
			delete(known, object.Name)
		default:
			known[object.Name] = nodeOf(object)
		}
		if nodes := sorted(known); wanted(nodes) {
			return nodes, nil
		}
	}
	return sorted(known), errWatchEnded
}

func (c *Client) nodes() *rest.Request { return c.api.Get().Resource("nodes").MaxRetries(0) }

func sorted(known map[string]Node) []Node {
	var nodes []Node
	for _, name := range slices.Sorted(maps.Keys(known)) {
		nodes = append(nodes, known[name])
	}
	return nodes
}

// SelectNodes returns the nodes that have one of the names, and the names of the other nodes.
func SelectNodes(nodes []Node, names []string) (selected []Node, others []string) {
	for _, n := range nodes {
		if slices.Contains(names, n.Name) {
			selected = append(selected, n)
			continue
		}
		others = append(others, n.Name)
	}
	return selected, others
}

// AllNodes returns a condition for WaitForNodes: nodes of all names exist, and wanted holds for
// each of them. Other nodes do not count.
func AllNodes(names []string, wanted func(Node) bool) func([]Node) bool {
	return func(nodes []Node) bool {
		selected, _ := SelectNodes(nodes, names)
		return len(selected) == len(names) && !slices.ContainsFunc(selected, func(n Node) bool { return !wanted(n) })
	}
}
