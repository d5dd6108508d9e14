package registry

import (
	"compress/gzip"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/distribution/reference"
	"github.com/klauspost/compress/zstd"
	"github.com/opencontainers/go-digest"
	imagespec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/image/imagetest"
	"github.com/berthrun/berth/internal/image/tree"
)

// zeros counts the bytes that it has written.
type zeros struct{ n atomic.Int64 }

// send writes a JSON string of many bytes, until the reader leaves.
func (z *zeros) send(w io.Writer, opening string) {
	const most = 32 << 20
	block := []byte(strings.Repeat("0", 64<<10))
	if _, err := io.WriteString(w, opening); err != nil {
		return
	}
	for z.n.Load() < most {
		if _, err := w.Write(block); err != nil {
			return
		}
		z.n.Add(int64(len(block)))
	}
	_, _ = io.WriteString(w, `"}`)
}

// TestAnswersAreBounded: a registry, and the host that it names for tokens, may send a token or a manifest without end,
// plain or compressed, by any address.
func TestAnswersAreBounded(t *testing.T) {
	for name, c := range map[string]struct {
		realm    string
		gzip     bool
		manifest bool
		want     string
	}{
		"token":                           {realm: "/token", want: "in the place of a token"},
		"token in gzip":                   {realm: "/token", gzip: true, want: "in the place of a token"},
		"token with the name of a blob":   {realm: "/v2/app/blobs/sha256:" + strings.Repeat("a", 64), want: "in the place of a token"},
		"token with a manifest's address": {realm: "/v2/app/manifests/2", gzip: true, want: "in the place of a token"},
		"manifest":                        {manifest: true, want: "in the place of a manifest"},
		"manifest in gzip":                {manifest: true, gzip: true, want: "in the place of a manifest"},
	} {
		t.Run(name, func(t *testing.T) {
			sent := &zeros{}
			var server *httptest.Server
			server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
				switch {
				case req.Method == http.MethodHead && c.manifest:
					return // without a digest, which has the client read the manifest
				case !c.manifest && req.URL.Path != c.realm:
					w.Header().Set("WWW-Authenticate", `Bearer realm="`+server.URL+c.realm+`",service="test"`)
					w.WriteHeader(http.StatusUnauthorized)
					return
				}
				w.Header().Set("Content-Type", imagespec.MediaTypeImageManifest)
				if !c.gzip {
					sent.send(w, `{"token":"`)
					return
				}
				w.Header().Set("Content-Encoding", "gzip")
				z, err := gzip.NewWriterLevel(w, gzip.BestSpeed)
				if err != nil {
					t.Error(err)
					return
				}
				sent.send(z, `{"token":"`)
				z.Close()
			}))
			defer server.Close()
			named, err := reference.ParseDockerRef(strings.TrimPrefix(server.URL, "http://") + "/app:1")
			if err != nil {
				t.Fatal(err)
			}
			r, err := Open(t.Context(), named, Auth{}, Config{})
			if err != nil {
				t.Fatal(err)
			}
			defer r.Close()
			_, err = r.Resolve(t.Context())
			if !errors.Is(err, errs.Invalid) || !strings.Contains(err.Error(), c.want) {
				t.Errorf("error %v, want %q", err, c.want)
			}
			if n := sent.n.Load(); n > 24<<20 && !c.gzip {
				t.Errorf("the server has sent %d bytes", n)
			}
		})
	}
}

// TestReferrersAreBounded: a list of referrers takes 60 times the bytes of its text.
func TestReferrersAreBounded(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		w.Header().Set("Content-Type", imagespec.MediaTypeImageIndex)
		if strings.Contains(req.URL.Path, "/referrers/") {
			_, _ = io.WriteString(w, `{"schemaVersion":2,"manifests":[{}`+strings.Repeat(",{}", tree.MaxElements)+`]}`)
		}
	}))
	defer server.Close()
	named, err := reference.ParseDockerRef(strings.TrimPrefix(server.URL, "http://") + "/app:1")
	if err != nil {
		t.Fatal(err)
	}
	r, err := Open(t.Context(), named, Auth{}, Config{})
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	list, err := r.Referrers(t.Context(), digest.FromString("x"), "")
	if !errors.Is(err, errs.Invalid) || !strings.Contains(err.Error(), "elements in the place of") {
		t.Errorf("%d referrers, error %v", len(list), err)
	}
}

// TestEncodedBlobs: the sender of zstd chooses how much memory its reader needs, and each of many encodings needs some.
func TestEncodedBlobs(t *testing.T) {
	for encoding, c := range map[string]struct {
		refused bool
		write   func(w io.Writer) io.WriteCloser
	}{
		"identity":   {},
		"gzip":       {write: func(w io.Writer) io.WriteCloser { return gzip.NewWriter(w) }},
		"gzip, gzip": {refused: true},
		"zstd": {refused: true, write: func(w io.Writer) io.WriteCloser {
			z, err := zstd.NewWriter(w)
			if err != nil {
				t.Error(err)
			}
			return z
		}},
		strings.Repeat("deflate,", 1000): {refused: true},
	} {
		r := &imagetest.Registry{}
		s := newSite(t, r)
		r.Intercept = func(w http.ResponseWriter, req *http.Request) bool {
			if !strings.Contains(req.URL.Path, "/blobs/") {
				return false
			}
			if accepts := req.Header.Get("Accept-Encoding"); accepts != "identity" {
				t.Errorf("the client asks for the encodings %q", accepts)
			}
			w.Header().Set("Content-Encoding", encoding)
			if c.write == nil {
				return false
			}
			z := c.write(w)
			_, _ = z.Write(s.img.Layers[0].Data) // a client that refuses it has left
			z.Close()
			return true
		}
		err := s.fetchLayer(t, s.open(t, Auth{}))
		if refused := errors.Is(err, errs.Unsupported); refused != c.refused || err != nil && !refused {
			t.Errorf("encoding %.20q: %v", encoding, err)
		}
	}
}
