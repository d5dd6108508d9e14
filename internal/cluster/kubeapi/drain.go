package kubeapi

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/berthrun/berth/internal/errs"
)

// pod is what is read of a Pod.
type pod struct {
	Metadata struct {
		Name        string            `json:"name"`
		Namespace   string            `json:"namespace"`
		UID         string            `json:"uid"`
		Annotations map[string]string `json:"annotations"`
		Owners      []struct {
			Kind string `json:"kind"`
		} `json:"ownerReferences"`
		Deleted string `json:"deletionTimestamp"`
	} `json:"metadata"`
	Status struct {
		Phase string `json:"phase"`
	} `json:"status"`
}

func (p pod) name() string { return p.Metadata.Namespace + "/" + p.Metadata.Name }

// stays reports whether a pod goes with its node only: one of the node's own files, one of a
// DaemonSet, and one that has ended.
func (p pod) stays() bool {
	_, static := p.Metadata.Annotations["kubernetes.io/config.mirror"]
	for _, owner := range p.Metadata.Owners {
		static = static || owner.Kind == "DaemonSet"
	}
	return static || p.Status.Phase == "Succeeded" || p.Status.Phase == "Failed"
}

// Drain has the pods of a node end, as `kubectl drain` does, within their disruption budgets. It
// returns when they have; the error of a context that ends before tells which have not.
func (c *Client) Drain(ctx context.Context, node string) error {
	if err := c.Cordon(ctx, node); err != nil {
		return err
	}
	refused := map[string]string{}
	var left []pod
	for {
		now, err := c.evict(ctx, node, refused)
		switch {
		case err == nil && len(now) == 0:
			return nil
		case len(now) > 0:
			left = now
		}
		if err != nil && !errors.Is(err, errs.Unavailable) && ctx.Err() == nil {
			return fmt.Errorf("cannot drain the node %s: %w", node, err)
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("cannot drain the node %s in time: %s: %w", node, remaining(left, refused), errors.Join(context.Cause(ctx), err))
		case <-time.After(2 * c.pause):
		}
	}
}

// evict asks for the end of each pod that has not been asked to yet, and returns those that are
// there.
func (c *Client) evict(ctx context.Context, node string, refused map[string]string) ([]pod, error) {
	var list struct {
		Items []pod `json:"items"`
	}
	query := url.Values{"fieldSelector": {"spec.nodeName=" + node}}
	if err := c.call(ctx, request{method: http.MethodGet, path: "/api/v1/pods?" + query.Encode()}, &list); err != nil {
		return nil, err
	}
	left := slices.DeleteFunc(list.Items, pod.stays)
	for _, p := range left {
		if p.Metadata.Deleted != "" {
			continue
		}
		body := map[string]any{
			"apiVersion": "policy/v1", "kind": "Eviction",
			"metadata": map[string]any{"name": p.Metadata.Name, "namespace": p.Metadata.Namespace},
			// Another pod of the name is on another node by now.
			"deleteOptions": map[string]any{"preconditions": map[string]any{"uid": p.Metadata.UID}},
		}
		path := "/api/v1/namespaces/" + p.Metadata.Namespace + "/pods/" + p.Metadata.Name + "/eviction"
		err := c.call(ctx, request{method: http.MethodPost, path: path, body: body}, nil)
		switch {
		case errors.Is(err, errs.Exhausted):
			refused[p.name()] = " (its disruption budget does not allow it)" // yet
		case err == nil, errors.Is(err, errs.NotFound), errors.Is(err, errs.Exists):
			delete(refused, p.name())
		default:
			return left, err
		}
	}
	return left, nil
}

// remaining names pods, with why they have not ended.
func remaining(pods []pod, refused map[string]string) string {
	if len(pods) == 0 {
		return "it is not known which pods are on it"
	}
	var names []string
	for _, p := range pods {
		names = append(names, p.name()+refused[p.name()])
	}
	return strings.Join(names, ", ") + " have not ended"
}
