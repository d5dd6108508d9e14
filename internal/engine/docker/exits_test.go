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
// the client to them, and it reports the end of a container before it lists it as exited. The exit of a
// container that was listed as running is delivered.
func TestAnEndWhileBerthSubscribes(t *testing.T) {
	const ended = `"Status": "exited", "ExitCode": 137, "StartedAt": "2026-01-01T10:00:00Z", "FinishedAt": "2026-01-01T10:00:09Z"`
	for name, c := range map[string]struct {
		before  time.Duration // how long before the subscription
		state   string
		deliver bool
	}{
		"after it was listed":                       {0, ended, true},
		"before, and the list is behind":            {time.Second, ended, true},
		"of an attempt to start it, and it runs":    {time.Second, `"Status": "running", "Running": true, "StartedAt": "` + time.Now().Format(time.RFC3339Nano) + `"`, false},
		"long ago: it would be listed as it is now": {time.Hour, ended, false},
	} {
		t.Run(name, func(t *testing.T) { testAnEnd(t, c.before, c.state, c.deliver) })
	}
}

func testAnEnd(t *testing.T, before time.Duration, state string, deliver bool) {
	listed, read, killed := make(chan struct{}, 1), make(chan struct{}, 1), make(chan struct{}, 1)
	fake := fakeengine.Start(t, fakeengine.Script{Answers: map[string]http.HandlerFunc{
		"GET /events": func(w http.ResponseWriter, r *http.Request) {
			died := time.Now().Add(-before)
			w.WriteHeader(http.StatusOK)
			w.(http.Flusher).Flush()
			select {
			case <-listed:
			case <-r.Context().Done():
				return
			}
			if before == 0 {
				died = time.Now()
			}
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
		"GET /containers/x/json": func(w http.ResponseWriter, r *http.Request) {
			fakeengine.Text(`{"Id": "x", "Config": {}, "HostConfig": {}, "State": {`+state+`}}`)(w, r)
			select {
			case read <- struct{}{}:
			default:
			}
		},
		"POST /containers/x/kill": func(w http.ResponseWriter, _ *http.Request) {
			killed <- struct{}{}
			w.WriteHeader(http.StatusNoContent)
		},
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
	if deliver {
		select {
		case exit := <-exits:
			if exit.ContainerID != "c" || exit.Code != 137 || exit.Reason != "" {
				t.Errorf("%+v", exit)
			}
		case <-time.After(10 * time.Second):
			t.Error("no exit was delivered")
		}
	} else if before < replayed {
		<-read // what was decided of the event
	}
	stop()
	for exit := range exits {
		t.Errorf("an exit too many: %+v", exit)
	}
	if len(killed) > 0 {
		t.Error("the container was killed")
	}
}
