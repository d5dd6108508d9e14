// Package kubeapi speaks with the API server of a cluster: the little that making and changing
// its nodes needs, with any version of Kubernetes.
package kubeapi

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/tools/clientcmd/api"

	"github.com/berthrun/berth/internal/errs"
)

// Node is what a node says of itself and what the cluster gave it.
type Node struct {
	Name string
	// Ready is the condition, Why its reason where it does not hold.
	Ready bool
	Why   string
	// Seen is when its kubelet has said so, by the node's clock, in seconds.
	Seen time.Time
	// PodCIDRs are the ranges of its pods, Addresses its own.
	PodCIDRs, Addresses []string
}

// Client asks one API server.
type Client struct {
	server string
	http   *http.Client
	// anybody has no credentials.
	anybody *http.Client
	// pause lies between an answer that was none and the next question.
	pause time.Duration
}

// pause is short, since the API of a cluster that is being made is up any moment.
const pause = 200 * time.Millisecond

// New makes a client for the current context of a configuration.
func New(config *api.Config) (*Client, error) {
	from, err := clientcmd.NewDefaultClientConfig(*config, nil).ClientConfig()
	if err != nil {
		return nil, fmt.Errorf("cannot use the cluster's kubeconfig: %w: %w", errs.Invalid, err)
	}
	client, err := rest.HTTPClientFor(from)
	if err != nil {
		return nil, fmt.Errorf("cannot use the cluster's kubeconfig: %w: %w", errs.Invalid, err)
	}
	anybody, err := rest.HTTPClientFor(rest.AnonymousClientConfig(from))
	if err != nil {
		return nil, fmt.Errorf("cannot use the cluster's kubeconfig: %w: %w", errs.Invalid, err)
	}
	return &Client{server: strings.TrimSuffix(from.Host, "/"), http: client, anybody: anybody, pause: pause}, nil
}

// Wait returns the nodes, sorted by name, as soon as they are as wanted. An API server that does
// not answer is asked again until the context ends; the error then says what was seen last.
func (c *Client) Wait(ctx context.Context, wanted func([]Node) bool) ([]Node, error) {
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

// errEnded: a watch has an end, after which one lists anew.
var errEnded = errors.New("the watch ended")

// follow lists nodes and watches them from there on.
func (c *Client) follow(ctx context.Context, wanted func([]Node) bool) ([]Node, error) {
	var list struct {
		Metadata struct {
			ResourceVersion string `json:"resourceVersion"`
		} `json:"metadata"`
		Items []object `json:"items"`
	}
	body, err := c.get(ctx, nil)
	if err != nil {
		return nil, err
	}
	err = json.NewDecoder(body).Decode(&list)
	body.Close()
	if err != nil {
		return nil, fmt.Errorf("cannot read the list of nodes: %w", err)
	}
	known := map[string]Node{}
	for _, item := range list.Items {
		known[item.Metadata.Name] = item.node()
	}
	if nodes := sorted(known); wanted(nodes) {
		return nodes, nil
	}
	body, err = c.get(ctx, url.Values{"watch": {"true"}, "resourceVersion": {list.Metadata.ResourceVersion}})
	if err != nil {
		return sorted(known), err
	}
	defer body.Close()
	for events := json.NewDecoder(body); ; {
		var event struct {
			Type   string `json:"type"`
			Object object `json:"object"`
		}
		switch err := events.Decode(&event); {
		case errors.Is(err, io.EOF):
			return sorted(known), errEnded
		case err != nil:
			return sorted(known), fmt.Errorf("cannot watch the nodes: %w", err)
		}
		switch event.Type {
		case "ADDED", "MODIFIED":
			known[event.Object.Metadata.Name] = event.Object.node()
		case "DELETED":
			delete(known, event.Object.Metadata.Name)
		default:
			return sorted(known), errEnded
		}
		if nodes := sorted(known); wanted(nodes) {
			return nodes, nil
		}
	}
}

// nodesPath is where the API has nodes.
const nodesPath = "/api/v1/nodes"

func (c *Client) get(ctx context.Context, query url.Values) (io.ReadCloser, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, c.server+nodesPath+"?"+query.Encode(), nil)
	if err != nil {
		return nil, err
	}
	answer, err := c.http.Do(request)
	if err != nil {
		return nil, fmt.Errorf("the API server does not answer: %w: %w", errs.Unavailable, err)
	}
	if answer.StatusCode != http.StatusOK {
		text, _ := io.ReadAll(io.LimitReader(answer.Body, 512))
		answer.Body.Close()
		return nil, fmt.Errorf("the API server answers %s: %s: %w", answer.Status, strings.TrimSpace(string(text)), errs.Unavailable)
	}
	return answer.Body, nil
}

// object is what is read of a Node.
type object struct {
	Metadata struct {
		Name string `json:"name"`
	} `json:"metadata"`
	Spec struct {
		PodCIDRs []string `json:"podCIDRs"`
	} `json:"spec"`
	Status struct {
		Conditions []struct {
			Type    string `json:"type"`
			Status  string `json:"status"`
			Message string `json:"message"`
			Seen    string `json:"lastHeartbeatTime"`
		} `json:"conditions"`
		Addresses []struct {
			Type    string `json:"type"`
			Address string `json:"address"`
		} `json:"addresses"`
	} `json:"status"`
}

func (o object) node() Node {
	n := Node{Name: o.Metadata.Name, PodCIDRs: o.Spec.PodCIDRs, Why: "its kubelet has said nothing yet"}
	for _, condition := range o.Status.Conditions {
		if condition.Type == "Ready" {
			n.Ready, n.Why = condition.Status == "True", condition.Message
			n.Seen, _ = time.Parse(time.RFC3339, condition.Seen) // or never
		}
	}
	for _, a := range o.Status.Addresses {
		if a.Type == "InternalIP" {
			n.Addresses = append(n.Addresses, a.Address)
		}
	}
	return n
}

func sorted(known map[string]Node) []Node {
	var nodes []Node
	for _, name := range slices.Sorted(maps.Keys(known)) {
		nodes = append(nodes, known[name])
	}
	return nodes
}
