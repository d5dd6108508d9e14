package docker

import (
	"archive/tar"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"path"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/moby/moby/api/types/container"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berthrun/berth/internal/docker/api"
	"github.com/berthrun/berth/internal/docker/fakeengine"
	"github.com/berthrun/berth/internal/engine"
	"github.com/berthrun/berth/internal/engine/docker/oomscore"
	"github.com/berthrun/berth/internal/engine/docker/pause"
	"github.com/berthrun/berth/internal/engine/docker/translate"
	"github.com/berthrun/berth/internal/engine/seccomp"
	"github.com/berthrun/berth/internal/ocispec"
	"github.com/berthrun/berth/internal/sys/cgroup"
	"github.com/berthrun/berth/internal/sys/sysproc"
)

// pauseEngine is an engine that creates pause containers, and starts those that fail does not refuse. The
// id of a container is its oom_score_adj.
type pauseEngine struct {
	fail func(score int) http.HandlerFunc

	mu sync.Mutex
	// image is the id of the pause image once it was loaded. calls are those about containers.
	image string
	calls []string
}

func (p *pauseEngine) script() fakeengine.Script {
	return fakeengine.Script{Answers: map[string]http.HandlerFunc{"*": p.serve}}
}

func (p *pauseEngine) serve(w http.ResponseWriter, r *http.Request) {
	p.mu.Lock()
	defer p.mu.Unlock()
	_, call, _ := strings.Cut(strings.TrimPrefix(r.URL.Path, "/"), "/") // without the version of the API
	id := path.Base(path.Dir(r.URL.Path))
	switch {
	case call == "images/load":
		p.image = idIn(r.Body)
	case strings.HasPrefix(call, "images/") && p.image == "":
		fakeengine.Fail(http.StatusNotFound, "no such image")(w, r)
	case strings.HasPrefix(call, "images/"):
		fakeengine.JSON(map[string]string{"Id": p.image})(w, r)
	case call == "containers/create":
		var requested struct{ HostConfig container.HostConfig }
		_ = json.NewDecoder(r.Body).Decode(&requested) // an empty one is not what the test wants
		score := strconv.Itoa(requested.HostConfig.OomScoreAdj)
		p.calls = append(p.calls, "create "+score)
		fakeengine.JSON(map[string]string{"Id": score})(w, r)
	case strings.HasSuffix(call, "/start"):
		p.calls = append(p.calls, "start "+id)
		score, _ := strconv.Atoi(id) // the test compares the calls
		if answer := p.fail(score); answer != nil {
			answer(w, r)
			return
		}
		w.WriteHeader(http.StatusNoContent)
	case r.Method == http.MethodDelete:
		p.calls = append(p.calls, "remove "+path.Base(r.URL.Path))
		w.WriteHeader(http.StatusNoContent)
	default: // no process has this pid: it is more than pid_max can be
		fakeengine.Text(fmt.Sprintf(`{"Id": %q, "State": {"Status": "running", "Running": true, "Pid": 4194305}, "Config": {}, "HostConfig": {}}`, id))(w, r)
	}
}

// idIn returns the id of the image in an archive of docker's: the digest of its configuration.
func idIn(archive io.Reader) string {
	for files := tar.NewReader(archive); ; {
		header, err := files.Next()
		if err != nil {
			return ""
		}
		if header.Name == "manifest.json" {
			var manifest []struct{ Config string }
			if err := json.NewDecoder(files).Decode(&manifest); err != nil || len(manifest) != 1 {
				return ""
			}
			_, _ = io.Copy(io.Discard, archive) // the client sends all of it
			return "sha256:" + strings.TrimSuffix(path.Base(manifest[0].Config), ".json")
		}
	}
}

// failAfterOne refuses all starts but the first.
func failAfterOne(with http.HandlerFunc) func(int) http.HandlerFunc {
	started := false
	return func(int) http.HandlerFunc {
		if started {
			return with
		}
		started = true
		return nil
	}
}

// TestPauseContainerThatDoesNotStart: a start that failed because of its oom_score_adj does not say so.
// Another one with a score that needs no capability shows it, and later pods begin with that. If no score
// helps, the first error is the one that counts, and nothing is concluded from it. Once a container with the
// low score has started, a failed start has another cause.
func TestPauseContainerThatDoesNotStart(t *testing.T) {
	const eof = "OCI runtime create failed: unable to start container process: can't get final child's PID from pipe: EOF"
	unavailable := fakeengine.Fail(http.StatusServiceUnavailable, "the engine is stopping")
	for name, c := range map[string]struct {
		fail        func(score int) http.HandlerFunc
		works       [2]bool  // for a pod, and for the next one
		first, next []string // the calls for each
	}{
		"it starts": {
			func(int) http.HandlerFunc { return nil },
			[2]bool{true, true},
			[]string{"create -998", "start -998"},
			[]string{"create -998", "start -998"},
		},
		"the score is refused": {
			func(score int) http.HandlerFunc {
				if score < 0 {
					return fakeengine.Fail(http.StatusInternalServerError, eof)
				}
				return nil
			},
			[2]bool{true, true},
			[]string{"create -998", "start -998", "remove -998", "create 0", "start 0"},
			[]string{"create 0", "start 0"},
		},
		"nothing starts": {
			func(score int) http.HandlerFunc {
				return fakeengine.Fail(http.StatusInternalServerError, fmt.Sprintf("%s (%d)", eof, score))
			},
			[2]bool{},
			[]string{"create -998", "start -998", "remove -998", "create 0", "start 0"},
			[]string{"create -998", "start -998", "remove -998", "create 0", "start 0"},
		},
		"a later start fails": {
			failAfterOne(fakeengine.Fail(http.StatusInternalServerError, eof+" (-998)")),
			[2]bool{true, false},
			[]string{"create -998", "start -998"},
			[]string{"create -998", "start -998"},
		},
		"the engine is not there": {
			func(int) http.HandlerFunc { return unavailable },
			[2]bool{},
			[]string{"create -998", "start -998"},
			[]string{"create -998", "start -998"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			fake := &pauseEngine{fail: c.fail}
			client, err := api.New(api.Options{Endpoint: fakeengine.Start(t, fake.script()).Endpoint})
			if err != nil {
				t.Fatal(err)
			}
			defer client.Close()
			log := slog.New(slog.DiscardHandler)
			e := &Engine{
				cfg: Config{Instance: "one"}, client: client, log: log, objects: newObjects(client, "one", &cgroup.Tree{}, log),
				pause: pause.NewLoader(client), seccomp: seccomp.NewLoader(ocispec.Host{}, nil),
				scores: oomscore.New(func(context.Context) (sysproc.OOMScoreLimit, error) { return sysproc.OOMScoreLimit{Lowers: true}, nil }, log),
			}
			e.SetRules(Rules{})
			e.facts.Store(&translate.Facts{})
			for i, want := range [][]string{c.first, c.next} {
				fake.calls = nil
				spec := &engine.SandboxSpec{ID: strconv.Itoa(i), Config: &runtimeapi.PodSandboxConfig{Metadata: &runtimeapi.PodSandboxMetadata{Name: "p"}}}
				_, err := e.startPause(t.Context(), spec, "/pods")
				if (err == nil) != c.works[i] {
					t.Errorf("pod %d: %v", i, err)
				}
				if err != nil && strings.Contains(err.Error(), eof) && !strings.Contains(err.Error(), "(-998)") {
					t.Errorf("pod %d: %v, want the error of the first start", i, err)
				}
				if !slices.Equal(fake.calls, want) {
					t.Errorf("pod %d: calls %q, want %q", i, fake.calls, want)
				}
			}
		})
	}
}
