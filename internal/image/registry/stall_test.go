package registry

import (
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/berthrun/berth/internal/image/downloads"
	"github.com/berthrun/berth/internal/image/imagetest"
)

// TestWhatComesBeforeTheRestIsProgress: a server without ranges sends a blob from its beginning, also when an earlier fetch
// has left most of it. That takes longer than a server may send nothing.
func TestWhatComesBeforeTheRestIsProgress(t *testing.T) {
	slow, other := &imagetest.Registry{}, &imagetest.Registry{}
	s := newSite(t, slow, other)
	s.stall = 400 * time.Millisecond
	layer := s.img.Layers[0]
	w, err := target{s.store}.BeginDownload(t.Context(), layer.Descriptor)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := w.Write(layer.Data[:layer.Size-1000]); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	slow.Intercept = func(w http.ResponseWriter, req *http.Request) bool {
		if !strings.HasSuffix(req.URL.Path, layer.Digest.String()) {
			return false
		}
		w.Header().Set("Content-Length", strconv.FormatInt(layer.Size, 10))
		for chunk := range slices.Chunk(layer.Data, 64<<10) {
			_, _ = w.Write(chunk)
			w.(http.Flusher).Flush()
			time.Sleep(40 * time.Millisecond)
		}
		return true
	}
	var got int64
	calls := 0
	err = s.open(t, Auth{}).Fetch(t.Context(), target{s.store}, layer.Descriptor, downloads.Turn{}, func(n int64) { got += n; calls++ })
	if err != nil {
		t.Fatal(err)
	}
	if blobRequests(slow) != 1 || blobRequests(other) != 0 {
		t.Errorf("%d requests, and %d to the next endpoint; want one", blobRequests(slow), blobRequests(other))
	}
	if got != layer.Size || calls < 10 {
		t.Errorf("%d bytes are counted of %d, in %d calls; want some for each chunk", got, layer.Size, calls)
	}
}

// TestAPartThatStallsIsAskedForAgain: also at the only endpoint, whoever has asked for it.
func TestAPartThatStallsIsAskedForAgain(t *testing.T) {
	layerSize := (allParts-1)*partSize + 123
	for name, c := range map[string]struct {
		request int32
		sends   int
		memory  int64
	}{
		"the reader's":                {1, 10 << 10, 1 << 20},
		"one that is fetched ahead":   {3, 10 << 10, 1 << 20},
		"the reader's, and no answer": {5, 0, 1}, // no part is fetched ahead
	} {
		t.Run(name, func(t *testing.T) {
			r := &imagetest.Registry{}
			s, layer := newPartSite(t, r)
			s.stall = 300 * time.Millisecond
			r.Intercept = failing(layer, func(n int32, from, to int, w http.ResponseWriter, req *http.Request) bool {
				if n != c.request {
					return false
				}
				if c.sends > 0 {
					w.Header().Set("Content-Range", fmt.Sprintf("bytes %d-%d/%d", from, to-1, layerSize))
					w.Header().Set("Content-Length", strconv.Itoa(to-from))
					w.WriteHeader(http.StatusPartialContent)
					_, _ = w.Write(layer.Data[from : from+c.sends])
					w.(http.Flusher).Flush()
				}
				select {
				case <-req.Context().Done():
				case <-time.After(3 * time.Second):
					t.Error("the request is not ended")
				}
				return true
			})
			if err := s.fetchParts(t, downloads.Limits{Memory: c.memory}); err != nil {
				t.Error(err)
			}
		})
	}
}
