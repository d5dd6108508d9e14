package docker

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/moby/moby/api/types/events"
	mobyclient "github.com/moby/moby/client"

	"github.com/berthrun/berth/internal/docker/api"
	"github.com/berthrun/berth/internal/docker/fakeengine"
	"github.com/berthrun/berth/internal/engine"
	"github.com/berthrun/berth/internal/engine/docker/endings"
)

// TestAnEndDuringAStart: an engine reports the end of an attempt that failed. It is not the container's,
// whose own end is delivered once.
func TestAnEndDuringAStart(t *testing.T) {
	const engineID, early, middle, late = "x", "2026-01-01T10:00:00Z", "2026-01-01T10:00:05Z", "2026-01-01T10:00:09Z"
	const runs = `{"Status": "running", "Running": true, "StartedAt": "` + middle + `"}`
	const ended = `{"Status": "exited", "ExitCode": 7, "StartedAt": "` + middle + `", "FinishedAt": "` + late + `"}`
	for name, c := range map[string]struct {
		during []string // the times of ends during each attempt
		after  string   // the state after the start
		later  string   // the time of an end after it
		unread string   // the time of an end that the state after the start does not have yet
	}{
		"a failed attempt, then it runs":          {[]string{early, ""}, runs, late, ""},
		"a failed attempt, reported late":         {[]string{"", early}, runs, late, ""},
		"it ends while its state is read":         {[]string{""}, runs, "", late},
		"it ends at once":                         {[]string{late}, ended, "", ""},
		"a failed attempt, then it ends at once":  {[]string{early, late}, ended, "", ""},
		"a failed attempt, its own end is slower": {[]string{"", early}, ended, late, ""},
	} {
		t.Run(name, func(t *testing.T) {
			messages, calls := make(chan events.Message), make(chan string, 100)
			send := func(action events.Action, at string) {
				messages <- events.Message{Action: action, TimeNano: mustTime(t, at).UnixNano(), Actor: events.Actor{ID: engineID, Attributes: map[string]string{"exitCode": "7"}}}
				messages <- events.Message{} // it is taken once the other was handled
			}
			var state atomic.Value
			state.Store(c.after)
			attempt := 0
			fake := fakeengine.Start(t, fakeengine.Script{Answers: map[string]http.HandlerFunc{
				"POST /containers/x/start": func(w http.ResponseWriter, _ *http.Request) {
					if at := c.during[attempt]; at != "" {
						send(events.ActionDie, at)
					}
					if attempt++; attempt < len(c.during) {
						fakeengine.Fail(http.StatusConflict, "task x: already exists")(w, nil)
						return
					}
					send(events.ActionStart, middle)
					w.WriteHeader(http.StatusNoContent)
				},
				"GET /containers/x/json": func(w http.ResponseWriter, r *http.Request) {
					read := state.Load()
					if c.unread != "" && state.CompareAndSwap(runs, ended) {
						send(events.ActionDie, c.unread)
					}
					fakeengine.Text(fmt.Sprintf(`{"Id": "x", "Config": {}, "HostConfig": {}, "State": %s}`, read))(w, r)
				},
				"POST /containers/x/kill": func(w http.ResponseWriter, _ *http.Request) {
					calls <- "kill"
					w.WriteHeader(http.StatusNoContent)
				},
			}})
			client, err := api.New(api.Options{Endpoint: fake.Endpoint})
			if err != nil {
				t.Fatal(err)
			}
			defer client.Close()
			e := &Engine{client: client, log: slog.New(slog.DiscardHandler), objects: newObjects(client, "test", nil, slog.New(slog.DiscardHandler)), unstarted: endings.NewUnstarted()}
			obj := object{engineID: engineID, sandbox: true, fate: &fate{}}
			e.objects.put("c", obj)
			ctx, stop := context.WithCancel(t.Context())
			l := &exitListener{engine: e, ctx: ctx, end: stop, to: make(chan engine.Exit), ends: make(chan end)}
			e.listener.Store(l)
			go l.run(mobyclient.EventsResult{Messages: messages, Err: make(chan error)}, nil, nil)
			if _, err := e.startOnce(ctx, "c", obj); err != nil {
				t.Fatal(err)
			}
			if c.later != "" {
				state.Store(ended)
				send(events.ActionDie, c.later)
			}
			exit := <-l.to
			if want := (engine.Exit{ContainerID: "c", Code: 7, At: exit.At}); exit != want || !exit.At.After(mustTime(t, middle)) {
				t.Errorf("%+v", exit)
			}
			stop()
			for exit := range l.to {
				t.Errorf("a second exit: %+v", exit)
			}
			if len(calls) > 0 {
				t.Error("the container was killed")
			}
		})
	}
}

func mustTime(t *testing.T, text string) time.Time {
	t.Helper()
	moment, err := time.Parse(time.RFC3339, text)
	if err != nil {
		t.Fatal(err)
	}
	return moment
}

// TestStartAfterAnOutage: an engine that was killed during a start refuses the next one, which
// makes it remove what is left. Other failed starts are not repeated.
func TestStartAfterAnOutage(t *testing.T) {
	for name, c := range map[string]struct {
		answers []int
		away    time.Time
		starts  int
		works   bool
	}{
		"it works":                        {[]int{204}, time.Now(), 1, true},
		"a conflict":                      {[]int{409, 204}, time.Time{}, 2, true},
		"a failure after an outage":       {[]int{500, 204}, time.Now(), 2, true},
		"two failures after an outage":    {[]int{500, 500, 204}, time.Now(), 2, false},
		"a failure long after an outage":  {[]int{500, 204}, time.Now().Add(-time.Hour), 1, false},
		"a program that is not there":     {[]int{400, 204}, time.Now(), 1, false},
		"a container that does not exist": {[]int{404, 204}, time.Now(), 1, false},
	} {
		t.Run(name, func(t *testing.T) {
			starts := 0
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				w.Header().Set("Api-Version", "1.41")
				if strings.HasSuffix(r.URL.Path, "/start") {
					w.WriteHeader(c.answers[starts])
					if starts++; c.answers[starts-1] != http.StatusNoContent {
						fmt.Fprint(w, `{"message": "task x: already exists"}`)
					}
				}
			}))
			defer server.Close()
			client, err := api.New(api.Options{Endpoint: "tcp://" + strings.TrimPrefix(server.URL, "http://")})
			if err != nil {
				t.Fatal(err)
			}
			defer client.Close()
			e := &Engine{client: client, log: slog.New(slog.DiscardHandler)}
			e.subscribedAt.Store(c.away.UnixNano())
			if err := e.start(t.Context(), object{engineID: "x", fate: &fate{}}); (err == nil) != c.works || starts != c.starts {
				t.Errorf("%d starts, %v", starts, err)
			}
		})
	}
}
