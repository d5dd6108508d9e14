//go:build integration

package local

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

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
	return layersOfThenStop(t, layersOf(4, ""))
}

// layersOfThenStop is layersThenStop with other layers below the large one.
func layersOfThenStop(t *testing.T, spec imagetest.Spec) *cutLayers {
	t.Helper()
	content := strings.Repeat("The last layer is large. ", largeLayer/25+1)
	spec.Layers = append(spec.Layers, imagetest.Layer{{Path: "large", Content: []byte(content)}})
	img := build(t, spec)
	c := &cutLayers{Registry: &imagetest.Registry{}, img: img, last: img.Layers[len(img.Layers)-1], away: make(chan struct{})}
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

// awaitFirst returns when the store has the small layers, and the first part of the large one. See awaitPull.
func (c *cutLayers) awaitFirst(t *testing.T, cfg Config, ended <-chan error) {
	t.Helper()
	unfinished(t, cfg, ended)
	for _, blob := range c.blobs() {
		if blob.Digest == c.last.Digest {
			continue
		}
		awaitPull(t, ended, "blob "+blob.Digest.String()+" is in the store", func() bool {
			_, err := os.Stat(database.Paths{Root: cfg.Root}.BlobPath(blob.Digest))
			return err == nil
		})
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

func (c *cutLayers) pull(ctx context.Context, s *Images, auth image.Auth) error {
	_, err := s.Pull(ctx, c.ref(), auth, nil)
	return err
}

func (c *cutLayers) ref() string { return c.host + "/crash0:1" }

// cut pulls the image, and has the caller leave when all layers but the last one are in the store. Later pulls succeed.
func (c *cutLayers) cut(t *testing.T, s *Images, auth image.Auth) {
	t.Helper()
	c.fail(t, s, auth, func(leave func()) { leave() })
}

// fail is cut, and the pull ends when end is called.
func (c *cutLayers) fail(t *testing.T, s *Images, auth image.Auth, end func(leave func())) {
	t.Helper()
	ctx, leave := context.WithCancel(t.Context())
	defer leave()
	ended := make(chan error, 1)
	go func() { ended <- c.pull(ctx, s, auth) }()
	c.awaitFirst(t, s.cfg, ended)
	end(leave)
	if err := <-ended; !errors.Is(err, context.Canceled) && !errors.Is(err, errs.Unavailable) {
		t.Fatalf("the pull that fails: %v", err)
	}
	c.stops.Store(false)
}

// emptyWithout removes the image by its name, and asserts that the store is empty then.
func (c *cutLayers) emptyWithout(t *testing.T, s *Images) {
	t.Helper()
	if err := s.Remove(t.Context(), c.ref()); err != nil {
		t.Error(err)
	}
	s.Close()
	assertEmpty(t, s)
}

// stored is how many of the small blobs the store has.
func (c *cutLayers) stored(s *Images) (blobs int) {
	for _, blob := range c.blobs() {
		if _, err := os.Stat(s.db.BlobPath(blob.Digest)); err == nil {
			blobs++
		}
	}
	return blobs
}

// TestFinishedLayersOutliveAKill: the pull after a kill fetches none of the layers again that were complete, by the same
// name and by another one.
func TestFinishedLayersOutliveAKill(t *testing.T) {
	c, cfg := layersThenStop(t), testConfig(t)
	w := startWorker(t, cfg, c.host)
	c.awaitFirst(t, cfg, nil)
	w.kill()
	c.stops.Store(false)
	s := open(t, cfg)
	if usage, err := s.Usage(t.Context()); err != nil || usage.Images[0].Bytes < firstPart+4*c.img.Layers[0].Size {
		t.Errorf("what the pull has left is not counted: %+v, %v", usage, err)
	}
	use, err := s.DiskUse(t.Context())
	if err != nil || use.Unfinished < firstPart+4*c.img.Layers[0].Size || use.Total < use.Unfinished || use.Total > use.Unfinished+64<<10 {
		t.Errorf("what the pull has left is not among the unfinished downloads, each once: %+v, %v", use, err)
	}
	if err := c.pull(t.Context(), s, image.Auth{}); err != nil {
		t.Fatal(err)
	}
	c.nothingTwice(t)
	if use, err := s.DiskUse(t.Context()); err != nil || use.Unfinished > 0 {
		t.Errorf("unfinished after a pull that succeeded: %+v, %v", use, err)
	}
	c.emptyWithout(t, s)
}

// TestFinishedLayersOutliveAFailure: as after a kill, when the caller leaves or the registry goes away.
func TestFinishedLayersOutliveAFailure(t *testing.T) {
	for name, end := range map[string]func(c *cutLayers, leave func()){
		"the caller leaves":      func(_ *cutLayers, leave func()) { leave() },
		"the registry goes away": func(c *cutLayers, _ func()) { close(c.away) },
	} {
		t.Run(name, func(t *testing.T) {
			c, s := layersThenStop(t), open(t, testConfig(t))
			c.fail(t, s, image.Auth{}, func(leave func()) { end(c, leave) })
			if chains, err := s.Layers(t.Context()); err != nil || len(chains) > 0 {
				t.Errorf("an image that is not complete is listed: %v, %v", chains, err)
			}
			if err := c.pull(t.Context(), s, image.Auth{}); err != nil {
				t.Fatal(err)
			}
			c.nothingTwice(t)
			c.emptyWithout(t, s)
		})
	}
}

// TestFinishedLayersOfAPrivateImage: who has no right to the image gets nothing of what another caller has fetched, and
// takes nothing away.
func TestFinishedLayersOfAPrivateImage(t *testing.T) {
	c, s := layersThenStop(t), open(t, testConfig(t))
	c.User, c.Password = "joe", "pw"
	stop := c.Intercept
	c.Intercept = func(w http.ResponseWriter, req *http.Request) bool {
		user, password, _ := req.BasicAuth()
		return user == "joe" && password == "pw" && stop(w, req)
	}
	good := image.Auth{Username: "joe", Password: "pw"}
	c.cut(t, s, good)
	for _, auth := range []image.Auth{{Username: "joe", Password: "wrong"}, {}} {
		if err := c.pull(t.Context(), s, auth); !errors.Is(err, errs.Denied) {
			t.Errorf("other credentials: %v", err)
		}
	}
	if err := c.pull(t.Context(), s, good); err != nil {
		t.Fatal(err)
	}
	c.nothingTwice(t)
	c.emptyWithout(t, s)
}

// TestFinishedLayersGo: with the name that was pulled, with another image after the time in which a client tries again,
// when they expire, when the disk becomes short of space, and when another image needs the space. They stay when a policy
// refuses the image: another namespace may have another policy, and a policy may be wrong for a moment.
func TestFinishedLayersGo(t *testing.T) {
	ctx := context.Background()
	const later = "removal of another image later"
	all := func(c *cutLayers) int { return len(c.blobs()) - 1 }
	for name, gone := range map[string]func(t *testing.T, c *cutLayers, s *Images, fill func(int64)) (left int){
		"removal": func(t *testing.T, c *cutLayers, s *Images, _ func(int64)) int {
			if err := s.Remove(ctx, c.ref()); err != nil {
				t.Error(err)
			}
			return 0
		},
		"removal of another image": func(t *testing.T, c *cutLayers, s *Images, _ func(int64)) int {
			removeOther(t, s)
			return all(c)
		},
		later: func(t *testing.T, _ *cutLayers, s *Images, _ func(int64)) int {
			removeOther(t, s)
			return 0
		},
		"within a day": func(t *testing.T, c *cutLayers, s *Images, _ func(int64)) int {
			if dropped, left := s.store.TidyLeftovers(ctx, time.Now().Add(23*time.Hour)); dropped || !left {
				t.Errorf("dropped: %v, left: %v", dropped, left)
			}
			return all(c)
		},
		"after a day": func(t *testing.T, _ *cutLayers, s *Images, _ func(int64)) int {
			if dropped, left := s.store.TidyLeftovers(ctx, time.Now().Add(25*time.Hour)); !dropped || left {
				t.Errorf("dropped: %v, left: %v", dropped, left)
			}
			return 0
		},
		"short of space": func(t *testing.T, _ *cutLayers, s *Images, fill func(int64)) int {
			fill(smallDisk / 10)
			if dropped, left := s.store.TidyLeftovers(ctx, time.Now()); !dropped || left {
				t.Errorf("dropped: %v, left: %v", dropped, left)
			}
			return 0
		},
		"another pull": func(t *testing.T, c *cutLayers, s *Images, fill func(int64)) int {
			fill(2 << 20)
			if err := c.pullOther(t, s, 3<<20); err != nil {
				t.Error(err)
			}
			return 0
		},
		"another pull that needs their unfinished downloads, too": func(t *testing.T, c *cutLayers, s *Images, fill func(int64)) int {
			fill(2 << 20)
			if err := c.pullOther(t, s, 11<<20); !errors.Is(err, errs.Exhausted) {
				t.Errorf("the disk has room for the layer, and none to unpack it: %v", err)
			}
			return 0
		},
		"another pull for which they have too little": func(t *testing.T, c *cutLayers, s *Images, fill func(int64)) int {
			fill(2 << 20)
			if err := c.pullOther(t, s, 20<<20); !errors.Is(err, errs.Exhausted) {
				t.Error(err)
			}
			return all(c)
		},
		"policy": func(t *testing.T, c *cutLayers, s *Images, _ func(int64)) int {
			file := filepath.Join(t.TempDir(), "policy.json")
			s.SetPullRules(PullRules{PolicyFile: file})
			refused(t, c.pull(ctx, s, image.Auth{}), file) // it cannot be read
			put(t, file, []byte(`{"default": [{"type":"reject"}]}`))
			refused(t, c.pull(ctx, s, image.Auth{}), "reject")
			return all(c)
		},
	} {
		t.Run(name, func(t *testing.T) {
			cfg := testConfig(t)
			if name == later {
				cfg.RetryTime = time.Nanosecond
			}
			fill := onSmallDisk(t, &cfg, smallDisk)
			spec := layersOf(3, "")
			spec.Layers = append(spec.Layers, imagetest.Layer{{Path: "kept", Content: make([]byte, 8<<20)}})
			c, s := layersOfThenStop(t, spec), open(t, cfg)
			c.cut(t, s, image.Auth{})
			awaitPull(t, nil, "what was unpacked has left the disk", func() bool {
				left, err := os.ReadDir(cfg.trashDir())
				return err == nil && len(left) == 0
			})
			want := gone(t, c, s, fill)
			if left := c.stored(s); left != want {
				t.Errorf("%d blobs are left, want %d", left, want)
			}
			unfinished, err := filepath.Glob(filepath.Join(s.cfg.Root, "content/ingest/*"))
			if err != nil || len(unfinished) > 0 != (want > 0) {
				t.Errorf("unfinished downloads are left: %q, %v, and %d blobs", unfinished, err, want)
			}
			s.Close()
		})
	}
}

// pullOther pulls another image, with a layer of some bytes.
func (c *cutLayers) pullOther(t *testing.T, s *Images, bytes int) error {
	t.Helper()
	c.Push("other", "1", build(t, imagetest.Spec{Layers: []imagetest.Layer{{{Path: "other", Content: make([]byte, bytes)}}}}))
	_, err := s.Pull(t.Context(), c.host+"/other:1", image.Auth{}, nil)
	return err
}

// smallDisk is the size of a disk for a few small images, in bytes.
const smallDisk = 48 << 20

func removeOther(t *testing.T, s *Images) {
	t.Helper()
	list, err := s.Import(t.Context(), archiveOf(t, imagetest.Spec{Name: "other:1", Layers: []imagetest.Layer{{{Path: "other"}}}}), "", false, nil)
	if err == nil {
		err = s.Remove(t.Context(), list[0].ID)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// TestFinishedLayersThatAreDamaged: a start removes a blob that has lost bytes. The digest of other bytes is wrong: the
// pull fails, nothing of them is used, and the next one fetches all again.
func TestFinishedLayersThatAreDamaged(t *testing.T) {
	c, s := layersThenStop(t), open(t, testConfig(t))
	c.cut(t, s, image.Auth{})
	s.Close()
	shorter, other := s.db.BlobPath(c.img.Layers[0].Digest), s.db.BlobPath(c.img.Layers[1].Digest)
	data, err := os.ReadFile(other)
	if err == nil {
		data[len(data)/2] ^= 1
		err = errors.Join(os.Truncate(shorter, 1000), os.WriteFile(other, data, 0o600))
	}
	if err != nil {
		t.Fatal(err)
	}
	s = open(t, s.cfg)
	if err := c.pull(t.Context(), s, image.Auth{}); !errors.Is(err, errs.Invalid) {
		t.Errorf("damaged: %v", err)
	}
	if left := c.stored(s); left > 0 {
		t.Errorf("%d blobs are left", left)
	}
	if err := c.pull(t.Context(), s, image.Auth{}); err != nil {
		t.Error(err)
	}
	c.emptyWithout(t, s)
}
