//go:build integration

package dockerstore_test

import (
	"encoding/base64"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/berthrun/berth/internal/docker/api"
	"github.com/berthrun/berth/internal/docker/dockertest"
	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/image"
	"github.com/berthrun/berth/internal/image/dockerstore"
	"github.com/berthrun/berth/internal/image/imagetest"
)

// pullTest is a registry and a store whose engine pulls from it. The engine uses plain HTTP with
// registries of the loopback network.
type pullTest struct {
	store *dockerstore.Images
	// host is the registry's name in references. image is what it has as team/app:v1.
	host  string
	image *imagetest.Image
}

func newPullTest(t *testing.T, d *dockertest.Daemon, registry *imagetest.Registry, content string) *pullTest {
	t.Helper()
	client, err := api.New(api.Options{Endpoint: d.Endpoint})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { client.Close() })
	store, err := dockerstore.New(dockerstore.Options{Client: client, Dir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { store.Close() })
	img, err := imagetest.Build(imagetest.Spec{
		Name: "unused", Files: imagetest.Layer{{Path: "content", Content: []byte(content), Mode: 0o644}}, Cmd: []string{"/content"},
	})
	if err != nil {
		t.Fatal(err)
	}
	registry.Push("team/app", "v1", img)
	server := httptest.NewServer(registry)
	t.Cleanup(server.Close)
	registry.Realm = server.URL + "/token"
	return &pullTest{store, server.Listener.Addr().(*net.TCPAddr).String(), img}
}

// pull pulls team/app:v1, and removes it afterwards.
func (p *pullTest) pull(t *testing.T, auth image.Auth) error {
	t.Helper()
	ref := p.host + "/team/app:v1"
	id, err := p.store.Pull(t.Context(), ref, auth, nil)
	if err != nil {
		return err
	}
	if err := p.store.Remove(t.Context(), id); err != nil {
		t.Error(err)
	}
	return nil
}

// TestPulls: through a real engine, by tag and by digest, with each kind of credentials, and from
// a registry that fails.
func TestPulls(t *testing.T) {
	d := dockertest.Start(t, dockertest.Options{})
	t.Run("names", func(t *testing.T) { testPulledNames(t, d) })
	t.Run("credentials", func(t *testing.T) { testCredentials(t, d) })
	t.Run("failures", func(t *testing.T) { testFailures(t, d) })
	t.Run("no progress", func(t *testing.T) { testNoProgress(t, d) })
}

func testPulledNames(t *testing.T, d *dockertest.Daemon) {
	p := newPullTest(t, d, &imagetest.Registry{}, "names")
	tag := p.host + "/team/app:v1"
	digest := p.host + "/team/app@" + p.image.Manifest.Digest.String()
	var stages []string
	report := func(progress image.Progress) { stages = append(stages, progress.Stage) }
	id, err := p.store.Pull(t.Context(), tag, image.Auth{}, report)
	if err != nil {
		t.Fatal(err)
	}
	if len(stages) == 0 || stages[len(stages)-1] != "done" {
		t.Errorf("the stages of the pull are %v", stages)
	}
	byDigest, err := p.store.Pull(t.Context(), digest, image.Auth{}, nil)
	if err != nil || byDigest != id {
		t.Errorf("by digest: %s, %v; by tag %s", byDigest, err, id)
	}
	got, err := p.store.Get(t.Context(), digest)
	if err != nil || got.ID != id || len(got.Tags) != 1 || got.Tags[0] != tag || len(got.Digests) != 1 || got.Digests[0] != digest {
		t.Errorf("Get = %+v, %v", got, err)
	}
	absent := strings.Replace(digest, digest[len(digest)-4:], "0000", 1)
	for _, ref := range []string{p.host + "/team/app:v2", p.host + "/team/other:v1", absent} {
		if _, err := p.store.Pull(t.Context(), ref, image.Auth{}, nil); !errors.Is(err, errs.NotFound) || !strings.Contains(err.Error(), ref) {
			t.Errorf("%s: %v, want NotFound", ref, err)
		}
	}
	if err := p.store.Remove(t.Context(), id); err != nil {
		t.Error(err)
	}
}

func testCredentials(t *testing.T, d *dockertest.Daemon) {
	for _, bearer := range []bool{false, true} {
		p := newPullTest(t, d, &imagetest.Registry{User: "me", Password: "s3cret", Bearer: bearer, Token: "t0ken"}, fmt.Sprint("credentials", bearer))
		packed := base64.StdEncoding.EncodeToString([]byte("me:s3cret"))
		for _, test := range []struct {
			name string
			auth image.Auth
			// basic and bearer: whether a registry of this scheme takes it.
			basic, bearer bool
		}{
			{"none", image.Auth{}, false, false},
			{"a name and a password", image.Auth{Username: "me", Password: "s3cret"}, true, true},
			{"a wrong password", image.Auth{Username: "me", Password: "s3cre"}, false, false},
			{"base64", image.Auth{Auth: packed}, true, true},
			{"an identity token", image.Auth{IdentityToken: "s3cret"}, false, true},
			{"a registry token", image.Auth{RegistryToken: "t0ken"}, false, true},
			{"for this registry", image.Auth{Username: "me", Password: "s3cret", ServerAddress: "http://" + p.host + "/v1/"}, true, true},
			{"for another registry", image.Auth{Username: "me", Password: "s3cret", ServerAddress: "registry.test"}, false, false},
			{"broken base64", image.Auth{Auth: "s3cret"}, false, false},
		} {
			t.Run(fmt.Sprintf("%s, bearer %v", test.name, bearer), func(t *testing.T) {
				err := p.pull(t, test.auth)
				kind := errs.Denied
				if test.name == "broken base64" {
					kind = errs.Invalid
				}
				if taken := bearer && test.bearer || !bearer && test.basic; taken {
					if err != nil {
						t.Error(err)
					}
				} else if !errors.Is(err, kind) || strings.Contains(err.Error(), "s3cret") || strings.Contains(err.Error(), "t0ken") {
					t.Errorf("error %v, want kind %v without credentials", err, kind)
				}
			})
		}
	}
}

func testFailures(t *testing.T, d *dockertest.Daemon) {
	var status atomic.Int32
	p := newPullTest(t, d, &imagetest.Registry{Intercept: func(w http.ResponseWriter, r *http.Request) bool {
		code := int(status.Load())
		if code == 0 || !strings.Contains(r.URL.Path, "/manifests/") {
			return false
		}
		w.WriteHeader(code)
		return true
	}}, "failures")
	for _, code := range []int{http.StatusBadGateway, http.StatusServiceUnavailable, http.StatusGatewayTimeout} {
		status.Store(int32(code))
		if err := p.pull(t, image.Auth{}); !errors.Is(err, errs.Unavailable) || !strings.Contains(err.Error(), p.host+"/team/app:v1") {
			t.Errorf("a registry with status %d: %v, want Unavailable", code, err)
		}
	}
	status.Store(0)
	if err := p.pull(t, image.Auth{}); err != nil {
		t.Errorf("after the failures: %v", err)
	}
}

// testNoProgress: a registry that sends nothing more holds a pull up for as long as the rules say.
func testNoProgress(t *testing.T, d *dockertest.Daemon) {
	var at atomic.Value
	at.Store("/manifests/")
	stop := make(chan struct{})
	var p *pullTest
	p = newPullTest(t, d, &imagetest.Registry{Intercept: func(w http.ResponseWriter, r *http.Request) bool {
		part, _ := at.Load().(string)
		if part == "" || !strings.Contains(r.URL.Path, part) {
			return false
		}
		if part != "/manifests/" {
			layer := p.image.Layers[0].Data // engines keep what they have got of it
			w.Header().Set("Content-Length", strconv.Itoa(len(layer)))
			_, _ = w.Write(layer[:len(layer)/2]) // the client may be gone
			w.(http.Flusher).Flush()
		}
		select {
		case <-r.Context().Done():
		case <-stop:
		}
		return true
	}}, "no progress")
	defer close(stop)
	p.store.SetPullRules(dockerstore.PullRules{NoProgressTimeout: 500 * time.Millisecond})
	for _, part := range []string{"/manifests/", p.image.Layers[0].Digest.String()} {
		at.Store(part)
		err := p.pull(t, image.Auth{})
		if !errors.Is(err, errs.Deadline) || !strings.Contains(err.Error(), p.host+"/team/app:v1") ||
			!strings.Contains(err.Error(), "no progress for 500ms") || !strings.Contains(err.Error(), "last step") {
			t.Errorf("a registry that hangs at %s: %v, want Deadline", part, err)
		}
		t.Log(err)
	}
	at.Store("")
	p.store.SetPullRules(dockerstore.PullRules{})
	if err := p.pull(t, image.Auth{}); err != nil {
		t.Errorf("after the hang: %v", err)
	}
}
