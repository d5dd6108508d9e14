package kubeapi

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"k8s.io/client-go/tools/clientcmd/api"

	"github.com/berthrun/berth/internal/errs"
)

// client returns a client for a server with this handler.
func client(t *testing.T, answer http.HandlerFunc) *Client {
	t.Helper()
	server := httptest.NewServer(answer)
	t.Cleanup(server.Close)
	config := api.NewConfig()
	config.CurrentContext = "c"
	config.Clusters["c"] = &api.Cluster{Server: server.URL}
	config.Contexts["c"] = &api.Context{Cluster: "c", AuthInfo: "c"}
	config.AuthInfos["c"] = &api.AuthInfo{}
	c, err := New(config, nil)
	if err != nil {
		t.Fatal(err)
	}
	c.pause = time.Millisecond
	return c
}

func item(name, cidr, ready, message string) string {
	return fmt.Sprintf(`{"kind":"Node","apiVersion":"v1","metadata":{"name":%q},"spec":{"podCIDRs":[%q]},"status":{"conditions":[{"type":"Ready","status":%q,"message":%q,"lastHeartbeatTime":"2026-01-02T03:04:05Z"}],
"addresses":[{"type":"Hostname","address":%q},{"type":"InternalIP","address":"10.0.0.2"}]}}`, name, cidr, ready, message, name)
}

// TestWaitForNodes: the server is not up at first. Then it answers a list, a watch that ends, and a
// watch that reports the node.
func TestWaitForNodes(t *testing.T) {
	var watches, lists atomic.Int32
	c := client(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		if r.URL.Query().Get("watch") == "" {
			if lists.Add(1) == 1 {
				http.Error(w, "not yet", http.StatusServiceUnavailable)
				return
			}
			fmt.Fprintf(w, `{"metadata":{"resourceVersion":"7"},"items":[%s]}`, item("b", "", "False", "no network"))
			return
		}
		if r.URL.Query().Get("resourceVersion") != "7" {
			t.Errorf("a watch from %q", r.URL.RawQuery)
		}
		if watches.Add(1) == 1 {
			fmt.Fprint(w, `{"type":"ERROR","object":{"kind":"Status","apiVersion":"v1","code":410}}`)
			return
		}
		for _, event := range []string{
			`{"type":"ADDED","object":` + item("c", "", "False", "") + `}`, `{"type":"DELETED","object":` + item("c", "", "False", "") + `}`,
			`{"type":"ADDED","object":` + item("a", "10.244.1.0/24", "True", "") + `}`, `{"type":"MODIFIED","object":` + item("b", "10.244.0.0/24", "True", "") + `}`,
		} {
			fmt.Fprintln(w, event)
		}
	})
	nodes, err := c.WaitForNodes(t.Context(), func(nodes []Node) bool { return len(nodes) == 2 && nodes[0].Ready && nodes[1].Ready })
	if err != nil {
		t.Fatal(err)
	}
	if got := fmt.Sprint(nodes); got != "[{a true  2026-01-02 03:04:05 +0000 UTC [10.244.1.0/24] [10.0.0.2]} {b true  2026-01-02 03:04:05 +0000 UTC [10.244.0.0/24] [10.0.0.2]}]" {
		t.Error(got)
	}
	if lists.Load() != 3 || watches.Load() != 2 {
		t.Errorf("%d lists, %d watches", lists.Load(), watches.Load())
	}
}

// TestWaitEnds: the error has the last result.
func TestWaitEnds(t *testing.T) {
	ctx, cancel := context.WithCancelCause(t.Context())
	c := client(t, func(w http.ResponseWriter, _ *http.Request) {
		http.Error(w, "starting", http.StatusServiceUnavailable)
	})
	asked := make(chan struct{}, 1)
	c.http.Transport = &notifier{c.http.Transport, asked}
	go func() { <-asked; <-asked; cancel(errors.New("late")) }()
	_, err := c.WaitForNodes(ctx, func([]Node) bool { return true })
	if err == nil || !strings.Contains(err.Error(), "late") || !strings.Contains(err.Error(), "503") || !errors.Is(err, errs.Unavailable) {
		t.Errorf("%v", err)
	}
}

// notifier signals each request.
type notifier struct {
	http.RoundTripper
	to chan struct{}
}

func (t *notifier) RoundTrip(r *http.Request) (*http.Response, error) {
	if t.RoundTripper == nil {
		t.RoundTripper = http.DefaultTransport
	}
	answer, err := t.RoundTripper.RoundTrip(r)
	select {
	case t.to <- struct{}{}:
	case <-r.Context().Done():
	}
	return answer, err
}
