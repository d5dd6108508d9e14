//go:build integration

package integration

import (
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/berthrun/berth/internal/docker/fakeengine"
)

// TestStartOverABadDockerEngine: berth does not start over what is not a Docker engine, or not one
// that it can use. It logs one error with the endpoint, the reason and what to do, waits no longer
// than the deadline of a call, and leaves nothing.
func TestStartOverABadDockerEngine(t *testing.T) {
	n := newFreshHost(t)
	config := filepath.Join(n.Dir, "docker.toml")
	if err := os.WriteFile(config, []byte("[docker]\ntimeout = \"1s\"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	scripted := func(script fakeengine.Script) func(*testing.T) string {
		return func(t *testing.T) string { return fakeengine.Start(t, script).Endpoint }
	}
	at := func(call string, answer http.HandlerFunc) func(*testing.T) string {
		return scripted(fakeengine.Script{Answers: map[string]http.HandlerFunc{call: answer}})
	}
	for name, c := range map[string]struct {
		engine func(t *testing.T) (endpoint string)
		words  []string
	}{
		"absent": {
			func(t *testing.T) string { return "unix://" + fakeengine.Socket(t) },
			[]string{"there is no socket", "start the engine"},
		},
		"a file": {func(t *testing.T) string {
			path := fakeengine.Socket(t)
			if err := os.WriteFile(path, nil, 0o600); err != nil {
				t.Fatal(err)
			}
			return "unix://" + path
		}, []string{"it is a regular file, not a socket", "docker.endpoint"}},
		"another protocol": {func(t *testing.T) string {
			return fakeengine.StartRaw(t, func(conn net.Conn) {
				_, _ = io.WriteString(conn, "SSH-2.0-OpenSSH_9.2p1\r\n")
				_, _ = io.Copy(io.Discard, conn)
			})
		}, []string{"does not answer as a Docker engine", "docker.endpoint"}},
		"hangs at once": {func(t *testing.T) string {
			return fakeengine.StartRaw(t, func(conn net.Conn) { _, _ = io.Copy(io.Discard, conn) })
		}, []string{"has not answered within 1s"}},
		"hangs in a call":     {at("GET /info", fakeengine.Silent), []string{"docker info", "has not answered within 1s"}},
		"garbage":             {at("GET /info", fakeengine.Text("<html>")), []string{"docker info", "cannot be read"}},
		"closes mid-stream":   {at("GET /version", fakeengine.CutOff(`{"Version":`)), []string{"docker version", "closed the connection"}},
		"too old":             {scripted(fakeengine.Script{APIVersion: "1.39"}), []string{"version 1.39", "1.40 or later", "upgrade the engine"}},
		"too new":             {scripted(fakeengine.Script{APIVersion: "1.99", MinAPIVersion: "1.90"}), []string{"version 1.99", "upgrade berth"}},
		"fails":               {at("GET /info", fakeengine.Fail(http.StatusInternalServerError, "no space left on device")), []string{"no space left on device"}},
		"conflict":            {at("GET /info", fakeengine.Fail(http.StatusConflict, "the engine is busy")), []string{"the engine is busy"}},
		"fails after facts":   {at("GET /containers/json", fakeengine.Fail(http.StatusInternalServerError, "database is damaged")), []string{"database is damaged"}},
		"garbage after facts": {at("GET /containers/json", fakeengine.Text("[1, 2]")), []string{"docker list containers", "cannot be read"}},
		"hangs after facts":   {at("GET /containers/json", fakeengine.Silent), []string{"docker list containers", "has not answered within 1s"}},
	} {
		t.Run(name, func(t *testing.T) {
			endpoint := c.engine(t)
			r := n.run(n.berth(), n.places("--config", config, "--engine", "docker", "--docker-endpoint", endpoint)...)
			n.refused(t, r, c.words...)
			if !strings.Contains(r.out, endpoint) && !strings.Contains(name, "fails") && name != "conflict" {
				t.Errorf("it does not name %s:\n%s", endpoint, r.out)
			}
			if strings.Count(r.out, "\nberth: ") != 1 || strings.Contains(r.out, "level=ERROR") || strings.Contains(r.out, "level=WARN") {
				t.Errorf("want one error:\n%s", r.out)
			}
		})
	}
}
