package docker

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"strconv"
	"testing"
	"time"

	"github.com/berthrun/berth/internal/docker/api"
	"github.com/berthrun/berth/internal/docker/fakeengine"
	"github.com/berthrun/berth/internal/engine/docker/endings"
	"github.com/berthrun/berth/internal/engine/docker/labels"
	"github.com/berthrun/berth/internal/engine/docker/oomscore"
	"github.com/berthrun/berth/internal/sys/sysproc"
)

// TestAnEndWhileBerthSubscribes: an engine answers a request for its events before it has subscribed
// the client to them. A container ends in between, after it was listed as running. Its exit is
// delivered.
func TestAnEndWhileBerthSubscribes(t *testing.T) {
	listed := make(chan struct{}, 1)
	fake := fakeengine.Start(t, fakeengine.Script{Answers: map[string]http.HandlerFunc{
		"GET /events": func(w http.ResponseWriter, r *http.Request) {
			w.WriteHeader(http.StatusOK)
			w.(http.Flusher).Flush()
			select {
			case <-listed:
			case <-r.Context().Done():
				return
			}
			died := time.Now()
			// The engine has the events since a time for a client that names one.
			if since, err := strconv.ParseFloat(r.URL.Query().Get("since"), 64); err == nil && since <= float64(died.UnixNano())/1e9 {
				fmt.Fprintf(w, `{"Type": "container", "Action": "die", "timeNano": %d, "Actor": {"ID": "x", "Attributes": {"exitCode": "137"}}}`, died.UnixNano())
				w.(http.Flusher).Flush()
			}
			<-r.Context().Done()
		},
		"GET /containers/json": func(w http.ResponseWriter, r *http.Request) {
			fakeengine.Text(`[{"Id": "x", "State": "running", "Labels": {"`+labels.Instance+`": "test", "`+labels.ID+`": "c"}}]`)(w, r)
			listed <- struct{}{}
		},
		"GET /containers/x/json": fakeengine.Text(`{"Id": "x", "Config": {}, "HostConfig": {}, "State": {"Status": "exited", "ExitCode": 137,
			"StartedAt": "2026-01-01T10:00:00Z", "FinishedAt": "2026-01-01T10:00:09Z"}}`),
	}})
	client, err := api.New(api.Options{Endpoint: fake.Endpoint})
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	log := slog.New(slog.DiscardHandler)
	e := &Engine{
		client: client, log: log, objects: newObjects(client, "test", nil, log), unstarted: endings.NewUnstarted(),
		scores: oomscore.New(func(context.Context) (sysproc.OOMScoreLimit, error) { return sysproc.OOMScoreLimit{Lowers: true}, nil }, log),
	}
	e.objects.put("c", object{engineID: "x", sandbox: true, fate: &fate{}})
	ctx, stop := context.WithCancel(t.Context())
	exits, err := e.Exits(ctx)
	if err != nil {
		t.Fatal(err)
	}
	select {
	case exit := <-exits:
		if exit.ContainerID != "c" || exit.Code != 137 || exit.Reason != "" {
			t.Errorf("%+v", exit)
		}
	case <-time.After(5 * time.Second):
		t.Error("no exit was delivered")
	}
	stop()
	for exit := range exits {
		t.Errorf("a second exit: %+v", exit)
	}
}
