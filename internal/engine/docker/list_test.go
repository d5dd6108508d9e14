package docker

import (
	"encoding/json"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/moby/moby/api/types/container"

	"github.com/berthrun/berth/internal/docker/api"
	"github.com/berthrun/berth/internal/engine"
	"github.com/berthrun/berth/internal/engine/meter"
	"github.com/berthrun/berth/internal/sys/cgroup"
)

// TestListSeesAStart: an engine lists a container that it is starting as created, and answers an
// inspect of it once it has started it.
func TestListSeesAStart(t *testing.T) {
	for listed, then := range map[container.ContainerState]struct {
		status container.ContainerState
		want   engine.State
	}{
		container.StateCreated: {container.StateRunning, engine.StateRunning},
		container.StateRunning: {container.StateExited, engine.StateStopped},
	} {
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Api-Version", "1.41")
			if strings.HasSuffix(r.URL.Path, "/json") {
				_ = json.NewEncoder(w).Encode(container.InspectResponse{ // the client reports a fault
					ID: "x", State: &container.State{Status: then.status, Running: then.status == container.StateRunning}, Config: &container.Config{},
					HostConfig: &container.HostConfig{},
				})
			}
		}))
		defer server.Close()
		client, err := api.New(api.Options{Endpoint: "tcp://" + strings.TrimPrefix(server.URL, "http://")})
		if err != nil {
			t.Fatal(err)
		}
		defer client.Close()
		tree, err := cgroup.Find()
		if err != nil {
			t.Fatal(err)
		}
		e := &Engine{client: client, log: slog.New(slog.DiscardHandler), tree: tree, objects: newObjects(client, "test", tree, slog.New(slog.DiscardHandler))}
		e.meter = meter.New(tree, writable{e.objects}, 0)
		defer e.meter.Close()
		e.objects.put("id", object{engineID: "x"})
		got, err := e.actualOf(t.Context(), "id", &container.Summary{ID: "x", State: listed})
		if err != nil || got.State != then.want {
			t.Errorf("listed as %s, then %s: %v, %v", listed, then.status, got, err)
		}
	}
}
