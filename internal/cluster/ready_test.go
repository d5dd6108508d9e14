package cluster

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/berthrun/berth/internal/cluster/clustertest"
)

// TestWaitOfKind: as kind, create waits for control planes only, and not in time is a warning.
func TestWaitOfKind(t *testing.T) {
	for notReady, want := range map[string]string{
		"dev-worker":        "",
		"dev-control-plane": "warning: not all of 1 nodes are Ready after 50ms, and the cluster stays as it is: dev-control-plane (",
	} {
		f := clustertest.New(t)
		f.NotReady = notReady
		c, steps := clusters(f)
		wait := time.Minute
		if want != "" {
			wait = 50 * time.Millisecond
		}
		_, err := c.Create(t.Context(), CreateOptions{Cluster: clustertest.Describe(t, "pools: [{name: worker}]\n"), Wait: wait, OfKind: true})
		var warned []string
		for _, step := range *steps {
			if strings.HasPrefix(step, "warning: ") {
				warned = append(warned, step)
			}
		}
		if got := strings.Join(warned, "\n"); err != nil || !strings.HasPrefix(got, want) || want == "" && got != "" || len(f.Nodes) != 2 {
			t.Errorf("%s is not Ready: %v, %q", notReady, err, got)
		}
	}
}

// TestInterruptedWait: the cluster stays, and the error does not say that the time has passed.
func TestInterruptedWait(t *testing.T) {
	f := clustertest.New(t)
	f.NotReady = "dev-control-plane"
	c, _ := clusters(f)
	ctx, cancel := context.WithCancelCause(t.Context())
	c.Step = func(text string) func(error) {
		if text == "Waiting for all nodes to be Ready" {
			cancel(errors.New("interrupt signal received"))
		}
		return func(error) {}
	}
	_, err := c.Create(ctx, CreateOptions{Cluster: clustertest.Describe(t, ""), Wait: time.Hour})
	if err == nil || !strings.Contains(err.Error(), "interrupted before all of 1 nodes were Ready, and the cluster stays as it is: interrupt signal received") || len(f.Nodes) != 1 {
		t.Errorf("%v, nodes %v", err, f.Nodes)
	}
}
