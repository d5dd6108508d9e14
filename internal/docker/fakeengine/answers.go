package fakeengine

import (
	"cmp"
	"encoding/json"
	"net/http"
	"strconv"
	"strings"

	"github.com/moby/moby/api/types/system"
)

func (s *Script) version() string { return cmp.Or(s.Version, "20.10.24") }

func (s *Script) apiVersion() string { return cmp.Or(s.APIVersion, "1.41") }

func (s *Script) minAPIVersion() string { return cmp.Or(s.MinAPIVersion, "1.12") }

// minor is the second number of a version: the first is 1.
func minor(version string) int {
	_, text, _ := strings.Cut(version, ".")
	text, _, _ = strings.Cut(text, ".")
	n, err := strconv.Atoi(text)
	if err != nil {
		return 0
	}
	return n
}

// own is the engine's own answer.
func (s *Script) own(method, path string) http.HandlerFunc {
	switch method + " " + path {
	case "HEAD /_ping", "GET /_ping":
		return Text("OK")
	case "GET /version":
		answer := system.VersionResponse{
			Version: s.version(), APIVersion: s.apiVersion(), MinAPIVersion: s.minAPIVersion(),
		}
		for _, name := range s.Components {
			answer.Components = append(answer.Components, system.ComponentVersion{Name: name})
		}
		return JSON(answer)
	case "GET /info":
		return JSON(system.Info{
			ServerVersion: s.version(), CgroupDriver: cmp.Or(s.CgroupDriver, "cgroupfs"), CgroupVersion: "1",
			LoggingDriver: "json-file", Driver: "overlay2", DockerRootDir: "/var/lib/docker",
		})
	case "GET /containers/json", "GET /images/json":
		return JSON([]string{})
	case "GET /events":
		return Hang("")
	}
	return Fail(http.StatusNotFound, "page not found")
}

// JSON answers with a value.
func JSON(value any) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) { write(w, http.StatusOK, value) }
}

func write(w http.ResponseWriter, status int, value any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(value) // the client may be gone
}

// Text answers with a text, which need not be what an engine sends.
func Text(text string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		_, _ = w.Write([]byte(text)) // the client may be gone
	}
}

// CutOff sends the beginning of an answer and closes the connection.
func CutOff(beginning string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		send(w, beginning)
		panic(http.ErrAbortHandler)
	}
}

// Hang sends the beginning of an answer, at least its status, and nothing more until the client
// leaves.
func Hang(beginning string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		send(w, beginning)
		<-r.Context().Done()
	}
}

// Silent never answers.
func Silent(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }

func send(w http.ResponseWriter, text string) {
	w.WriteHeader(http.StatusOK)
	_, _ = w.Write([]byte(text)) // the client may be gone
	if f, ok := w.(http.Flusher); ok {
		f.Flush()
	}
}
