//go:build integration

package local

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/berthrun/berth/internal/image"
	"github.com/berthrun/berth/internal/image/imagetest"
)

// holding is a registry that answers requests for blobs of layers one by one, as the test lets them through.
type holding struct {
	imagetest.Registry
	host string
	let  chan struct{}

	mu     sync.Mutex
	layers map[string]bool
	// open are the requests that are held, by the image, most the most of all together. cancelled is an image whose requests do
	// not count: the server may learn late that they have ended.
	open      map[string]int
	most      int
	cancelled string
	changed   chan struct{}
}

func newHolding(t *testing.T) *holding {
	h := &holding{let: make(chan struct{}), layers: map[string]bool{}, open: map[string]int{}, changed: make(chan struct{})}
	server := httptest.NewServer(h)
	t.Cleanup(server.Close)
	h.host = strings.TrimPrefix(server.URL, "http://")
	return h
}

// push adds an image with n layers that no other one has.
func (h *holding) push(t *testing.T, name string, n int) {
	spec := imagetest.Spec{Env: []string{"NAME=" + name}}
	for i := range n {
		spec.Layers = append(spec.Layers, imagetest.Layer{{Path: name, Content: []byte(strings.Repeat(name, 1000+i))}})
	}
	img := build(t, spec)
	for _, layer := range img.Layers {
		h.layers[layer.Digest.String()] = true
	}
	h.Push(name, "1", img)
}

func (h *holding) count(image string, n int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.open[image] += n
	h.most = max(h.most, h.held())
	close(h.changed)
	h.changed = make(chan struct{})
}

// held is the number of requests that are held. The caller holds h.mu.
func (h *holding) held() (all int) {
	for image, n := range h.open {
		if image != h.cancelled {
			all += n
		}
	}
	return all
}

// ServeHTTP implements http.Handler. A request counts until it is let through: its answer may be complete before its
// handler returns.
func (h *holding) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	if h.layers[req.URL.Path[strings.LastIndex(req.URL.Path, "/")+1:]] {
		image := strings.Split(req.URL.Path, "/")[2]
		h.count(image, 1)
		select {
		case <-h.let:
			h.count(image, -1)
		case <-req.Context().Done():
			h.count(image, -1)
			return
		}
	}
	h.Registry.ServeHTTP(w, req)
}

// await returns when so many requests for layers are held.
func (h *holding) await(t *testing.T, open int) {
	t.Helper()
	h.until(t, fmt.Sprintf("%d requests for layers are held", open), func() bool { return h.held() == open })
}

// until returns when done does, which is called with h.mu held.
func (h *holding) until(t *testing.T, what string, done func() bool) {
	t.Helper()
	late := time.After(20 * time.Second)
	for {
		h.mu.Lock()
		is, changed, open := done(), h.changed, maps.Clone(h.open)
		h.mu.Unlock()
		if is {
			return
		}
		select {
		case <-changed:
		case <-late:
			t.Fatalf("not so: %s; held are %v", what, open)
		}
	}
}

func TestPullsShareTheDownloadsOfTheNode(t *testing.T) {
	ctx := context.Background()
	h := newHolding(t)
	for _, name := range []string{"a", "b", "c", "d"} {
		h.push(t, name, 4)
	}
	cfg := testConfig(t)
	cfg.MaxTotalDownloads = 2
	s := open(t, cfg)
	pull := func(ctx context.Context, name string, report func(image.Progress)) chan error {
		ended := make(chan error, 1)
		go func() {
			_, err := s.Pull(ctx, h.host+"/"+name+":1", image.Auth{}, report)
			ended <- err
		}()
		return ended
	}
	a, b := pull(ctx, "a", nil), pull(ctx, "b", nil)
	for left := 8; left > 0; left-- {
		h.await(t, min(left, 2))
		h.let <- struct{}{}
	}
	if err := errors.Join(<-a, <-b); err != nil {
		t.Fatal(err)
	}
	if h.most != 2 {
		t.Errorf("two pulls had %d layers open, want 2", h.most)
	}

	// A pull that waits for another one says so, and gets the places of one that is cancelled.
	cancelled, cancel := context.WithCancel(ctx)
	c := pull(cancelled, "c", nil)
	h.await(t, 2)
	var once sync.Once
	waiting := make(chan struct{})
	d := pull(ctx, "d", func(p image.Progress) {
		if p.Stage == "waiting" {
			once.Do(func() { close(waiting) })
		}
	})
	select {
	case <-waiting:
	case err := <-d:
		t.Fatalf("the pull that waits has ended: %v", err)
	}
	h.mu.Lock()
	h.cancelled = "c"
	h.mu.Unlock()
	cancel()
	if err := <-c; !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v", err)
	}
	h.until(t, "the cancelled requests have ended", func() bool { return h.open["c"] == 0 })
	for range 4 {
		h.let <- struct{}{}
	}
	if err := <-d; err != nil {
		t.Errorf("after the end of the cancelled pull: %v", err)
	}
	if h.most != 2 {
		t.Errorf("%d layers were open, want 2", h.most)
	}
}
