//go:build integration

package local

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/image"
	"github.com/berthrun/berth/internal/image/imagetest"
)

// serve starts a registry on the loopback address and returns its host.
func serve(t *testing.T, r *imagetest.Registry) string {
	t.Helper()
	server := httptest.NewServer(r)
	t.Cleanup(server.Close)
	r.Realm = server.URL + "/token"
	return strings.TrimPrefix(server.URL, "http://")
}

func build(t *testing.T, spec imagetest.Spec) *imagetest.Image {
	t.Helper()
	img, err := imagetest.Build(spec)
	if err != nil {
		t.Fatal(err)
	}
	return img
}

func layersOf(n int, compression string) imagetest.Spec {
	spec := imagetest.Spec{Compression: compression, Env: []string{"A=b"}}
	for i := range n {
		spec.Layers = append(spec.Layers, imagetest.Layer{{Path: fmt.Sprint("f", i), Content: []byte(strings.Repeat(fmt.Sprint(i), 50_000))}})
	}
	return spec
}

// TestPullByANameWithBoth: of a name with a tag and a digest the digest counts, as for containerd, CRI-O and Docker. Nobody asks
// whether the tag has this digest, so the image does not get it.
func TestPullByANameWithBoth(t *testing.T) {
	r := &imagetest.Registry{}
	host := serve(t, r)
	img := build(t, layersOf(1, ""))
	r.Push("team/app", "v1", img)
	s := open(t, testConfig(t))
	digested := host + "/team/app@" + img.Manifest.Digest.String()
	both := strings.Replace(digested, "@", ":gone@", 1)
	id, err := s.Pull(t.Context(), both, image.Auth{}, nil)
	if err != nil {
		t.Fatal(err)
	}
	got, err := s.Get(t.Context(), both)
	if err != nil || got.ID != id || len(got.Tags) > 0 || !slices.Equal(got.Digests, []string{digested}) {
		t.Errorf("the image has the names %q and %q, %v", got.Tags, got.Digests, err)
	}
	if _, err := s.Get(t.Context(), host+"/team/app:gone"); !errors.Is(err, errs.NotFound) {
		t.Errorf("found by the tag, which nobody has looked up: %v", err)
	}
	for _, asked := range r.Requests() {
		if strings.HasSuffix(asked, "/gone") {
			t.Errorf("the registry was asked for the tag: %s", asked)
		}
	}
}

func TestPullByTagAndDigest(t *testing.T) {
	ctx := context.Background()
	r := &imagetest.Registry{}
	host := serve(t, r)
	img := build(t, layersOf(5, "gzip"))
	r.Push("team/app", "v1", img)
	s := open(t, testConfig(t))
	var mu sync.Mutex
	stages := map[string]bool{}
	var most int64
	id, err := s.Pull(ctx, host+"/team/app:v1", image.Auth{}, func(p image.Progress) {
		mu.Lock()
		defer mu.Unlock()
		stages[p.Stage] = true
		if p.Stage == "fetching" {
			most = max(most, p.Total)
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	if id != img.ID() {
		t.Errorf("id %s, want %s", id, img.ID())
	}
	for _, stage := range []string{"resolving", "fetching", "unpacking", "done"} {
		if !stages[stage] {
			t.Errorf("stage %s was not told", stage)
		}
	}
	if most == 0 {
		t.Error("no total was told")
	}
	got, err := s.Get(ctx, id)
	if err != nil {
		t.Fatal(err)
	}
	wantDigest := host + "/team/app@" + img.Manifest.Digest.String()
	if len(got.Tags) != 1 || got.Tags[0] != host+"/team/app:v1" || len(got.Digests) != 1 || got.Digests[0] != wantDigest || got.Config.Env[0] != "A=b" {
		t.Errorf("image %+v", got)
	}
	// Existing content is not fetched again.
	before := len(r.Requests())
	if _, err := s.Pull(ctx, host+"/team/app:v1", image.Auth{}, nil); err != nil {
		t.Fatal(err)
	}
	if asked := r.Requests()[before:]; len(asked) != 1 {
		t.Errorf("a second pull asked %v", asked)
	}
	if err := s.Remove(ctx, id); err != nil {
		t.Fatal(err)
	}
	if id, err = s.Pull(ctx, wantDigest, image.Auth{}, nil); err != nil {
		t.Fatal(err)
	}
	if got, err = s.Get(ctx, id); err != nil || len(got.Tags) != 0 || len(got.Digests) != 1 {
		t.Errorf("pulled by digest: %+v, %v", got, err)
	}
	usage, err := s.Usage(ctx)
	if err != nil || len(usage.Images) != 1 || usage.Images[0].Bytes < 250_000 || usage.Images[0].Inodes < 5 {
		t.Errorf("usage %+v, %v", usage, err)
	}
}

func TestPullChoosesThePlatform(t *testing.T) {
	ctx := context.Background()
	r := &imagetest.Registry{}
	host := serve(t, r)
	foreign := layersOf(1, "")
	foreign.Architecture = "s390x"
	ours, theirs := build(t, layersOf(1, "")), build(t, foreign)
	index := r.PushIndex("multi", "1", map[string]*imagetest.Image{"linux/" + runtime.GOARCH: ours, "linux/s390x": theirs})
	r.PushIndex("other", "1", map[string]*imagetest.Image{"linux/s390x": theirs})
	r.Push("single", "1", theirs)
	s := open(t, testConfig(t))
	if id, err := s.Pull(ctx, host+"/multi:1", image.Auth{}, nil); err != nil || id != ours.ID() {
		t.Errorf("index: %s, %v", id, err)
	}
	for _, name := range []string{"other", "single"} {
		_, err := s.Pull(ctx, host+"/"+name+":1", image.Auth{}, nil)
		want := fmt.Sprintf("image %s/%s:1 is linux/s390x, this node is linux/%s", host, name, runtime.GOARCH)
		if !errors.Is(err, errs.Unsupported) || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: error %v, want %s", name, err, want)
		}
	}
	// The digest of the whole list, then that of this node's image.
	digests := []string{host + "/multi@" + index.Digest.String(), host + "/multi@" + ours.Manifest.Digest.String()}
	wantDigests := func(s *Images) {
		t.Helper()
		for _, ref := range append([]string{host + "/multi:1"}, digests...) {
			if got, err := s.Get(ctx, ref); err != nil || got.ID != ours.ID() || !slices.Equal(got.Digests, digests) {
				t.Errorf("%s: %+v, %v; want the digests %q", ref, got, err, digests)
			}
		}
	}
	wantDigests(s)
	s.Close()
	reopened := open(t, s.cfg)
	wantDigests(reopened)
	if list, err := reopened.List(ctx); err != nil || len(list) != 1 || list[0].ID != ours.ID() {
		t.Errorf("after reopening: %+v, %v", list, err)
	}
}

func TestPullWithCredentials(t *testing.T) {
	ctx := context.Background()
	basic := &imagetest.Registry{User: "joe", Password: "s3cr3t-passw0rd"}
	token := &imagetest.Registry{User: "joe", Password: "s3cr3t-passw0rd", Bearer: true, Token: "t0k3n-of-the-registry"}
	img := build(t, layersOf(1, ""))
	for name, r := range map[string]*imagetest.Registry{"basic": basic, "bearer": token} {
		t.Run(name, func(t *testing.T) {
			host := serve(t, r)
			r.Push("private", "1", img)
			good := map[string]image.Auth{
				"user":    {Username: "joe", Password: "s3cr3t-passw0rd"},
				"auth":    {Auth: base64.StdEncoding.EncodeToString([]byte("joe:s3cr3t-passw0rd"))},
				"address": {Username: "joe", Password: "s3cr3t-passw0rd", ServerAddress: "http://" + host + "/v1/"},
			}
			if r.Bearer {
				good["identity token"] = image.Auth{IdentityToken: "s3cr3t-passw0rd"}
				good["registry token"] = image.Auth{RegistryToken: "t0k3n-of-the-registry"}
			}
			for how, auth := range good {
				s := open(t, testConfig(t))
				if _, err := s.Pull(ctx, host+"/private:1", auth, nil); err != nil {
					t.Errorf("%s: %v", how, err)
				}
			}
			s := open(t, testConfig(t))
			for how, auth := range map[string]image.Auth{
				"anonymous": {},
				"wrong":     {Username: "joe", Password: "wr0ng-passw0rd"},
				"elsewhere": {Username: "joe", Password: "s3cr3t-passw0rd", ServerAddress: "elsewhere.example"},
				"token":     {RegistryToken: "wr0ng-passw0rd"},
			} {
				_, err := s.Pull(ctx, host+"/private:1", auth, nil)
				if !errors.Is(err, errs.Denied) {
					t.Errorf("%s: error %v, want kind Denied", how, err)
				}
				if err != nil && (strings.Contains(err.Error(), "passw0rd") || strings.Contains(err.Error(), base64.StdEncoding.EncodeToString([]byte("joe:wr0ng-passw0rd")))) {
					t.Errorf("%s: the error tells the password: %v", how, err)
				}
			}
		})
	}
}

func TestMirrorsAreTriedInOrderWithoutCredentials(t *testing.T) {
	ctx := context.Background()
	img := build(t, layersOf(2, ""))
	var leaked atomic.Value
	spy := func(_ http.ResponseWriter, req *http.Request) bool {
		if auth := req.Header.Get("Authorization"); auth != "" {
			leaked.Store(auth)
		}
		return false
	}
	down := &imagetest.Registry{Intercept: func(w http.ResponseWriter, req *http.Request) bool {
		spy(w, req)
		w.WriteHeader(http.StatusServiceUnavailable)
		return true
	}}
	demands := &imagetest.Registry{User: "nobody", Password: "none", Intercept: spy}
	mirror := &imagetest.Registry{Intercept: spy}
	mirror.Push("library/app", "1", img)
	hosts := []string{serve(t, down), serve(t, demands), serve(t, mirror)}
	dir := t.TempDir()
	cfg := testConfig(t)
	cfg.RegistryConfigDirs = []string{filepath.Join(dir, "absent"), dir}
	if err := os.MkdirAll(filepath.Join(dir, "docker.io"), 0o755); err != nil {
		t.Fatal(err)
	}
	toml := "server = \"http://127.0.0.1:1\"\n"
	for _, host := range hosts {
		toml += fmt.Sprintf("[host.\"http://%s\"]\n", host)
	}
	if err := os.WriteFile(filepath.Join(dir, "docker.io", "hosts.toml"), []byte(toml), 0o644); err != nil {
		t.Fatal(err)
	}
	s := open(t, cfg)
	if _, err := s.Pull(ctx, "app:1", image.Auth{Username: "joe", Password: "secret"}, nil); err != nil {
		t.Fatal(err)
	}
	if auth := leaked.Load(); auth != nil {
		t.Errorf("a mirror was sent %v", auth)
	}
	for i, r := range []*imagetest.Registry{down, demands, mirror} {
		if len(r.Requests()) == 0 {
			t.Errorf("mirror %d was not asked", i)
		}
	}
}

func TestPullRefusesWrongContent(t *testing.T) {
	ctx := context.Background()
	img := build(t, layersOf(3, ""))
	layer := img.Layers[1]
	blob := func(answer func(w http.ResponseWriter)) func(http.ResponseWriter, *http.Request) bool {
		return func(w http.ResponseWriter, req *http.Request) bool {
			if !strings.HasSuffix(req.URL.Path, layer.Digest.String()) {
				return false
			}
			answer(w)
			return true
		}
	}
	for name, c := range map[string]struct {
		intercept func(http.ResponseWriter, *http.Request) bool
		kind      error
	}{
		"other content": {blob(func(w http.ResponseWriter) {
			data := append([]byte{}, layer.Data...)
			data[1000] ^= 1
			_, _ = w.Write(data)
		}), errs.Invalid},
		"too long": {blob(func(w http.ResponseWriter) { _, _ = w.Write(append(layer.Data, layer.Data...)) }), errs.Invalid},
		"cut short": {blob(func(w http.ResponseWriter) {
			w.Header().Set("Content-Length", fmt.Sprint(len(layer.Data)))
			_, _ = w.Write(layer.Data[:100])
		}), errs.Unavailable},
		"missing":  {blob(func(w http.ResponseWriter) { w.WriteHeader(http.StatusNotFound) }), errs.NotFound},
		"failing":  {blob(func(w http.ResponseWriter) { w.WriteHeader(http.StatusBadGateway) }), errs.Unavailable},
		"all down": {func(w http.ResponseWriter, _ *http.Request) bool { w.WriteHeader(http.StatusBadGateway); return true }, errs.Unavailable},
		"manifest is a page": {func(w http.ResponseWriter, req *http.Request) bool {
			if !strings.Contains(req.URL.Path, "/manifests/") {
				return false
			}
			w.Header().Set("Content-Type", "text/html")
			_, _ = w.Write([]byte("<html>log in</html>"))
			return true
		}, errs.NotFound},
	} {
		t.Run(name, func(t *testing.T) {
			r := &imagetest.Registry{Intercept: c.intercept}
			host := serve(t, r)
			r.Push("app", "1", img)
			s := open(t, testConfig(t))
			_, err := s.Pull(ctx, host+"/app:1", image.Auth{}, nil)
			if !errors.Is(err, c.kind) {
				t.Errorf("error %v, want kind %v", err, c.kind)
			}
			// What is complete stays for the next pull if that may succeed, or until somebody removes the image.
			if errors.Is(c.kind, errs.Unavailable) {
				if err := s.Remove(ctx, host+"/app:1"); err != nil {
					t.Error(err)
				}
			}
			s.Close()
			assertEmpty(t, s)
		})
	}
}

func TestPullOfAbsentImages(t *testing.T) {
	ctx := context.Background()
	host := serve(t, &imagetest.Registry{})
	s := open(t, testConfig(t))
	if _, err := s.Pull(ctx, host+"/nosuch:1", image.Auth{}, nil); !errors.Is(err, errs.NotFound) {
		t.Errorf("absent image: %v", err)
	}
	if _, err := s.Pull(ctx, "127.0.0.1:1/x:1", image.Auth{}, nil); !errors.Is(err, errs.Unavailable) {
		t.Errorf("nobody listens: %v", err)
	}
	if _, err := s.Pull(ctx, "Bad Name", image.Auth{}, nil); !errors.Is(err, errs.Invalid) {
		t.Errorf("bad name: %v", err)
	}
}

// hang sends the first half of one blob and then nothing, until the test ends.
func hang(t *testing.T, img *imagetest.Image) (intercept func(http.ResponseWriter, *http.Request) bool, reached chan struct{}) {
	stop := make(chan struct{})
	t.Cleanup(func() { close(stop) })
	reached = make(chan struct{}, 100)
	return func(w http.ResponseWriter, req *http.Request) bool {
		layer := img.Layers[0]
		if !strings.HasSuffix(req.URL.Path, layer.Digest.String()) {
			return false
		}
		w.Header().Set("Content-Length", fmt.Sprint(len(layer.Data)))
		_, _ = w.Write(layer.Data[:len(layer.Data)/2])
		w.(http.Flusher).Flush()
		reached <- struct{}{}
		select {
		case <-stop:
		case <-req.Context().Done():
		}
		return true
	}, reached
}

func TestRegistryThatHangsEndsThePull(t *testing.T) {
	img := build(t, layersOf(2, ""))
	r := &imagetest.Registry{}
	r.Intercept, _ = hang(t, img)
	host := serve(t, r)
	r.Push("app", "1", img)
	s := open(t, testConfig(t))
	s.SetPullRules(PullRules{NoProgressTimeout: 300 * time.Millisecond}) // as a reload does
	_, err := s.Pull(context.Background(), host+"/app:1", image.Auth{}, nil)
	if !errors.Is(err, errs.Unavailable) || !strings.Contains(err.Error(), "sent nothing for 300ms") {
		t.Errorf("error %v", err)
	}
	if err := s.Remove(context.Background(), host+"/app:1"); err != nil { // what it has finished stays for the next pull
		t.Error(err)
	}
	s.Close()
	assertEmpty(t, s)
}

func TestCancelledPullHoldsNothing(t *testing.T) {
	img := build(t, layersOf(2, ""))
	r := &imagetest.Registry{}
	var reached chan struct{}
	r.Intercept, reached = hang(t, img)
	host := serve(t, r)
	r.Push("app", "1", img)
	s := open(t, testConfig(t))
	ctx, cancel := context.WithCancel(context.Background())
	go func() { <-reached; cancel() }()
	if _, err := s.Pull(ctx, host+"/app:1", image.Auth{}, nil); !errors.Is(err, context.Canceled) {
		t.Errorf("error %v", err)
	}
	r.Intercept = nil
	if _, err := s.Pull(context.Background(), host+"/app:1", image.Auth{}, nil); err != nil {
		t.Errorf("pull after a cancelled one: %v", err)
	}
	if err := s.Remove(context.Background(), host+"/app:1"); err != nil {
		t.Error(err)
	}
	s.Close()
	assertEmpty(t, s)
}

func TestConcurrentPullsOfOneReferenceShareOnePull(t *testing.T) {
	img := build(t, layersOf(3, "gzip"))
	r := &imagetest.Registry{}
	// The registry answers once all pulls have arrived.
	var once sync.Once
	all := make(chan struct{})
	r.Intercept = func(http.ResponseWriter, *http.Request) bool { once.Do(func() { <-all }); return false }
	host := serve(t, r)
	r.Push("app", "1", img)
	s := open(t, testConfig(t))
	const pulls = 8
	var wg, joined sync.WaitGroup
	joined.Add(pulls)
	leaver, leave := context.WithCancel(context.Background())
	for i := range pulls {
		wg.Go(func() {
			ctx := context.Background()
			if i == 0 {
				ctx = leaver
			}
			// Each pull receives the first stage when it has joined.
			join := sync.OnceFunc(joined.Done)
			id, err := s.Pull(ctx, host+"/app:1", image.Auth{}, func(image.Progress) { join() })
			if i == 0 && errors.Is(err, context.Canceled) {
				return
			}
			if err != nil || id != img.ID() {
				t.Errorf("pull %d: %s, %v", i, id, err)
			}
		})
	}
	joined.Wait()
	// A pull that leaves does not end the download for the others.
	leave()
	close(all)
	wg.Wait()
	seen := map[string]int{}
	for _, request := range r.Requests() {
		if seen[request]++; seen[request] > 1 {
			t.Errorf("%s was asked again", request)
		}
	}
}

func TestPullsThatShareLayersAndRemovals(t *testing.T) {
	ctx := context.Background()
	r := &imagetest.Registry{}
	host := serve(t, r)
	s := open(t, testConfig(t))
	const images = 6
	for i := range images {
		spec := layersOf(4, "gzip")
		spec.Files = []imagetest.File{{Path: fmt.Sprint("own", i)}}
		r.Push(fmt.Sprint("app", i), "1", build(t, spec))
	}
	var wg sync.WaitGroup
	for i := range images {
		wg.Go(func() {
			ref := fmt.Sprintf("%s/app%d:1", host, i)
			for round := range 3 {
				id, err := s.Pull(ctx, ref, image.Auth{}, nil)
				if err != nil {
					t.Errorf("%s round %d: %v", ref, round, err)
					return
				}
				key := fmt.Sprintf("c%d-%d", i, round)
				m, err := s.Prepare(ctx, image.RootfsSpec{Key: key, ImageID: id})
				if err != nil {
					t.Error(err)
					return
				}
				if err := s.Remove(ctx, ref); err != nil {
					t.Error(err)
				}
				for _, name := range []string{"f0", "f3", fmt.Sprint("own", i)} {
					if _, err := os.Stat(filepath.Join(m.Path, name)); err != nil {
						t.Errorf("%s round %d: %v", ref, round, err)
					}
				}
				if err := s.Release(ctx, key); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	s.Close()
	assertEmpty(t, s)
}
