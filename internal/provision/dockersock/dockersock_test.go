package dockersock_test

import (
	"errors"
	"fmt"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/provision/dockersock"
)

// serve answers on a socket like an engine.
func serve(t *testing.T, handler http.HandlerFunc) *dockersock.Client {
	t.Helper()
	socket := filepath.Join(t.TempDir(), "s")
	listener, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	server := &http.Server{Handler: handler}
	go server.Serve(listener)
	t.Cleanup(func() { server.Close() })
	e := dockersock.New(socket)
	t.Cleanup(e.Close)
	return e
}

func TestContainers(t *testing.T) {
	var asked []string
	e := serve(t, func(w http.ResponseWriter, r *http.Request) {
		asked = append(asked, r.Method+" "+r.URL.Path)
		switch r.URL.Path {
		case "/_ping":
		case "/containers/json":
			fmt.Fprint(w, `[{"Id": "0123456789abcdef", "Names": ["/web"]}, {"Id": "fedcba9876543210"}]`)
		case "/containers/0123456789abcdef/stop":
			w.WriteHeader(http.StatusNotModified)
		case "/containers/fedcba9876543210/stop":
			w.WriteHeader(http.StatusNotFound)
		default:
			w.WriteHeader(http.StatusInternalServerError)
			fmt.Fprint(w, `{"message": "no power"}`)
		}
	})
	if err := e.Ping(t.Context()); err != nil {
		t.Fatal(err)
	}
	list, err := e.Running(t.Context())
	want := []dockersock.Container{{ID: "0123456789abcdef", Name: "web"}, {ID: "fedcba9876543210", Name: "fedcba987654"}}
	if diff := cmp.Diff(want, list); err != nil || diff != "" {
		t.Errorf("%v %s", err, diff)
	}
	if err := e.Each(t.Context(), dockersock.Stop, list); err != nil {
		t.Errorf("those that have stopped: %v", err)
	}
	err = e.Each(t.Context(), dockersock.Start, list)
	if !errors.Is(err, errs.Unavailable) || strings.Count(err.Error(), "no power") != 2 || !strings.Contains(err.Error(), "container web") {
		t.Errorf("those that do not start: %v", err)
	}
	if n := len(asked); n != 6 {
		t.Errorf("asked %v", asked)
	}
}

func TestNobodyAnswers(t *testing.T) {
	e := dockersock.New(filepath.Join(t.TempDir(), "none"))
	defer e.Close()
	if _, err := e.Running(t.Context()); !errors.Is(err, errs.Unavailable) {
		t.Errorf("%v, want Unavailable", err)
	}
}
