package pause

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"sync"
	"testing"

	"github.com/berthrun/berth/internal/docker/api"
	"github.com/berthrun/berth/internal/errs"
)

// fakeEngine has at most one image. A load gives it id after, and answers with answer.
type fakeEngine struct {
	mu            sync.Mutex
	id, after     string
	answer        string
	loads         int
	loading, hold chan struct{} // if not nil, a load closes the first and waits for the second
}

func (e *fakeEngine) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	_, _ = io.Copy(io.Discard, r.Body)
	e.mu.Lock()
	defer e.mu.Unlock()
	switch {
	case strings.HasSuffix(r.URL.Path, "/_ping"):
		w.Header().Set("Api-Version", "1.41")
	case strings.HasSuffix(r.URL.Path, "/images/load"):
		if e.loads++; e.loading != nil {
			close(e.loading)
			<-e.hold
		}
		e.id = e.after
		_, _ = io.WriteString(w, e.answer)
	case strings.HasSuffix(r.URL.Path, "/images/"+Reference+"/json") && e.id != "":
		_ = json.NewEncoder(w).Encode(map[string]string{"Id": e.id})
	default:
		w.WriteHeader(http.StatusNotFound)
		_, _ = io.WriteString(w, `{"message":"no such image"}`)
	}
}

func (e *fakeEngine) client(t *testing.T) *api.Client {
	t.Helper()
	server := httptest.NewServer(e)
	t.Cleanup(server.Close)
	c, err := api.New(api.Options{Endpoint: strings.Replace(server.URL, "http", "tcp", 1)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// ids returns the ids of the image in both kinds of engine.
func ids(t *testing.T) (config, manifest string) {
	t.Helper()
	img, err := build(runtime.GOARCH)
	if err != nil {
		t.Fatal(err)
	}
	return describe("", img.config).Digest.String(), img.descriptor.Digest.String()
}

func TestEnsure(t *testing.T) {
	config, manifest := ids(t)
	const loaded = `{"stream":"Loaded image: berth.invalid/pause:1\n"}`
	for name, test := range map[string]struct {
		engine *fakeEngine
		loads  int
		want   string
		kind   error
		text   string
	}{
		"it stores layers":     {engine: &fakeEngine{id: config}, want: config},
		"it stores manifests":  {engine: &fakeEngine{id: manifest}, want: manifest},
		"it has no image":      {engine: &fakeEngine{after: config, answer: loaded}, loads: 1, want: config},
		"no message":           {engine: &fakeEngine{after: config}, loads: 1, want: config},
		"it has another image": {engine: &fakeEngine{id: "sha256:1", after: manifest}, loads: 1, want: manifest},
		"it makes another":     {engine: &fakeEngine{after: "sha256:1"}, loads: 1, kind: errs.State, text: "sha256:1"},
		"it loses the image":   {engine: &fakeEngine{answer: loaded}, loads: 1, kind: errs.NotFound},
		"a full disk": {
			engine: &fakeEngine{answer: loaded + "\n" + `{"error":"no space left","errorDetail":{"message":"no space left"}}`},
			loads:  1, text: "no space left",
		},
		"garbage":              {engine: &fakeEngine{answer: "<html>"}, loads: 1, text: "cannot read the engine's answer"},
		"it ends in a message": {engine: &fakeEngine{answer: `{"stream":"Loa`}, loads: 1, text: "cannot read the engine's answer"},
	} {
		t.Run(name, func(t *testing.T) {
			e := test.engine
			got, err := Ensure(t.Context(), e.client(t))
			if got != test.want || (err == nil) != (test.want != "") {
				t.Errorf("got %q, %v, want %q", got, err, test.want)
			}
			if test.kind != nil && !errors.Is(err, test.kind) {
				t.Errorf("%v is not %v", err, test.kind)
			}
			if err != nil && !strings.Contains(err.Error(), test.text) {
				t.Errorf("%v does not say %q", err, test.text)
			}
			if e.loads != test.loads {
				t.Errorf("%d loads, want %d", e.loads, test.loads)
			}
		})
	}
}

func TestCallersShareALoad(t *testing.T) {
	config, _ := ids(t)
	e := &fakeEngine{after: config, loading: make(chan struct{}), hold: make(chan struct{})}
	loader := NewLoader(e.client(t))
	results := make(chan error)
	call := func(ctx context.Context) {
		id, err := loader.Ensure(ctx)
		if err == nil && id != config {
			err = errors.New("it is image " + id)
		}
		results <- err
	}
	first, leave := context.WithCancel(t.Context())
	go call(first)
	<-e.loading
	const others = 4
	joined := make(chan struct{}, others)
	for range others {
		go call(joiningContext{t.Context(), joined})
	}
	for range others {
		<-joined
	}
	leave()
	if err := <-results; !errors.Is(err, context.Canceled) {
		t.Errorf("the caller that left got %v", err)
	}
	close(e.hold)
	for range others {
		if err := <-results; err != nil {
			t.Errorf("a caller that stayed: %v", err)
		}
	}
	if e.loads != 1 {
		t.Errorf("%d loads", e.loads)
	}
}

// joiningContext reports that its caller waits for the load.
type joiningContext struct {
	context.Context //nolint:containedctx // it is a context
	waits           chan<- struct{}
}

func (c joiningContext) Done() <-chan struct{} {
	c.waits <- struct{}{}
	return c.Context.Done()
}
