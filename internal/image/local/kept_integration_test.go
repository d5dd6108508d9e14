//go:build integration

package local

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/image"
	"github.com/berthrun/berth/internal/image/database"
	"github.com/berthrun/berth/internal/image/imagetest"
)

// cutLayers is an image of four small layers and a large one, whose registry stops in the large one while stops is set.
type cutLayers struct {
	*imagetest.Registry
	img   *imagetest.Image
	host  string
	last  imagetest.Blob
	stops atomic.Bool
	// away is closed when the registry breaks all connections, as long as stops is set.
	away chan struct{}
}

// layersThenStop serves an image under the names that a worker pulls. A layer has stopped when its first part is in the
// store, and small layers are complete before the large one is asked for.
func layersThenStop(t *testing.T) *cutLayers {
	t.Helper()
	spec := layersOf(4, "")
	content := strings.Repeat("The last layer is large. ", largeLayer/25+1)
	spec.Layers = append(spec.Layers, imagetest.Layer{{Path: "large", Content: []byte(content)}})
	img := build(t, spec)
	c := &cutLayers{Registry: &imagetest.Registry{}, img: img, last: img.Layers[4], away: make(chan struct{})}
	c.stops.Store(true)
	c.Intercept = c.stop
	c.host = serve(t, c.Registry)
	for i := range crashImages {
		c.Push(fmt.Sprint("crash", i), "1", img)
	}
	return c
}

// stop sends the first part of the large layer, and then nothing.
func (c *cutLayers) stop(w http.ResponseWriter, req *http.Request) bool {
	if !c.stops.Load() {
		return false
	}
	select {
	case <-c.away:
		panic(http.ErrAbortHandler)
	default:
	}
	if !strings.HasSuffix(req.URL.Path, c.last.Digest.String()) {
		return false
	}
	w.Header().Set("Content-Length", fmt.Sprint(len(c.last.Data)))
	_, _ = w.Write(c.last.Data[:firstPart])
	w.(http.Flusher).Flush()
	select {
	case <-req.Context().Done():
	case <-c.away:
	}
	panic(http.ErrAbortHandler)
}

// blobs are all of the image.
func (c *cutLayers) blobs() []imagetest.Blob {
	return append([]imagetest.Blob{c.img.Config}, c.img.Layers...)
}

// awaitFirst returns when the store has the small layers, and the first part of the large one.
func (c *cutLayers) awaitFirst(t *testing.T, cfg Config) {
	t.Helper()
	unfinished(t, cfg)
	for _, blob := range c.blobs() {
		for blob.Digest != c.last.Digest {
			if _, err := os.Stat(database.Paths{Root: cfg.Root}.BlobPath(blob.Digest)); err == nil {
				break
			}
			if t.Context().Err() != nil {
				t.Fatalf("blob %s is not in the store", blob.Digest)
			}
		}
	}
}

// nothingTwice asserts that no byte of any blob was sent twice: the first part of the large one is not in the count.
func (c *cutLayers) nothingTwice(t *testing.T) {
	t.Helper()
	for i, blob := range c.blobs() {
		want := blob.Size
		if blob.Digest == c.last.Digest {
			want -= firstPart
		}
		if sent := c.Sent(blob.Digest); sent != want {
			t.Errorf("blob %d: the registry sent %d bytes, want %d", i, sent, want)
		}
	}
}

func (c *cutLayers) pull(ctx context.Context, s *Images, i int) error {
	_, err := s.Pull(ctx, fmt.Sprintf("%s/crash%d:1", c.host, i), image.Auth{}, nil)
	return err
}

// TestFinishedLayersOutliveAKill: the pull after a kill fetches none of the layers again that were complete, by the same
// name and by another one.
func TestFinishedLayersOutliveAKill(t *testing.T) {
	c, cfg := layersThenStop(t), testConfig(t)
	w := startWorker(t, cfg, c.host)
	c.awaitFirst(t, cfg)
	w.kill()
	c.stops.Store(false)
	s := open(t, cfg)
	if usage, err := s.Usage(t.Context()); err != nil || usage.Images[0].Bytes < firstPart+4*c.img.Layers[0].Size {
		t.Errorf("what the pull has left is not counted: %+v, %v", usage, err)
	}
	if err := c.pull(t.Context(), s, 0); err != nil {
		t.Fatal(err)
	}
	c.nothingTwice(t)
	if err := s.Remove(t.Context(), c.host+"/crash0:1"); err != nil {
		t.Error(err)
	}
	s.Close()
	assertEmpty(t, s)
}

// TestFinishedLayersOutliveAFailure: as after a kill, when the caller leaves or the registry goes away.
func TestFinishedLayersOutliveAFailure(t *testing.T) {
	for name, fail := range map[string]func(c *cutLayers, leave func()){
		"the caller leaves":      func(_ *cutLayers, leave func()) { leave() },
		"the registry goes away": func(c *cutLayers, _ func()) { close(c.away) },
	} {
		t.Run(name, func(t *testing.T) {
			c, cfg := layersThenStop(t), testConfig(t)
			s := open(t, cfg)
			ctx, leave := context.WithCancel(t.Context())
			ended := make(chan error, 1)
			go func() { ended <- c.pull(ctx, s, 0) }()
			c.awaitFirst(t, cfg)
			fail(c, leave)
			if err := <-ended; err == nil || errors.Is(err, errs.Invalid) {
				t.Fatalf("the pull that fails: %v", err)
			}
			leave()
			c.stops.Store(false)
			if err := c.pull(t.Context(), s, 0); err != nil {
				t.Fatal(err)
			}
			c.nothingTwice(t)
			if err := s.Remove(t.Context(), c.host+"/crash0:1"); err != nil {
				t.Error(err)
			}
			s.Close()
			assertEmpty(t, s)
		})
	}
}
