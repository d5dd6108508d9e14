// Package fakeengine serves the Docker Engine API on a unix socket as a script says, for tests of
// what berth does over an engine that misbehaves.
//
// It has no containers and no images. It answers what berth calls when it starts, refuses
// versions of the API as an engine does, and names itself in each answer. All else is the
// script's.
package fakeengine

import (
	"bytes"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/moby/moby/api/types/common"
)

// Script is how an engine behaves.
type Script struct {
	// Version is the engine's own, "20.10.24" if empty. APIVersion and MinAPIVersion are the
	// newest and the oldest version of the API that it takes, "1.41" and "1.12" if empty.
	Version, APIVersion, MinAPIVersion string
	// Components are the names of its parts, such as "Engine".
	Components []string
	// CgroupDriver is "cgroupfs" if empty.
	CgroupDriver string
	// Answers replace the engine's own answers, by method and path without the version of the
	// API: "GET /info". The key "*" is of all others.
	Answers map[string]http.HandlerFunc
}

// Engine is a running engine.
type Engine struct {
	// Endpoint is its address, such as "unix:///tmp/.../docker.sock".
	Endpoint string

	mu     sync.Mutex
	script Script
	calls  []string
}

// Start starts an engine, which ends with the test.
func Start(t testing.TB, script Script) *Engine {
	t.Helper()
	socket := Socket(t)
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	e := &Engine{Endpoint: "unix://" + socket, script: script}
	server := &http.Server{Handler: e, ReadHeaderTimeout: time.Minute}
	served := make(chan struct{})
	go func() {
		defer close(served)
		_ = server.Serve(listener) // it ends with Close
	}()
	t.Cleanup(func() {
		_ = server.Close() // its connections are of the test
		<-served
	})
	return e
}

// StartRaw listens as an engine does, and calls serve with each connection, which it closes
// afterwards. It returns the endpoint.
func StartRaw(t testing.TB, serve func(net.Conn)) string {
	t.Helper()
	socket := Socket(t)
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	var served sync.WaitGroup
	served.Go(func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return // closed
			}
			served.Go(func() {
				defer conn.Close()
				serve(conn)
			})
		}
	})
	t.Cleanup(func() {
		listener.Close()
		served.Wait()
	})
	return "unix://" + socket
}

// Socket is a path for a socket. A test's own directory may have a longer name than sockets can
// have.
func Socket(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "fakeengine")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	return filepath.Join(dir, "docker.sock")
}

// Replace makes the engine behave as another script says, as after an upgrade.
func (e *Engine) Replace(script Script) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.script = script
}

// Calls are the calls so far, such as "GET /v1.41/info", without those of /_ping.
func (e *Engine) Calls() []string {
	e.mu.Lock()
	defer e.mu.Unlock()
	return slices.Clone(e.calls)
}

var versioned = regexp.MustCompile(`^/v([0-9.]+)(/.*)$`)

// ServeHTTP answers one call.
func (e *Engine) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	// The server notices that a client leaves once it has read the request.
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return // the client is gone
	}
	r.Body = io.NopCloser(bytes.NewReader(body))
	e.mu.Lock()
	script := e.script
	if r.URL.Path != "/_ping" {
		e.calls = append(e.calls, r.Method+" "+r.URL.Path)
	}
	e.mu.Unlock()
	version, path := "", r.URL.Path
	if match := versioned.FindStringSubmatch(path); match != nil {
		version, path = match[1], match[2]
	}
	answer := script.Answers[r.Method+" "+path]
	if answer == nil {
		answer = script.Answers["*"]
	}
	w.Header().Set("Server", "Docker/"+script.version()+" (linux)")
	w.Header().Set("Api-Version", script.apiVersion())
	if refusal := script.refuse(version); refusal != "" {
		answer = Fail(http.StatusBadRequest, refusal)
	}
	if answer == nil {
		answer = script.own(r.Method, path)
	}
	answer(w, r)
}

// refuse returns the refusal of a version of the API, "" for none.
func (s *Script) refuse(version string) string {
	switch {
	case version == "":
		return ""
	case minor(version) > minor(s.apiVersion()):
		return fmt.Sprintf("client version %s is too new. Maximum supported API version is %s", version, s.apiVersion())
	case minor(version) < minor(s.minAPIVersion()):
		return fmt.Sprintf("client version %s is too old. Minimum supported API version is %s, please upgrade your client to a newer version", version, s.minAPIVersion())
	}
	return ""
}

// Fail answers with an error of the engine.
func Fail(status int, message string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		write(w, status, common.ErrorResponse{Message: message})
	}
}
