package execs

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/berthrun/berth/internal/docker/api"
	"github.com/berthrun/berth/internal/docker/fakeengine"
	"github.com/berthrun/berth/internal/engine"
	"github.com/berthrun/berth/internal/errs"
)

// recorded is an engine that answers to the inspections of a command in their order, the last
// answer again and again.
func recorded(t *testing.T, answers ...string) *api.Client {
	t.Helper()
	var next atomic.Int64
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		w.Header().Set("Api-Version", "1.41")
		if strings.Contains(r.URL.Path, "/exec/") {
			fmt.Fprint(w, answers[min(int(next.Add(1)), len(answers))-1])
		}
	}))
	t.Cleanup(server.Close)
	client, err := api.New(api.Options{Endpoint: "tcp://" + strings.TrimPrefix(server.URL, "http://")})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { client.Close() })
	return client
}

const (
	unborn   = `{"ID": "x", "Running": false, "ExitCode": null, "Pid": 0}`
	starting = `{"ID": "x", "Running": true, "ExitCode": null, "Pid": 0}`
	runs     = `{"ID": "x", "Running": true, "ExitCode": null, "Pid": 42}`
	done     = `{"ID": "x", "Running": false, "ExitCode": 0, "Pid": 42}`
	refused  = `{"ID": "x", "Running": false, "ExitCode": 127, "Pid": 0}`
)

// TestAwaitStart: a command that the engine has not started yet has not ended.
func TestAwaitStart(t *testing.T) {
	for name, c := range map[string]struct {
		answers []string
		closed  bool
		pid     int
		running bool
		err     error
	}{
		"it starts later":             {answers: []string{unborn, unborn, starting, runs}, pid: 42, running: true},
		"it has ended":                {answers: []string{unborn, done}, pid: 42},
		"it cannot be executed":       {answers: []string{unborn, starting, refused}},
		"the session ended before it": {answers: []string{unborn}, closed: true, err: errs.Unavailable},
		"the engine is starting it":   {answers: []string{starting, runs}, closed: true, pid: 42, running: true},
	} {
		t.Run(name, func(t *testing.T) {
			x := &execution{in: &Container{Client: recorded(t, c.answers...)}, id: "x"}
			closed := make(chan struct{})
			if c.closed {
				close(closed)
			}
			got, err := x.awaitStart(t.Context(), closed)
			if got.PID != c.pid || got.Running != c.running || !errors.Is(err, c.err) {
				t.Errorf("%+v, %v", got, err)
			}
		})
	}
	ctx, stop := context.WithCancel(t.Context())
	stop()
	x := &execution{in: &Container{Client: recorded(t, unborn)}, id: "x"}
	if _, err := x.awaitStart(ctx, nil); !errors.Is(err, context.Canceled) {
		t.Errorf("a client that leaves: %v", err)
	}
}

// TestBeginningPassesAllOn: io.Copy uses each method that a destination has.
func TestBeginningPassesAllOn(t *testing.T) {
	var to strings.Builder
	b := &beginning{to: &to}
	text := strings.Repeat("0123456789", maxBeginning)
	if n, err := io.Copy(b, strings.NewReader(text)); n != int64(len(text)) || err != nil || to.String() != text {
		t.Errorf("%d bytes of %d passed on, %v", to.Len(), n, err)
	}
	if b.kept.String() != text[:maxBeginning] {
		t.Errorf("%d bytes kept", b.kept.Len())
	}
}

// TestNotExecuted: a runtime executes nothing in a container that has ended, also while the engine has not
// noticed the end. Otherwise the command is at fault.
func TestNotExecuted(t *testing.T) {
	zombie := exec.Command("true")
	if err := zombie.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := zombie.Wait(); err != nil {
			t.Error(err)
		}
	}()
	for !hasEnded(zombie.Process.Pid) {
		time.Sleep(time.Millisecond) // it has no event but the Wait that must not come yet
	}
	for name, c := range map[string]struct {
		state string
		kind  error
	}{
		"it runs":                   {fmt.Sprintf(`{"Running": true, "Pid": %d}`, os.Getpid()), errs.Invalid},
		"it has ended":              {`{"Running": false, "Pid": 0}`, errs.State},
		"the end was not noticed":   {fmt.Sprintf(`{"Running": true, "Pid": %d}`, zombie.Process.Pid), errs.State},
		"the process is gone":       {`{"Running": true, "Pid": 4194305}`, errs.State}, // more than pid_max can be
		"the engine does not know":  {`null`, errs.Invalid},
		"it is paused, and it runs": {fmt.Sprintf(`{"Running": true, "Paused": true, "Pid": %d}`, os.Getpid()), errs.Invalid},
	} {
		t.Run(name, func(t *testing.T) {
			fake := fakeengine.Start(t, fakeengine.Script{Answers: map[string]http.HandlerFunc{
				"GET /containers/c/json": fakeengine.Text(`{"Id": "c", "State": ` + c.state + `}`),
			}})
			client, err := api.New(api.Options{Endpoint: fake.Endpoint})
			if err != nil {
				t.Fatal(err)
			}
			defer client.Close()
			x := &execution{in: &Container{Client: client, EngineID: "c"}, output: &beginning{}}
			if err := x.notExecuted(t.Context()); !errors.Is(err, c.kind) {
				t.Errorf("%v, want %v", err, c.kind)
			}
		})
	}
}

// TestStartThatFails: Docker 20.10 answers to the start of a command in a container that ends at this
// moment with status 500 and no more. The command is not at fault then, and berth is not.
func TestStartThatFails(t *testing.T) {
	for name, c := range map[string]struct {
		pid   int
		ended bool
	}{"it runs": {os.Getpid(), false}, "it ends": {4194305, true}} { // more than pid_max can be
		t.Run(name, func(t *testing.T) {
			fake := fakeengine.Start(t, fakeengine.Script{Answers: map[string]http.HandlerFunc{
				"POST /containers/c/exec": fakeengine.JSON(map[string]string{"Id": "x"}),
				"POST /exec/x/start":      fakeengine.Fail(http.StatusInternalServerError, "cannot exec in a stopped container"),
				"GET /containers/c/json":  fakeengine.Text(fmt.Sprintf(`{"Id": "c", "State": {"Running": true, "Pid": %d}}`, c.pid)),
			}})
			client, err := api.New(api.Options{Endpoint: fake.Endpoint})
			if err != nil {
				t.Fatal(err)
			}
			defer client.Close()
			in := &Container{Client: client, EngineID: "c"}
			_, err = in.Exec(t.Context(), &engine.ExecSpec{Command: []string{"true"}})
			if err == nil || errors.Is(err, errs.State) != c.ended {
				t.Errorf("%v", err)
			}
		})
	}
}
