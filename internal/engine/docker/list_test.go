package docker

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/moby/moby/api/types/container"

	"github.com/berthrun/berth/internal/docker/api"
	"github.com/berthrun/berth/internal/docker/fakeengine"
	"github.com/berthrun/berth/internal/engine"
	"github.com/berthrun/berth/internal/engine/docker/labels"
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
		e := engineOver(t, api.Options{Endpoint: "tcp://" + strings.TrimPrefix(server.URL, "http://")})
		e.objects.put("id", object{engineID: "x"})
		got, err := e.actualOf(t.Context(), "id", &container.Summary{ID: "x", State: listed})
		if err != nil || got.State != then.want {
			t.Errorf("listed as %s, then %s: %v, %v", listed, then.status, got, err)
		}
	}
}

// TestListWithAContainerThatHangs: an engine that starts a container from a dead volume answers no inspect of
// it. The others are listed. With another name it may be another program's, and berth does not know it afterwards either.
func TestListWithAContainerThatHangs(t *testing.T) {
	fake := fakeengine.Start(t, fakeengine.Script{Answers: map[string]http.HandlerFunc{
		"GET /containers/json": fakeengine.Text(`[` +
			`{"Id": "x", "State": "running", "Labels": {"` + labels.Instance + `": "test", "` + labels.ID + `": "c1"}},` +
			`{"Id": "y", "State": "created", "Labels": {"` + labels.Instance + `": "test", "` + labels.ID + `": "c2"}},` +
			`{"Id": "z", "Names": ["/renamed"], "State": "created", "Labels": {"` + labels.Instance + `": "test", "` + labels.ID + `": "c3"}}]`),
		"GET /containers/x/json": fakeengine.Text(`{"Id": "x", "Config": {}, "HostConfig": {}, "State": {"Status": "running", "Running": true}}`),
		"GET /containers/y/json": fakeengine.Silent,
		"GET /containers/z/json": fakeengine.Silent,
	}})
	e := engineOver(t, api.Options{Endpoint: fake.Endpoint, Timeout: 500 * time.Millisecond})
	e.objects.put("c1", object{engineID: "x"})
	e.objects.put("c2", object{engineID: "y"})
	got, err := e.List(t.Context())
	want := []engine.Actual{
		{Kind: engine.KindContainer, ID: "c1", State: engine.StateRunning},
		{Kind: engine.KindContainer, ID: "c2", State: engine.StateUnknown},
		{Kind: engine.KindContainer, ID: "c3", State: engine.StateUnknown},
	}
	if err != nil || !slices.Equal(got, want) {
		t.Errorf("%v, %v; want %v", got, err, want)
	}
	if _, known := e.objects.cached("c3"); known {
		t.Error("a container that may be another program's is known")
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if got, err := e.List(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("a list that was cancelled: %v, %v", got, err)
	}
}

// TestStatsWithAContainerThatHangs: figures wait for no container whose process is not known, also while the
// engine is away.
func TestStatsWithAContainerThatHangs(t *testing.T) {
	fake := fakeengine.Start(t, fakeengine.Script{Answers: map[string]http.HandlerFunc{"*": fakeengine.Silent}})
	e := engineOver(t, api.Options{Endpoint: fake.Endpoint, Timeout: time.Minute})
	own, err := e.tree.OfProcess(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	e.objects.put("runs", object{engineID: "x", pid: os.Getpid(), cgroups: own})
	e.objects.put("hangs", object{engineID: "y"})
	ids := []string{"hangs", "runs", "unknown"}
	if _, err := e.Stats(t.Context(), ids); err != nil {
		t.Errorf("Stats: %v", err)
	}
	if _, err := e.Figures(t.Context(), nil, ids); err != nil {
		t.Errorf("Figures: %v", err)
	}
	if targets := e.containerTargets(ids); len(targets) != 1 || len(targets["runs"].Cgroups) == 0 {
		t.Errorf("figures are read of %v", targets)
	}
}

// TestStatsFindAProcess: the process of a container was not found when it started. The first figures have it looked for, and do not
// wait for that; the next ones do not look again at once.
func TestStatsFindAProcess(t *testing.T) {
	looked := make(chan struct{}, 2)
	fake := fakeengine.Start(t, fakeengine.Script{Answers: map[string]http.HandlerFunc{
		"GET /containers/x/json": func(w http.ResponseWriter, r *http.Request) {
			looked <- struct{}{}
			fakeengine.Silent(w, r)
		},
	}})
	e := engineOver(t, api.Options{Endpoint: fake.Endpoint, Timeout: 500 * time.Millisecond})
	e.objects.put("c", object{engineID: "x"})
	for range 2 {
		if _, err := e.Stats(t.Context(), []string{"c"}); err != nil {
			t.Error(err)
		}
	}
	<-looked
	select {
	case <-looked:
		t.Error("looked for twice")
	case <-time.After(100 * time.Millisecond):
	}
}

// TestStartedOfAForgottenContainer: a list or an exec that has read a container before its removal does not
// bring it back.
func TestStartedOfAForgottenContainer(t *testing.T) {
	e := engineOver(t, api.Options{Endpoint: fakeengine.Start(t, fakeengine.Script{}).Endpoint})
	got := &container.InspectResponse{ID: "x", State: &container.State{Running: true}, Config: &container.Config{Tty: true}, HostConfig: &container.HostConfig{}}
	e.objects.put("c", object{engineID: "x"})
	read, _ := e.objects.cached("c")
	if obj := e.objects.started("c", got); obj.engineID != "x" || !obj.tty || obj.fate != read.fate {
		t.Errorf("started: %+v", obj)
	}
	if obj, _ := e.objects.cached("c"); !obj.tty {
		t.Errorf("cached: %+v", obj)
	}
	e.objects.forget("c")
	if obj := e.objects.started("c", got); obj.engineID != "x" {
		t.Errorf("started, after it was forgotten: %+v", obj)
	}
	if e.objects.update("c", read) {
		t.Error("a copy that was read before is kept")
	}
	if known := e.objects.known(); len(known) != 0 || e.objects.idOf("x") != "" {
		t.Errorf("kept of a container that was forgotten: %v", known)
	}
}

// engineOver returns an engine that lists and measures.
func engineOver(t *testing.T, opts api.Options) *Engine {
	t.Helper()
	client, err := api.New(opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { client.Close() })
	tree, err := cgroup.Find()
	if err != nil {
		t.Fatal(err)
	}
	log := slog.New(slog.DiscardHandler)
	e := &Engine{
		client: client, log: log, tree: tree, objects: newObjects(client, "test", tree, log),
		cfg: Config{StateDir: t.TempDir(), NetNSDir: t.TempDir(), Instance: "test"},
	}
	e.meter = meter.New(tree, writable{e.objects}, 0)
	t.Cleanup(e.meter.Close)
	return e
}

// TestListOfALostContainer: of a container that the engine does not have any more, its directory may be
// left. It is listed, to be removed, and has gone: nothing waits for its exit.
func TestListOfALostContainer(t *testing.T) {
	fake := fakeengine.Start(t, fakeengine.Script{Answers: map[string]http.HandlerFunc{"GET /containers/json": fakeengine.Text("[]")}})
	e := engineOver(t, api.Options{Endpoint: fake.Endpoint})
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
