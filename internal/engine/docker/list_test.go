package docker

import (
	"encoding/json"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/moby/moby/api/types/container"

	"github.com/berthrun/berth/internal/docker/api"
	"github.com/berthrun/berth/internal/docker/fakeengine"
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

// TestListOfALostContainer: of a container that the engine does not have any more, its directory may be
// left. It is listed, to be removed, and has gone: nothing waits for its exit.
func TestListOfALostContainer(t *testing.T) {
	fake := fakeengine.Start(t, fakeengine.Script{Answers: map[string]http.HandlerFunc{"GET /containers/json": fakeengine.Text("[]")}})
	client, err := api.New(api.Options{Endpoint: fake.Endpoint})
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	e := &Engine{
		client: client, cfg: Config{StateDir: t.TempDir(), NetNSDir: t.TempDir(), Instance: "test"},
		objects: newObjects(client, "test", nil, slog.New(slog.DiscardHandler)),
	}
	for _, dir := range []string{e.containerDir("lost"), e.sandboxPaths("pod").dir} {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	got, err := e.List(t.Context())
	want := []engine.Actual{
		{Kind: engine.KindContainer, ID: "lost", State: engine.StateGone}, {Kind: engine.KindSandbox, ID: "pod", State: engine.StateBroken},
	}
	if err != nil || !slices.Equal(got, want) {
		t.Errorf("%v, %v; want %v", got, err, want)
	}
}
