package registry

import (
	"bytes"
	"cmp"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/containerd/v2/plugins/content/local"
	"github.com/distribution/reference"
	imagespec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/image/downloads"
	"github.com/berthrun/berth/internal/image/imagetest"
	"github.com/berthrun/berth/internal/image/registry/keyring"
)

// site is registries on the loopback address, and the hosts.toml that names them as mirrors of
// team.test in their order; the last one is the registry itself.
type site struct {
	cfg   Config
	hosts []string
	store content.Store
	img   *imagetest.Image
	// stall is that of repositories, if not 0.
	stall time.Duration
}

func newSite(t *testing.T, registries ...*imagetest.Registry) *site {
	t.Helper()
	img, err := imagetest.Build(imagetest.Spec{Layers: []imagetest.Layer{{{Path: "f", Content: []byte(strings.Repeat("layer of a test ", 1<<16))}}}})
	if err != nil {
		t.Fatal(err)
	}
	s := &site{img: img}
	text := ""
	for _, r := range registries {
		r.Push("app", "1", img)
		server := httptest.NewServer(r)
		t.Cleanup(server.Close)
		host := strings.TrimPrefix(server.URL, "http://")
		s.hosts = append(s.hosts, host)
		text += fmt.Sprintf("\n[host.\"http://%s\"]\ncapabilities = [\"pull\", \"resolve\"]\n", host)
	}
	last := s.hosts[len(s.hosts)-1]
	cut := strings.LastIndex(text, "\n[host.")
	text = fmt.Sprintf("server = \"http://%s\"\n", last) + text[:cut]
	dir := t.TempDir()
	if err := os.Mkdir(filepath.Join(dir, "team.test"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "team.test", "hosts.toml"), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	if s.store, err = local.NewStore(t.TempDir()); err != nil {
		t.Fatal(err)
	}
	s.cfg = Config{Dirs: []string{dir}, Health: &Health{}}
	return s
}

// target keeps every unfinished download that it may keep.
type target struct{ content.Store }

func (d target) BeginDownload(ctx context.Context, desc imagespec.Descriptor) (content.Writer, error) {
	return d.Writer(ctx, content.WithRef(desc.Digest.String()), content.WithDescriptor(desc))
}

func (d target) LeaveDownload(ctx context.Context, desc imagespec.Descriptor, keep bool) error {
	if keep {
		return nil
	}
	return d.Abort(ctx, desc.Digest.String())
}

func (s *site) open(t *testing.T, auth Auth) *Repository {
	t.Helper()
	named, err := reference.ParseDockerRef("team.test/app:1")
	if err != nil {
		t.Fatal(err)
	}
	r, err := Open(t.Context(), named, auth, s.cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(r.Close)
	r.stall = cmp.Or(s.stall, r.stall)
	return r
}

// fetchLayer fetches the layer of the image and checks it.
func (s *site) fetchLayer(t *testing.T, r *Repository) error {
	t.Helper()
	layer := s.img.Layers[0]
	if err := r.Fetch(t.Context(), target{s.store}, layer.Descriptor, downloads.Turn{}, func(int64) {}); err != nil {
		return err
	}
	data, err := content.ReadBlob(t.Context(), s.store, imagespec.Descriptor{Digest: layer.Digest, Size: layer.Size})
	if err != nil || string(data) != string(layer.Data) {
		t.Errorf("the store has %d bytes, %v", len(data), err)
	}
	return nil
}

// cutting answers requests for blobs with the first n bytes and a broken connection.
func cutting(n int, blob *imagetest.Blob) func(http.ResponseWriter, *http.Request) bool {
	return func(w http.ResponseWriter, req *http.Request) bool {
		if !strings.Contains(req.URL.Path, "/blobs/") {
			return false
		}
		if req.Header.Get("Range") != "" {
			w.WriteHeader(http.StatusInternalServerError)
			return true
		}
		w.Header().Set("Content-Length", fmt.Sprint(len(blob.Data)))
		_, _ = w.Write(blob.Data[:n])
		w.(http.Flusher).Flush()
		panic(http.ErrAbortHandler)
	}
}

func TestTheNextEndpointSendsTheRestOfALayer(t *testing.T) {
	first, second := &imagetest.Registry{}, &imagetest.Registry{}
	s := newSite(t, first, second)
	layer := s.img.Layers[0]
	first.Intercept = cutting(300_000, &layer)
	if err := s.fetchLayer(t, s.open(t, Auth{})); err != nil {
		t.Fatal(err)
	}
	if sent := second.Sent(layer.Digest); sent <= 0 || sent > layer.Size-300_000 {
		t.Errorf("the second endpoint sent %d bytes of %d, want those after the first 300000", sent, layer.Size)
	}
}

func TestAnEndpointThatCutsIsAskedForTheRest(t *testing.T) {
	only := &imagetest.Registry{}
	s := newSite(t, only)
	layer := s.img.Layers[0]
	var cuts atomic.Int32
	cut := cutting(300_000, &layer)
	only.Intercept = func(w http.ResponseWriter, req *http.Request) bool {
		return cuts.Add(1) == 1 && cut(w, req)
	}
	if err := s.fetchLayer(t, s.open(t, Auth{})); err != nil {
		t.Fatal(err)
	}
	if sent := only.Sent(layer.Digest); sent != layer.Size-300_000 {
		t.Errorf("it sent %d more bytes, want %d", sent, layer.Size-300_000)
	}
}

// TestLayerThatFillsTheLastRead: the store reads a mebibyte at a time. When the layer ends with one, the store has
// its end with its last bytes, and asks for it again.
func TestLayerThatFillsTheLastRead(t *testing.T) {
	r := &imagetest.Registry{}
	s := newSite(t, r)
	for _, size := range []int{1 << 20, 2 << 20, 1<<20 + 1} {
		blob := imagetest.NewBlob(imagespec.MediaTypeImageLayer, bytes.Repeat([]byte{byte(size)}, size))
		r.PushBlob(blob)
		s.img.Layers = []imagetest.Blob{blob}
		if err := s.fetchLayer(t, s.open(t, Auth{})); err != nil {
			t.Errorf("a layer of %d bytes: %v", size, err)
		}
	}
}

func TestAFetchContinuesWhatAnEarlierOneLeft(t *testing.T) {
	r := &imagetest.Registry{}
	s := newSite(t, r)
	layer := s.img.Layers[0]
	r.Intercept = cutting(300_000, &layer)
	if err := s.fetchLayer(t, s.open(t, Auth{})); !errors.Is(err, errs.Unavailable) {
		t.Fatalf("error %v", err)
	}
	r.Intercept = nil
	var got int64
	if err := s.open(t, Auth{}).Fetch(t.Context(), target{s.store}, layer.Descriptor, downloads.Turn{}, func(n int64) { got += n }); err != nil {
		t.Fatal(err)
	}
	if sent := r.Sent(layer.Digest); sent != layer.Size-300_000 || got != layer.Size {
		t.Errorf("sent %d bytes, want %d; counted %d of %d", sent, layer.Size-300_000, got, layer.Size)
	}
}

func TestAPartThatIsDamagedIsFetchedAgain(t *testing.T) {
	r := &imagetest.Registry{}
	s := newSite(t, r)
	layer := s.img.Layers[0]
	w, err := target{s.store}.BeginDownload(t.Context(), layer.Descriptor)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := w.Write(make([]byte, 300_000)); err != nil { // as a loss of power leaves it
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	if err := s.fetchLayer(t, s.open(t, Auth{})); err != nil {
		t.Fatal(err)
	}
	if sent := r.Sent(layer.Digest); sent != 2*layer.Size-300_000 {
		t.Errorf("sent %d bytes, want the rest of %d after 300000, then all", sent, layer.Size)
	}
}

func TestWrongBytesOfAMirrorAreFetchedElsewhere(t *testing.T) {
	mirror, registry := &imagetest.Registry{}, &imagetest.Registry{}
	s := newSite(t, mirror, registry)
	bad := s.img.Layers[0]
	bad.Data = append([]byte{}, bad.Data...)
	bad.Data[1000] ^= 1
	mirror.PushBlob(bad)
	if err := s.fetchLayer(t, s.open(t, Auth{})); err != nil {
		t.Fatal(err)
	}
	registry.PushBlob(bad)
	s.store = newSite(t, registry).store
	registry.PushBlob(bad)
	if err := s.fetchLayer(t, s.open(t, Auth{})); !errors.Is(err, errs.Invalid) {
		t.Errorf("wrong bytes everywhere: %v", err)
	}
	if all, err := s.store.ListStatuses(t.Context()); err != nil || len(all) != 0 {
		t.Errorf("wrong bytes are kept: %v, %v", all, err)
	}
}

func status(code int, header ...string) func(http.ResponseWriter, *http.Request) bool {
	return func(w http.ResponseWriter, _ *http.Request) bool {
		for i := 0; i+1 < len(header); i += 2 {
			w.Header().Set(header[i], header[i+1])
		}
		w.WriteHeader(code)
		return true
	}
}

func TestFaultsFallThroughAndTheRegistryDecidesTheKind(t *testing.T) {
	for name, c := range map[string]struct {
		mirror, registry func(http.ResponseWriter, *http.Request) bool
		kind             error
	}{
		"mirror fails":               {status(http.StatusBadGateway), nil, nil},
		"mirror throttles":           {status(http.StatusTooManyRequests, "Retry-After", "3600"), nil, nil},
		"mirror demands a password":  {status(http.StatusForbidden), nil, nil},
		"mirror lacks, registry off": {status(http.StatusNotFound), status(http.StatusBadGateway), errs.Unavailable},
		"mirror off, registry lacks": {status(http.StatusBadGateway), status(http.StatusNotFound), errs.NotFound},
	} {
		t.Run(name, func(t *testing.T) {
			mirror, registry := &imagetest.Registry{Intercept: c.mirror}, &imagetest.Registry{Intercept: c.registry}
			s := newSite(t, mirror, registry)
			_, err := s.open(t, Auth{}).Resolve(t.Context())
			if c.kind == nil && err != nil || !errors.Is(err, c.kind) {
				t.Errorf("error %v, want kind %v", err, c.kind)
			}
			for _, host := range s.hosts {
				if err != nil && !strings.Contains(err.Error(), host) {
					t.Errorf("the error does not name %s: %v", host, err)
				}
			}
		})
	}
}

// TestABrokenMirrorIsAskedOnce: the resolver's own repetitions are for a registry without mirrors.
func TestABrokenMirrorIsAskedOnce(t *testing.T) {
	abort := func(http.ResponseWriter, *http.Request) bool { panic(http.ErrAbortHandler) }
	mirror, registry := &imagetest.Registry{Intercept: abort}, &imagetest.Registry{}
	s := newSite(t, mirror, registry)
	if _, err := s.open(t, Auth{}).Resolve(t.Context()); err != nil {
		t.Fatal(err)
	}
	if n := len(mirror.Requests()); n != 1 {
		t.Errorf("it was asked %d times", n)
	}
}

func TestARegistryThatLimitsRequests(t *testing.T) {
	r := &imagetest.Registry{Intercept: status(http.StatusTooManyRequests, "Retry-After", "3600")}
	s := newSite(t, r)
	_, err := s.open(t, Auth{}).Resolve(t.Context())
	if !errors.Is(err, errs.Unavailable) || !strings.Contains(err.Error(), s.hosts[0]+" limits requests (429 Too Many Requests) and asks to wait 1h0m0s") {
		t.Errorf("error %v", err)
	}
	if n := len(r.Requests()); n != 1 {
		t.Errorf("it was asked %d times", n)
	}
	var asked atomic.Int32
	r.Intercept = func(w http.ResponseWriter, req *http.Request) bool {
		return asked.Add(1) < maxRounds && status(http.StatusServiceUnavailable, "Retry-After", "0")(w, req)
	}
	if _, err := s.open(t, Auth{}).Resolve(t.Context()); err != nil {
		t.Errorf("after the wait: %v", err)
	}
}

func TestRetryAfter(t *testing.T) {
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	for value, want := range map[string]time.Duration{
		"7": 7 * time.Second, "0": 0, now.Add(time.Minute).Format(http.TimeFormat): time.Minute, now.Add(-time.Minute).Format(http.TimeFormat): 0,
	} {
		if got, ok := retryAfter(value, now); !ok || got != want {
			t.Errorf("%q: %s, %v", value, got, ok)
		}
	}
	for _, value := range []string{"", "-1", "soon", "99999999999"} {
		if got, ok := retryAfter(value, now); ok {
			t.Errorf("%q: %s", value, got)
		}
	}
}

func TestAwaitIsBounded(t *testing.T) {
	throttles := func(after time.Duration) []fault {
		return []fault{{err: errs.NotFound}, {err: &ThrottledError{Status: http.StatusTooManyRequests, After: after}}}
	}
	synctest.Test(t, func(t *testing.T) {
		if !await(t.Context(), throttles(20*time.Second), 0) || await(t.Context(), throttles(maxWait+1), 0) || await(t.Context(), throttles(1), maxRounds-1) ||
			await(t.Context(), []fault{{err: errs.Unavailable}}, 0) || !await(t.Context(), throttles(0), 0) {
			t.Error("waits for the wrong answers")
		}
		ended, cancel := context.WithCancel(t.Context())
		cancel()
		if await(ended, throttles(time.Second), 0) {
			t.Error("waits although the caller has left")
		}
	})
}

func TestHealthPutsAnEndpointThatFailsBehind(t *testing.T) {
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	h := &Health{now: func() time.Time { return now }}
	down := fmt.Errorf("connection refused: %w", errs.Unavailable)
	fail := func(err error) { h.failed(t.Context(), "m", err, err.Error()) }
	for range maxFailures - 1 {
		fail(down)
	}
	if !h.fit("m") {
		t.Error("behind too early")
	}
	fail(fmt.Errorf("no such tag: %w", errs.NotFound)) // an answer
	for range maxFailures {
		if !h.fit("m") {
			t.Fatal("an answer does not count")
		}
		fail(down)
	}
	if h.fit("m") || !h.fit("other") {
		t.Error("not behind after failures in a row")
	}
	if text := h.describe("m"); !strings.Contains(text, "2026-01-02T03:04:15Z") || !strings.Contains(text, "connection refused") {
		t.Errorf("described as %q", text)
	}
	now = now.Add(minBehind)
	if !h.fit("m") || h.fit("m") {
		t.Error("want one probe")
	}
	now = now.Add(minBehind)
	if !h.fit("m") {
		t.Error("a probe that never ends locks the endpoint out")
	}
	now = now.Add(minBehind)
	fail(down)
	now = now.Add(2*minBehind - 1)
	if h.fit("m") {
		t.Error("the time is not doubled")
	}
	now = now.Add(1)
	if !h.fit("m") {
		t.Error("the time does not end")
	}
	h.worked("m")
	if !h.fit("m") || h.describe("m") != "" {
		t.Error("a success does not count")
	}
	fail(&ThrottledError{Status: http.StatusTooManyRequests, After: time.Minute})
	now = now.Add(time.Minute - 1)
	if h.fit("m") {
		t.Error("asked although it asks to wait")
	}
	cancelled, cancel := context.WithCancel(t.Context())
	cancel()
	h.failed(cancelled, "n", down, "")
	if h.describe("n") != "" {
		t.Error("the end of a caller counts")
	}
}

func TestAnEndpointThatFailsIsAskedLast(t *testing.T) {
	mirror, registry := &imagetest.Registry{Intercept: status(http.StatusBadGateway)}, &imagetest.Registry{}
	s := newSite(t, mirror, registry)
	for range maxFailures + 2 {
		if _, err := s.open(t, Auth{}).Resolve(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if n := len(mirror.Requests()); n != maxFailures {
		t.Errorf("the mirror was asked %d times, want %d", n, maxFailures)
	}
	shown, _ := s.open(t, Auth{}).Explain(t.Context(), false)
	if len(shown) != 2 || shown[0].Mirror || !strings.Contains(shown[1].Health, "asked after the others until") {
		t.Errorf("explained as %+v", shown)
	}
	// It helps where the others do not.
	mirror.Intercept, registry.Intercept = nil, status(http.StatusBadGateway)
	if _, err := s.open(t, Auth{}).Resolve(t.Context()); err != nil {
		t.Error(err)
	}
}

func TestCredentialsOfTheNodeAreForTheirHost(t *testing.T) {
	var leaked []string
	spy := func(_ http.ResponseWriter, req *http.Request) bool {
		if user, password, ok := req.BasicAuth(); ok {
			leaked = append(leaked, user+":"+password)
		}
		return false
	}
	mirror, registry := &imagetest.Registry{User: "m", Password: "mirror-pw", Intercept: spy}, &imagetest.Registry{User: "nobody", Password: "x", Intercept: spy}
	s := newSite(t, mirror, registry)
	pair := base64.StdEncoding.EncodeToString([]byte("m:mirror-pw"))
	path := filepath.Join(t.TempDir(), "config.json")
	if err := os.WriteFile(path, fmt.Appendf(nil, `{"auths": {%q: {"auth": %q}}}`, s.hosts[0], pair), 0o600); err != nil {
		t.Fatal(err)
	}
	keys, err := keyring.Read([]string{path})
	if err != nil {
		t.Fatal(err)
	}
	s.cfg.Keys = keys
	request := Auth{Username: "joe", Password: "request-pw"}
	if _, err := s.open(t, request).Resolve(t.Context()); err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(slices.Compact(leaked), []string{"m:mirror-pw"}) {
		t.Errorf("sent %q", leaked)
	}
	tried, _ := s.open(t, request).Explain(t.Context(), true)
	for _, e := range tried {
		text := fmt.Sprintf("%+v %+v", e, e.Attempt)
		if strings.Contains(text, "mirror-pw") || strings.Contains(text, "request-pw") || strings.Contains(text, pair) {
			t.Errorf("a secret is shown: %s", text)
		}
		if e.Mirror && (!strings.Contains(e.Credentials, path+", entry") || e.Attempt.Fault != "") {
			t.Errorf("mirror: %s", text)
		}
		// Its host is not the one in the image's name.
		if !e.Mirror && (!strings.HasPrefix(e.Credentials, "none") || e.Attempt.Fault == "") {
			t.Errorf("registry: %s", text)
		}
	}
}

func TestExplainNamesFilesAndLines(t *testing.T) {
	dir := t.TempDir()
	if err := os.Mkdir(filepath.Join(dir, "team.test"), 0o700); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "team.test", "hosts.toml")
	text := "# mirrors\nserver = \"https://team.test\"\n\n[host.\"https://b.test/x\"]\ncapabilities = [\"pull\"]\nskip_verify = true\n" +
		"[host.\"https://b.test/x\".header]\nAuthorization = \"Basic c2VjcmV0OnB3\"\n\n[host.\"http://a.test:5000\"]\n"
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	named, err := reference.ParseDockerRef("team.test/app:1")
	if err != nil {
		t.Fatal(err)
	}
	r, err := Open(t.Context(), named, Auth{Username: "u", Password: "p"}, Config{Dirs: []string{dir}})
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	var got []string
	shown, _ := r.Explain(t.Context(), false)
	for _, e := range shown {
		got = append(got, strings.Join([]string{e.URL, e.Source, e.Credentials, strings.Join(e.TLS, ","), strings.Join(e.Capabilities, ","), e.Skipped}, " | "))
	}
	const none = "none: those of a request are for team.test only, and no credential file names this host"
	want := []string{
		"http://a.test:5000/v2 | " + path + ":10 | " + none + " | none: plain http | pull,resolve,push | ",
		"https://team.test/v2 | " + path + ":2 | those of this request | verified with the authorities of the host | pull,resolve,push | ",
		"https://b.test/x/v2 | " + path + ":4 | the header Authorization of " + path + ":4 | the certificate is not verified (skip_verify) | pull | " +
			"not asked what the tag means: its capabilities lack resolve; asked for manifests and blobs by digest",
	}
	if !slices.Equal(got, want) {
		t.Errorf("explained as\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}
