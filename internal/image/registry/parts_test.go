package registry

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/containerd/containerd/v2/core/content"
	imagespec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/image/downloads"
	"github.com/berthrun/berth/internal/image/imagetest"
)

const (
	partSize = 64 << 10
	allParts = 21 // the last one is short
)

// newPartSite is a site whose layer is fetched in parts, by four connections.
func newPartSite(t *testing.T, registries ...*imagetest.Registry) (*site, imagetest.Blob) {
	t.Helper()
	s := newSite(t, registries...)
	s.cfg.Parts = Parts{Size: partSize, Connections: 4}
	data := make([]byte, (allParts-1)*partSize+123)
	_, _ = rand.NewChaCha8([32]byte{1}).Read(data)
	layer := imagetest.NewBlob(imagespec.MediaTypeImageLayer, data)
	for _, r := range registries {
		r.PushBlob(layer)
	}
	s.img.Layers = []imagetest.Blob{layer}
	return s, layer
}

// fetchParts fetches the layer within limits, and checks it. Whatever comes of it, it has given back its places and its
// memory.
func (s *site) fetchParts(t *testing.T, limits downloads.Limits) error {
	t.Helper()
	layer := s.img.Layers[0]
	gate := downloads.New(limits)
	var got int64
	var waits, ends atomic.Int32
	turn := downloads.Turn{Gate: gate, Waits: func() func() { waits.Add(1); return func() { ends.Add(1) } }}
	err := s.open(t, Auth{}).Fetch(t.Context(), target{s.store}, layer.Descriptor, turn, func(n int64) { got += n })
	if waits.Load() != ends.Load() {
		t.Errorf("%d waits have begun, %d have ended", waits.Load(), ends.Load())
	}
	if gate.Ahead(int(limits.Memory)) == nil {
		t.Error("places or memory are lost")
	}
	if err != nil {
		return err
	}
	data, err := content.ReadBlob(t.Context(), s.store, imagespec.Descriptor{Digest: layer.Digest, Size: layer.Size})
	if err != nil || string(data) != string(layer.Data) || got != layer.Size {
		t.Errorf("the store has %d bytes, %d were counted, of %d; %v", len(data), got, layer.Size, err)
	}
	return nil
}

// blobRequests counts the requests for blobs.
func blobRequests(r *imagetest.Registry) int {
	n := 0
	for _, request := range r.Requests() {
		if strings.Contains(request, "/blobs/") {
			n++
		}
	}
	return n
}

// crowd counts how many requests for parts, but that for the beginning, run at a time. The first hold of them wait for
// each other.
type crowd struct {
	hold int32

	seen      atomic.Int32
	mu        sync.Mutex
	now, most int
	all       chan struct{}
}

func (c *crowd) intercept(inner http.Handler) func(http.ResponseWriter, *http.Request) bool {
	c.all = make(chan struct{})
	return func(w http.ResponseWriter, req *http.Request) bool {
		asked := req.Header.Get("Range")
		if asked == "" || strings.HasPrefix(asked, "bytes=0-") || req.Header.Get("Inner") != "" {
			return false
		}
		c.mu.Lock()
		c.now++
		c.most = max(c.most, c.now)
		c.mu.Unlock()
		n := c.seen.Add(1)
		if n == c.hold {
			close(c.all)
		}
		if n < c.hold {
			select {
			case <-c.all:
			case <-req.Context().Done():
			case <-time.After(10 * time.Second): // they do not run side by side
			}
		}
		req.Header.Set("Inner", "1")
		// The client may have the whole answer before this returns.
		inner.ServeHTTP(&leaving{w, sync.OnceFunc(func() {
			c.mu.Lock()
			defer c.mu.Unlock()
			c.now--
		})}, req)
		return true
	}
}

// leaving calls leave before it sends the bytes of an answer.
type leaving struct {
	http.ResponseWriter
	leave func()
}

func (l *leaving) Write(p []byte) (int, error) {
	l.leave()
	return l.ResponseWriter.Write(p)
}

func TestALargeLayerIsFetchedSideBySide(t *testing.T) {
	r := &imagetest.Registry{}
	s, layer := newPartSite(t, r)
	c := &crowd{hold: 4}
	r.Intercept = c.intercept(r)
	if err := s.fetchParts(t, downloads.Limits{Places: 12, Memory: 1 << 20}); err != nil {
		t.Fatal(err)
	}
	if sent := r.Sent(layer.Digest); c.most != 4 || sent != layer.Size {
		t.Errorf("%d requests at a time, want 4; %d bytes sent of %d", c.most, sent, layer.Size)
	}
}

// TestPartsKeepTheBoundsOfTheNode: they take no place and no memory that is not free.
func TestPartsKeepTheBoundsOfTheNode(t *testing.T) {
	for name, limits := range map[string]downloads.Limits{
		"places": {Places: 2, Memory: 1 << 20}, "memory": {Memory: partSize},
	} {
		t.Run(name, func(t *testing.T) {
			r := &imagetest.Registry{}
			s, layer := newPartSite(t, r)
			c := &crowd{}
			r.Intercept = c.intercept(r)
			if err := s.fetchParts(t, limits); err != nil {
				t.Fatal(err)
			}
			if sent := r.Sent(layer.Digest); c.most > 2 || sent != layer.Size {
				t.Errorf("%d requests at a time, want 2 at most; %d bytes sent of %d", c.most, sent, layer.Size)
			}
		})
	}
	t.Run("rate", func(t *testing.T) {
		s, _ := newPartSite(t, &imagetest.Registry{})
		began := time.Now()
		if err := s.fetchParts(t, downloads.Limits{Rate: 2 << 20, Memory: 1 << 20}); err != nil {
			t.Fatal(err)
		}
		if took := time.Since(began); took < 400*time.Millisecond { // 1.25 MiB, and a tenth of a second is free
			t.Errorf("%s for 1.25 MiB at 2 MiB a second", took)
		}
	})
}

func TestASmallLayerIsFetchedWhole(t *testing.T) {
	r := &imagetest.Registry{}
	s, _ := newPartSite(t, r)
	layer := imagetest.NewBlob(imagespec.MediaTypeImageLayer, make([]byte, minParts*partSize))
	r.PushBlob(layer)
	s.img.Layers = []imagetest.Blob{layer}
	if err := s.fetchParts(t, downloads.Limits{Memory: 1 << 20}); err != nil || blobRequests(r) != 1 {
		t.Errorf("%v, %d requests", err, blobRequests(r))
	}
}

// answer is what a registry that fails on purpose does with the n-th request for the layer, from 1. It returns true if
// it has answered.
type answer func(n int32, from, to int, w http.ResponseWriter, req *http.Request) bool

func failing(layer imagetest.Blob, do answer) func(http.ResponseWriter, *http.Request) bool {
	var n atomic.Int32
	return func(w http.ResponseWriter, req *http.Request) bool {
		if !strings.HasSuffix(req.URL.Path, layer.Digest.String()) {
			return false
		}
		first, last, _ := strings.Cut(strings.TrimPrefix(req.Header.Get("Range"), "bytes="), "-")
		from, _ := strconv.Atoi(first)
		to, err := strconv.Atoi(last)
		if err != nil {
			to = len(layer.Data) - 1
		}
		return do(n.Add(1), from, to+1, w, req)
	}
}

// send answers with a part of the data, and a header that names another one.
func send(w http.ResponseWriter, header string, data []byte) bool {
	w.Header().Set("Content-Range", header)
	w.Header().Set("Content-Length", strconv.Itoa(len(data)))
	w.WriteHeader(http.StatusPartialContent)
	_, _ = w.Write(data)
	return true
}

func TestPartsFromARegistryThatFails(t *testing.T) {
	layerSize := (allParts-1)*partSize + 123
	for name, c := range map[string]struct {
		do answer
		// most is how many requests it may get.
		most int
	}{
		"ignores ranges": {func(_ int32, _, _ int, _ http.ResponseWriter, req *http.Request) bool {
			req.Header.Del("Range")
			return false
		}, 1},
		"refuses ranges": {func(_ int32, _, _ int, w http.ResponseWriter, req *http.Request) bool {
			return req.Header.Get("Range") != "" && status(http.StatusRequestedRangeNotSatisfiable)(w, req)
		}, 2},
		"refuses parts later": {func(n int32, _, to int, w http.ResponseWriter, req *http.Request) bool {
			return n > 5 && to < layerSize && status(http.StatusRequestedRangeNotSatisfiable)(w, req)
		}, 16},
		"ignores ranges later": {func(n int32, _, _ int, _ http.ResponseWriter, req *http.Request) bool {
			if n > 5 {
				req.Header.Del("Range")
			}
			return false
		}, 16},
		"sends other parts": {func(n int32, from, to int, w http.ResponseWriter, _ *http.Request) bool {
			return to < layerSize && n > 3 && send(w, fmt.Sprintf("bytes %d-%d/%d", from+1, to, layerSize), make([]byte, to-from))
		}, 16},
		"sends shorter parts": {func(_ int32, from, to int, w http.ResponseWriter, _ *http.Request) bool {
			return to < layerSize && send(w, fmt.Sprintf("bytes %d-%d/%d", from, to-2, layerSize), make([]byte, to-from-1))
		}, 2},
		"has another size": {func(_ int32, from, to int, w http.ResponseWriter, _ *http.Request) bool {
			return to < layerSize && send(w, fmt.Sprintf("bytes %d-%d/%d", from, to-1, layerSize+1), make([]byte, to-from))
		}, 2},
		"says no range": {func(_ int32, from, to int, w http.ResponseWriter, _ *http.Request) bool {
			return to < layerSize && send(w, "", make([]byte, to-from))
		}, 2},
		"compresses parts": {func(_ int32, from, to int, w http.ResponseWriter, _ *http.Request) bool {
			w.Header().Set("Content-Encoding", "gzip")
			return to < layerSize && send(w, fmt.Sprintf("bytes %d-%d/%d", from, to-1, layerSize), make([]byte, to-from))
		}, 2},
		"sends wrong bytes in parts": {func(n int32, from, to int, w http.ResponseWriter, _ *http.Request) bool {
			return n == 7 && send(w, fmt.Sprintf("bytes %d-%d/%d", from, to-1, layerSize), make([]byte, to-from))
		}, allParts + 1},
		"fails now and then": {func(n int32, _, _ int, w http.ResponseWriter, req *http.Request) bool {
			return n%3 == 0 && status(http.StatusBadGateway)(w, req)
		}, 2 * allParts},
		"breaks connections": {func(n int32, from, to int, w http.ResponseWriter, _ *http.Request) bool {
			if n%4 != 0 {
				return false
			}
			w.Header().Set("Content-Range", fmt.Sprintf("bytes %d-%d/%d", from, to-1, layerSize))
			w.Header().Set("Content-Length", strconv.Itoa(to-from))
			w.WriteHeader(http.StatusPartialContent)
			w.(http.Flusher).Flush()
			panic(http.ErrAbortHandler)
		}, 2 * allParts},
	} {
		t.Run(name, func(t *testing.T) {
			r := &imagetest.Registry{}
			s, layer := newPartSite(t, r)
			r.Intercept = failing(layer, func(n int32, from, to int, w http.ResponseWriter, req *http.Request) bool {
				if !c.do(n, from, to, w, req) {
					w.Header().Del("Content-Encoding")
					return false
				}
				return true
			})
			if err := s.fetchParts(t, downloads.Limits{Memory: 1 << 20}); err != nil {
				t.Fatal(err)
			}
			if n := blobRequests(r); n > c.most {
				t.Errorf("%d requests, want %d at most", n, c.most)
			}
		})
	}
}

func TestTheNextEndpointSendsTheOtherParts(t *testing.T) {
	first, second := &imagetest.Registry{}, &imagetest.Registry{}
	s, layer := newPartSite(t, first, second)
	first.Intercept = failing(layer, func(n int32, _, _ int, _ http.ResponseWriter, _ *http.Request) bool {
		if n > 6 {
			panic(http.ErrAbortHandler)
		}
		return false
	})
	if err := s.fetchParts(t, downloads.Limits{Memory: 1 << 20}); err != nil {
		t.Fatal(err)
	}
	if a, b := first.Sent(layer.Digest), second.Sent(layer.Digest); a != 6*partSize || a+b != layer.Size {
		t.Errorf("sent %d and %d bytes of %d, want 6 parts and the others", a, b, layer.Size)
	}
}

// TestPartsWaitForARegistryThatLimitsRequests: after a 429 no request comes before the time that it asks for, and from
// then on one at a time.
func TestPartsWaitForARegistryThatLimitsRequests(t *testing.T) {
	r := &imagetest.Registry{}
	s, layer := newPartSite(t, r)
	var mu sync.Mutex
	var limited time.Time
	var early, now, most int
	r.Intercept = failing(layer, func(n int32, _, _ int, w http.ResponseWriter, req *http.Request) bool {
		mu.Lock()
		defer mu.Unlock()
		since := time.Since(limited)
		switch {
		case n == 8:
			limited = time.Now()
			return status(http.StatusTooManyRequests, "Retry-After", "1")(w, req)
		case limited.IsZero():
		case since > 200*time.Millisecond && since < 900*time.Millisecond:
			early++
		case since >= 900*time.Millisecond && req.Header.Get("Inner") == "":
			now++
			most = max(most, now)
			mu.Unlock()
			req.Header.Set("Inner", "1")
			r.ServeHTTP(&leaving{w, sync.OnceFunc(func() {
				mu.Lock()
				defer mu.Unlock()
				now--
			})}, req)
			mu.Lock()
			return true
		}
		return false
	})
	if err := s.fetchParts(t, downloads.Limits{Memory: 1 << 20}); err != nil {
		t.Fatal(err)
	}
	if early != 0 || most != 1 || time.Since(limited) < time.Second {
		t.Errorf("%d requests before the time, %d at a time after it, %s", early, most, time.Since(limited))
	}
}

func TestAFetchInPartsContinuesWhatAnEarlierOneLeft(t *testing.T) {
	r := &imagetest.Registry{}
	s, layer := newPartSite(t, r)
	r.Intercept = failing(layer, func(_ int32, from, _ int, w http.ResponseWriter, req *http.Request) bool {
		return from >= 8*partSize && status(http.StatusBadGateway)(w, req)
	})
	if err := s.fetchParts(t, downloads.Limits{Memory: 1 << 20}); !errors.Is(err, errs.Unavailable) {
		t.Fatalf("error %v", err)
	}
	left, err := s.store.Status(t.Context(), layer.Digest.String())
	if err != nil || left.Offset != 8*partSize {
		t.Fatalf("%d bytes are left, want 8 parts; %v", left.Offset, err)
	}
	r.Intercept = nil
	before := r.Sent(layer.Digest)
	if err := s.fetchParts(t, downloads.Limits{Memory: 1 << 20}); err != nil {
		t.Fatal(err)
	}
	if sent := r.Sent(layer.Digest) - before; sent != layer.Size-left.Offset {
		t.Errorf("sent %d more bytes, want %d", sent, layer.Size-left.Offset)
	}
}
