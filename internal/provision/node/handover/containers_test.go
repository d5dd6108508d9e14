package handover

import (
	"errors"
	"fmt"
	"net"
	"net/http"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/berthrun/berth/internal/errs"
)

// serveDocker answers on a socket like an engine. The paths that answer gets have no version.
func serveDocker(t *testing.T, answer http.HandlerFunc) Containers {
	t.Helper()
	socket := filepath.Join(t.TempDir(), "s")
	listener, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	version := regexp.MustCompile(`^/v\d+\.\d+/`)
	server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		r.URL.Path = version.ReplaceAllString(r.URL.Path, "/")
		w.Header().Set("Api-Version", "1.41")
		answer(w, r)
	})}
	go server.Serve(listener)
	t.Cleanup(func() { server.Close() })
	return Containers{Socket: socket}
}

func TestContainers(t *testing.T) {
	var asked []string
	engine := serveDocker(t, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/_ping" {
			asked = append(asked, r.Method+" "+r.URL.Path)
		}
		switch r.URL.Path {
		case "/_ping":
		case "/containers/json":
			fmt.Fprint(w, `[{"Id": "0123456789abcdef", "Names": ["/web"]},
				{"Id": "fedcba9876543210", "Labels": {"io.kubernetes.docker.type": "container"}}]`)
		case "/containers/0123456789abcdef/stop":
			w.WriteHeader(http.StatusNotModified)
		case "/containers/fedcba9876543210/stop":
			w.WriteHeader(http.StatusNotFound)
			fmt.Fprint(w, `{"message": "no such container"}`)
		default:
			w.WriteHeader(http.StatusInternalServerError)
			fmt.Fprint(w, `{"message": "no power"}`)
		}
	})
	list, err := engine.Running(t.Context())
	want := []Container{{ID: "0123456789abcdef", Name: "web"}, {ID: "fedcba9876543210", Name: "fedcba987654", OfPod: true}}
	if diff := cmp.Diff(want, list); err != nil || diff != "" {
		t.Errorf("%v %s", err, diff)
	}
	if err := engine.Stop(t.Context(), list); err != nil {
		t.Errorf("those that have stopped: %v", err)
	}
	err = engine.Start(t.Context(), list)
	if err == nil || strings.Count(err.Error(), "no power") != 2 || !strings.Contains(err.Error(), "container web") {
		t.Errorf("those that do not start: %v", err)
	}
	if n := len(asked); n != 5 {
		t.Errorf("asked %v", asked)
	}
}

func TestNoDockerAnswers(t *testing.T) {
	engine := Containers{Socket: filepath.Join(t.TempDir(), "none")}
	if _, err := engine.Running(t.Context()); !errors.Is(err, errs.Unavailable) {
		t.Errorf("%v, want Unavailable", err)
	}
}
