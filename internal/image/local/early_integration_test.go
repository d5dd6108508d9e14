//go:build integration

package local

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/opencontainers/go-digest"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/image"
	"github.com/berthrun/berth/internal/image/imagetest"
	"github.com/berthrun/berth/internal/image/unpack/child"
)

// noise returns bytes that no compression makes smaller.
func noise(seed uint32, size int) []byte {
	data := make([]byte, size)
	for i, state := 0, seed+1; i < len(data); i++ {
		state = state*1664525 + 1013904223
		data[i] = byte(state >> 24)
	}
	return data
}

const (
	// earlySize is that of a file which makes a layer large, and earlyPart how much of the layer a registry sends at once.
	earlySize = 2<<20 + 64<<10
	earlyPart = 1 << 20
)

// earlyLayer is a layer with a small file, and a large one after it.
func earlyLayer(name string, first ...imagetest.File) imagetest.Layer {
	return append(first, imagetest.File{Path: "early-" + name, Content: []byte("here")}, imagetest.File{Path: "late-" + name, Content: noise(uint32(name[0]), earlySize)})
}

// held is a registry that sends large layers up to a byte, and the rest when the test lets it.
type held struct {
	imagetest.Registry
	host string
	// at is the byte that the registry holds. A request for bytes that do not include it is answered at once.
	at int
	// cut has the registry break connections at the byte, in the place of holding them.
	cut chan struct{}

	mu   sync.Mutex
	rest chan struct{}
	// blobs are the large layers, and counts how many bytes of each were sent.
	blobs  map[string][]byte
	counts map[string]int64
}

func newHeld(t *testing.T) *held {
	h := &held{at: earlyPart, cut: make(chan struct{}), rest: make(chan struct{}), blobs: map[string][]byte{}, counts: map[string]int64{}}
	h.Intercept = h.intercept
	h.host = serve(t, &h.Registry)
	return h
}

// push adds an image whose large layers are held.
func (h *held) push(t *testing.T, name, compression string, layers ...imagetest.Layer) *imagetest.Image {
	t.Helper()
	img := build(t, imagetest.Spec{Compression: compression, Layers: layers, Env: []string{"NAME=" + name}})
	h.pushImage(name, img)
	return img
}

func (h *held) pushImage(name string, img *imagetest.Image) {
	for _, layer := range img.Layers {
		if len(layer.Data) > earlyPart {
			h.blobs[layer.Digest.String()] = layer.Data
		}
	}
	h.Push(name, "1", img)
}

// send has the registry send the rest of all layers.
func (h *held) send() { close(h.rest) }

// sent returns how many bytes of a layer were sent.
func (h *held) sent(layer digest.Digest) int64 {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.counts[layer.String()]
}

func (h *held) intercept(w http.ResponseWriter, req *http.Request) bool {
	name := filepath.Base(req.URL.Path)
	data, ok := h.blobs[name]
	if !ok {
		return false
	}
	from, to := 0, len(data)
	if part := strings.TrimPrefix(req.Header.Get("Range"), "bytes="); part != "" {
		first, last, _ := strings.Cut(part, "-")
		from, _ = strconv.Atoi(first)
		if end, err := strconv.Atoi(last); err == nil {
			to = min(end+1, to)
		}
		w.Header().Set("Content-Range", fmt.Sprintf("bytes %d-%d/%d", from, to-1, len(data)))
	}
	w.Header().Set("Content-Length", fmt.Sprint(to-from))
	if req.Header.Get("Range") != "" {
		w.WriteHeader(http.StatusPartialContent)
	}
	write := func(piece []byte) {
		n, _ := w.Write(piece) // the client may be gone
		w.(http.Flusher).Flush()
		h.mu.Lock()
		defer h.mu.Unlock()
		h.counts[name] += int64(n)
	}
	if from > h.at || to <= h.at {
		write(data[from:to])
		return true
	}
	write(data[from:h.at])
	select {
	case <-h.rest:
		write(data[h.at:to])
	case <-h.cut:
		panic(http.ErrAbortHandler)
	case <-req.Context().Done():
	}
	return true
}

// pull pulls an image in the background.
func (h *held) pull(ctx context.Context, s *Images, name string) (ended chan error) {
	ended = make(chan error, 1)
	go func() {
		_, err := s.Pull(ctx, h.host+"/"+name+":1", image.Auth{}, nil)
		ended <- err
	}()
	return ended
}

// unpacked returns the files of a name in the directories of layers.
func unpacked(t *testing.T, cfg Config, name string) []string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(cfg.Root, "snapshots/snapshots/*/fs", name))
	if err != nil {
		t.Fatal(err)
	}
	return files
}

// awaitEarly waits until a file of a layer that is held is unpacked, and returns it.
func awaitEarly(t *testing.T, cfg Config, ended <-chan error, name string) string {
	t.Helper()
	var files []string
	awaitPull(t, ended, "the file early-"+name+" is unpacked", func() bool {
		files = unpacked(t, cfg, "early-"+name)
		return len(files) > 0
	})
	return files[0]
}

// helpers returns the ids of the processes that unpack layers of a store: the root of each has the directory of a layer.
func helpers(t *testing.T, cfg Config) (pids []string) {
	t.Helper()
	uppers, err := filepath.Glob("/proc/[0-9]*/root/" + child.UpperName)
	if err != nil {
		t.Fatal(err)
	}
	layers, err := filepath.Glob(filepath.Join(cfg.Root, "snapshots/snapshots/*/fs"))
	if err != nil {
		t.Fatal(err)
	}
	for _, upper := range uppers {
		is, err := os.Stat(upper)
		if err != nil {
			continue // the process has ended
		}
		for _, layer := range layers {
			if fi, err := os.Stat(layer); err == nil && os.SameFile(is, fi) {
				pids = append(pids, strings.Split(upper, "/")[2])
			}
		}
	}
	return pids
}

// wantFile checks a late file, and that its layer is that in which the early file was.
func wantFile(t *testing.T, cfg Config, early, name string) {
	t.Helper()
	late := unpacked(t, cfg, "late-"+name)
	if len(late) != 1 || filepath.Dir(late[0]) != filepath.Dir(early) {
		t.Errorf("the file late-%s is in %v, and the early one was %s", name, late, early)
		return
	}
	if data, err := os.ReadFile(late[0]); err != nil || !bytes.Equal(data, noise(uint32(name[0]), earlySize)) {
		t.Errorf("the file late-%s has %d bytes, %v", name, len(data), err)
	}
}

// wantNothing removes an image, "" for none, closes the store and checks that nothing is left.
func wantNothing(t *testing.T, s *Images, ref string) {
	t.Helper()
	if pids := helpers(t, s.cfg); len(pids) > 0 {
		t.Errorf("processes that unpack layers are left: %v", pids)
	}
	if ref != "" {
		if err := s.Remove(t.Context(), ref); err != nil {
			t.Error(err)
		}
	}
	if groups, err := filepath.Glob(filepath.Join(s.cgroups.Dir(), cgroupPrefix(s.cfg.Root)+"-*")); err != nil || len(groups) > 0 {
		t.Errorf("cgroups are left: %v, %v", groups, err)
	}
	s.Close()
	assertEmpty(t, s)
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil || bytes.Contains(mounts, []byte(s.cfg.Root)) {
		t.Errorf("mounts of the store are left: %v", err)
	}
}

// TestLargeLayersAreUnpackedWhileTheyAreFetched: files of two layers are on disk before the registry has sent the end of one.
// The layers are those, and no byte is sent twice.
func TestLargeLayersAreUnpackedWhileTheyAreFetched(t *testing.T) {
	for _, how := range []string{"", "gzip", "zstd", "parts"} {
		t.Run("as "+how, func(t *testing.T) {
			h, cfg := newHeld(t), testConfig(t)
			if how == "parts" { // those after the byte that is held come before it
				cfg.LayerConnections, cfg.LayerPart, how = 4, 256<<10, ""
			}
			img := h.push(t, "app", how, earlyLayer("a"), earlyLayer("b"))
			s := open(t, cfg)
			ended := h.pull(t.Context(), s, "app")
			a, b := awaitEarly(t, cfg, ended, "a"), awaitEarly(t, cfg, ended, "b")
			if images, err := s.List(t.Context()); err != nil || len(images) > 0 {
				t.Errorf("the image is listed before its layers are complete: %v, %v", images, err)
			}
			h.send()
			if err := <-ended; err != nil {
				t.Fatal(err)
			}
			wantFile(t, cfg, a, "a")
			wantFile(t, cfg, b, "b")
			for i, layer := range img.Layers {
				if sent := h.sent(layer.Digest); sent != layer.Size {
					t.Errorf("%d bytes of layer %d were sent, want %d", sent, i, layer.Size)
				}
			}
			wantNothing(t, s, h.host+"/app:1")
		})
	}
}

// TestALargeLayerThatNeedsThoseBelow is unpacked over them while it is fetched.
func TestALargeLayerThatNeedsThoseBelow(t *testing.T) {
	h, cfg := newHeld(t), testConfig(t)
	base := imagetest.Layer{{Path: "d", Dir: true, Mode: 0o750, UID: 7}, {Path: "d/gone"}, {Path: "d/stays"}}
	h.push(t, "app", "", base, earlyLayer("a",
		imagetest.File{Path: "d/new", Content: []byte("new"), Raw: true}, imagetest.File{Path: "d/.wh.gone", Raw: true}, imagetest.File{Path: "d/.wh.never", Raw: true}))
	s := open(t, cfg)
	ended := h.pull(t.Context(), s, "app")
	early := awaitEarly(t, cfg, ended, "a")
	h.send()
	if err := <-ended; err != nil {
		t.Fatal(err)
	}
	wantFile(t, cfg, early, "a")
	found, err := s.Get(t.Context(), h.host+"/app:1")
	if err != nil {
		t.Fatal(err)
	}
	mounted, err := s.Prepare(t.Context(), image.RootfsSpec{Key: "c", ImageID: found.ID})
	if err != nil {
		t.Fatal(err)
	}
	fi, err := os.Stat(filepath.Join(mounted.Path, "d"))
	if err != nil || fi.Mode().Perm() != 0o750 {
		t.Errorf("the directory of the layer below: %v, %v", fi, err)
	}
	entries, err := os.ReadDir(filepath.Join(mounted.Path, "d"))
	if err != nil || len(entries) != 2 || entries[0].Name() != "new" || entries[1].Name() != "stays" {
		t.Errorf("it has %v, %v", entries, err)
	}
	if err := s.Release(t.Context(), "c"); err != nil {
		t.Error(err)
	}
	wantNothing(t, s, h.host+"/app:1")
}

// TestARefusedLayerEndsThePullAfterItsDownload: what the helper says of bytes that nobody has verified counts only once they
// are.
func TestARefusedLayerEndsThePullAfterItsDownload(t *testing.T) {
	for name, c := range map[string]struct {
		layer imagetest.Layer
		want  string
	}{
		"an entry": {append(earlyLayer("a")[:1:1], imagetest.File{Path: ".wh...", Raw: true}, earlyLayer("a")[1]), "deletes nothing that has a name"},
		"a digest": {earlyLayer("a"), "the image's config says"},
	} {
		t.Run(name, func(t *testing.T) {
			h, cfg := newHeld(t), testConfig(t)
			img := build(t, imagetest.Spec{Layers: []imagetest.Layer{c.layer}})
			if name == "a digest" {
				other := build(t, imagetest.Spec{Layers: []imagetest.Layer{earlyLayer("b")}})
				var err error
				if img, err = other.WithLayers(img.Layers...); err != nil {
					t.Fatal(err)
				}
			}
			h.pushImage("bad", img)
			s := open(t, cfg)
			ended := h.pull(t.Context(), s, "bad")
			awaitEarly(t, cfg, ended, "a")
			if name == "an entry" {
				awaitPull(t, ended, "the helper has refused the layer", func() bool { return len(helpers(t, cfg)) == 0 })
			}
			h.send()
			if err := <-ended; !errors.Is(err, errs.Invalid) || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %v, want %q", err, c.want)
			}
			if sent := h.sent(img.Layers[0].Digest); sent != img.Layers[0].Size {
				t.Errorf("%d bytes were sent, want %d", sent, img.Layers[0].Size)
			}
			wantNothing(t, s, "")
		})
	}
}

// TestManyLargeLayersShareTheNode: pulls whose layers are all held run a bounded number of helpers, and all end, also if one
// layer of the node at a time is fetched.
func TestManyLargeLayersShareTheNode(t *testing.T) {
	const pulls, bound = 5, 8
	for _, places := range []int{0, 1} {
		t.Run(fmt.Sprint("places ", places), func(t *testing.T) {
			h, cfg := newHeld(t), testConfig(t)
			cfg.MaxTotalDownloads = places
			s := open(t, cfg)
			var all []chan error
			for i := range pulls {
				name := string(rune('a' + i))
				h.push(t, name, "", earlyLayer(name), earlyLayer(strings.ToUpper(name)))
			}
			for i := range pulls {
				all = append(all, h.pull(t.Context(), s, string(rune('a'+i))))
			}
			want := bound
			if places > 0 {
				want = places
			}
			awaitPull(t, nil, "the helpers wait", func() bool { return len(unpacked(t, cfg, "early-*")) == want })
			if pids := helpers(t, cfg); len(pids) != want {
				t.Errorf("%d helpers run, want %d", len(pids), want)
			}
			h.send()
			for _, ended := range all {
				if err := <-ended; err != nil {
					t.Error(err)
				}
			}
			if late := unpacked(t, cfg, "late-*"); len(late) != 2*pulls {
				t.Errorf("%d layers are unpacked, want %d", len(late), 2*pulls)
			}
		})
	}
}
