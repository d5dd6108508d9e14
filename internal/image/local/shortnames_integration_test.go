//go:build integration

package local

import (
	"context"
	"errors"
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/image"
	"github.com/berthrun/berth/internal/image/imagetest"
)

// searched is two registries, which a store searches for names without a registry.
type searched struct {
	store       *Images
	cfg         Config
	first, last *imagetest.Registry
	hosts       []string

	mu sync.Mutex
	// secrets are the hosts that got credentials.
	secrets []string
}

func newSearched(t *testing.T) *searched {
	s := &searched{first: &imagetest.Registry{}, last: &imagetest.Registry{}, cfg: testConfig(t)}
	for _, r := range []*imagetest.Registry{s.first, s.last} {
		s.hosts = append(s.hosts, serve(t, r))
		s.spy(r, nil)
	}
	s.cfg.SearchRegistries = s.hosts
	s.store = open(t, s.cfg)
	return s
}

// spy has a registry note who sends credentials, and then answer with a status, if answer has one.
func (s *searched) spy(r *imagetest.Registry, answer func(req *http.Request) int) {
	r.Intercept = func(w http.ResponseWriter, req *http.Request) bool {
		if req.Header.Get("Authorization") != "" {
			s.mu.Lock()
			s.secrets = append(s.secrets, req.Host)
			s.mu.Unlock()
		}
		if answer == nil || answer(req) == 0 {
			return false
		}
		w.WriteHeader(answer(req))
		return true
	}
}

// want pulls a name, and wants the image of one of the registries for it.
func (s *searched) want(t *testing.T, ref string, auth image.Auth, img *imagetest.Image, name string) {
	t.Helper()
	id, err := s.store.Pull(t.Context(), ref, auth, nil)
	if err != nil || id != img.ID() {
		t.Errorf("pull of %s: %s, %v; want %s of %s", ref, id, err, img.ID(), name)
		return
	}
	if found, err := s.store.Get(t.Context(), id); err != nil || !slices.Contains(found.Tags, name) {
		t.Errorf("pull of %s: %+v, %v; want the name %s", ref, found, err, name)
	}
}

// refuses pulls a name, and wants an error of a kind with texts.
func (s *searched) refuses(t *testing.T, ref string, auth image.Auth, kind error, texts ...string) {
	t.Helper()
	_, err := s.store.Pull(t.Context(), ref, auth, nil)
	if !errors.Is(err, kind) {
		t.Errorf("pull of %s: %v, want kind %v", ref, err, kind)
	}
	for _, text := range texts {
		if err == nil || !strings.Contains(err.Error(), text) {
			t.Errorf("pull of %s: %v, want %q in it", ref, err, text)
		}
	}
}

func named(t *testing.T, text string) *imagetest.Image {
	spec := layersOf(1, "gzip")
	spec.Env = []string{"NAME=" + text}
	return build(t, spec)
}

func TestShortNamesAreSearched(t *testing.T) {
	s := newSearched(t)
	ours, theirs, other := named(t, "ours"), named(t, "theirs"), named(t, "other")
	s.first.Push("both", "1", ours)
	s.last.Push("both", "1", theirs)
	s.last.Push("team/other", "1", other)

	s.want(t, "both:1", image.Auth{}, ours, s.hosts[0]+"/both:1")
	if asked := s.last.Requests(); len(asked) != 0 {
		t.Errorf("the first registry has the image, and the last one was asked %v", asked)
	}
	s.want(t, "team/other:1", image.Auth{}, other, s.hosts[1]+"/team/other:1")
	s.want(t, s.hosts[1]+"/both:1", image.Auth{}, theirs, s.hosts[1]+"/both:1")
	s.refuses(t, "none:1", image.Auth{}, errs.NotFound, "cannot pull image none:1", s.hosts[0]+"/none:1: ", s.hosts[1]+"/none:1: ", "image.search_registries")

	meant := func(store *Images, ref string, want *imagetest.Image) {
		t.Helper()
		found, err := store.Get(t.Context(), ref)
		if want == nil {
			if !errors.Is(err, errs.NotFound) {
				t.Errorf("%s is %+v, %v; want none", ref, found, err)
			}
			return
		}
		if err != nil || found.ID != want.ID() {
			t.Errorf("%s is %+v, %v; want %s", ref, found, err, want.ID())
		}
	}
	meant(s.store, "both:1", ours)
	meant(s.store, "team/other:1", other)
	meant(s.store, "other:1", nil)
	e, err := s.store.Explain(t.Context(), image.PullTarget{}, "team/other:1", image.Auth{}, true)
	if err != nil || !e.ShortName || !slices.Equal(e.Candidates, []string{s.hosts[0] + "/team/other:1", s.hosts[1] + "/team/other:1"}) ||
		e.Present != s.hosts[1]+"/team/other:1" || len(e.Next) != 1 || e.Endpoints[0].Attempt.Fault == "" || e.Next[0].Endpoints[0].Attempt.Digest != other.Manifest.Digest {
		t.Errorf("explained: %+v, %v", e, err)
	}
	// What the first one has is not asked of the next one.
	if e, err := s.store.Explain(t.Context(), image.PullTarget{}, "both:1", image.Auth{}, true); err != nil || e.Endpoints[0].Attempt == nil || e.Next[0].Endpoints[0].Attempt != nil {
		t.Errorf("explained: %+v, %v", e, err)
	}
	// A reload with another order.
	rules := s.cfg.PullRules
	rules.SearchRegistries = []string{s.hosts[1], s.hosts[0]}
	s.store.SetPullRules(rules)
	meant(s.store, "both:1", theirs)
	rules.SearchRegistries = nil
	s.store.SetPullRules(rules)
	meant(s.store, "both:1", nil)

	// The names that a rebuild finds.
	if err := s.store.Close(); err != nil {
		t.Fatal(err)
	}
	put(t, filepath.Join(s.cfg.Root, "metadata.db"), []byte(strings.Repeat("damage", 1000)))
	again := open(t, s.cfg)
	meant(again, "both:1", ours)
	if err := again.Remove(context.Background(), "both:1"); err != nil {
		t.Fatal(err)
	}
	meant(again, "both:1", theirs)
}

// counts is an observer of pulls.
type counts struct {
	mu           sync.Mutex
	began, bytes int64
	results      []error
}

func (c *counts) PullBegan() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.began++
}

func (c *counts) PullEnded(bytes int64, _ time.Duration, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.bytes += bytes
	c.results = append(c.results, err)
}

// TestShortNameCountsOnce: a registry that does not have an image makes no failed pull if another one has it.
func TestShortNameCountsOnce(t *testing.T) {
	s := newSearched(t)
	seen := &counts{}
	if err := s.store.Close(); err != nil {
		t.Fatal(err)
	}
	s.cfg.Observer = seen
	s.store = open(t, s.cfg)
	img := named(t, "ours")
	s.last.Push("app", "1", img)
	s.want(t, "app:1", image.Auth{}, img, s.hosts[1]+"/app:1")
	if seen.began != 1 || len(seen.results) != 1 || seen.results[0] != nil || seen.bytes != img.Layers[0].Size {
		t.Errorf("a pull from the second registry: %+v", seen)
	}
	s.refuses(t, "none:1", image.Auth{}, errs.NotFound)
	s.refuses(t, s.hosts[0]+"/none:1", image.Auth{}, errs.NotFound)
	s.spy(s.first, func(*http.Request) int { return http.StatusInternalServerError })
	s.refuses(t, "none:1", image.Auth{}, errs.Unavailable)
	for i, kind := range []error{errs.NotFound, errs.NotFound, errs.Unavailable} {
		if len(seen.results) != 4 || seen.began != 4 || !errors.Is(seen.results[i+1], kind) {
			t.Fatalf("pull %d ended with %v, want kind %v", i, seen.results, kind)
		}
	}
}

func TestShortNameStaysWithTheRegistryThatServesIt(t *testing.T) {
	s := newSearched(t)
	ours, theirs := named(t, "ours"), named(t, "theirs")
	s.first.Push("app", "1", ours)
	s.last.Push("app", "1", theirs)
	for status, goesOn := range map[int]bool{http.StatusForbidden: true, http.StatusInternalServerError: true, http.StatusBadRequest: false} {
		s.spy(s.first, func(*http.Request) int { return status })
		_, err := s.store.Pull(t.Context(), "app:1", image.Auth{}, nil)
		if (err == nil) != goesOn {
			t.Errorf("the first registry answers %d, and the pull ended with %v", status, err)
		}
	}
	// It has the manifest, and not all blobs.
	s.spy(s.first, func(req *http.Request) int {
		if strings.Contains(req.URL.Path, "/blobs/") {
			return http.StatusNotFound
		}
		return 0
	})
	s.refuses(t, "app:1", image.Auth{}, errs.NotFound, "cannot pull image "+s.hosts[0]+"/app:1")
	// The policy is about the name that is chosen.
	policy := filepath.Join(t.TempDir(), "policy.json")
	put(t, policy, []byte(`{"default": [{"type": "reject"}], "transports": {"docker": {"`+s.hosts[0]+`": [{"type": "insecureAcceptAnything"}]}}}`))
	rules := s.cfg.PullRules
	rules.PolicyFile = policy
	s.store.SetPullRules(rules)
	s.spy(s.first, func(*http.Request) int { return http.StatusNotFound })
	var refused *image.RefusedError
	explained := func(what, why string) {
		t.Helper()
		e, err := s.store.Explain(t.Context(), image.PullTarget{}, "app:1", image.Auth{}, true)
		if err != nil || len(e.Next) != 1 || e.Next[0].Endpoints[0].Attempt != nil {
			t.Errorf("%s: a pull stops at the first name, and the explanation goes on: %+v, %v", what, e, err)
			return
		}
		if skipped := e.Next[0].Endpoints[0].Skipped; !strings.Contains(skipped, "a pull stops at "+s.hosts[0]+"/app:1: ") || !strings.Contains(skipped, why) {
			t.Errorf("%s: the next name is not asked because of %q, want %q", what, skipped, why)
		}
	}
	if _, err := s.store.Pull(t.Context(), "app:1", image.Auth{}, nil); !errors.As(err, &refused) || !strings.Contains(err.Error(), s.hosts[1]+"/app:1") {
		t.Errorf("the policy rejects the registry that has the image: %v", err)
	}
	s.spy(s.first, nil)
	s.want(t, "app:1", image.Auth{}, ours, s.hosts[0]+"/app:1")

	// An explanation stops where a pull stops.
	explained("the first registry has it", "its registry has the image")
	s.spy(s.first, func(*http.Request) int { return http.StatusBadRequest })
	explained("the first registry fails", "400 Bad Request")
	put(t, policy, []byte(`{"default": [{"type": "insecureAcceptAnything"}], "transports": {"docker": {"`+s.hosts[0]+`": [{"type": "reject"}]}}}`))
	explained("the policy rejects the first one", "images of this scope are rejected")
	s.refuses(t, "app:1", image.Auth{}, errs.State, s.hosts[0]+"/app:1", "rejected")
	s.spy(s.first, func(*http.Request) int { return http.StatusNotFound })
	put(t, policy, []byte(`{"default": [{"type": "insecureAcceptAnything"}]}`))
	if e, err := s.store.Explain(t.Context(), image.PullTarget{}, "app:1", image.Auth{}, true); err != nil || e.Next[0].Endpoints[0].Attempt == nil || e.Next[0].Endpoints[0].Skipped != "" {
		t.Errorf("a pull goes on, and the explanation stops: %+v, %v", e, err)
	}
}

func TestShortNameSendsCredentialsToTheirRegistryAlone(t *testing.T) {
	s := newSearched(t)
	ours := named(t, "ours")
	s.first.Push("app", "1", ours)
	s.first.User, s.first.Password = "joe", "hunter2"
	s.last.User, s.last.Password = "joe", "hunter2"
	auth := image.Auth{Username: "joe", Password: "hunter2"}
	// They say nothing of their registry. A kubelet has chosen them for docker.io.
	s.refuses(t, "app:1", auth, errs.Denied, s.hosts[0]+"/app:1: ", s.hosts[1]+"/app:1: ", "only docker.io gets them")
	if len(s.secrets) != 0 {
		t.Errorf("credentials without an address went to %v", s.secrets)
	}
	auth.ServerAddress = s.hosts[1]
	s.refuses(t, "app:1", auth, errs.Denied)
	if slices.Contains(s.secrets, s.hosts[0]) || !slices.Contains(s.secrets, s.hosts[1]) {
		t.Errorf("credentials for the last registry went to %v", s.secrets)
	}
	s.secrets, auth.ServerAddress = nil, s.hosts[0]
	s.want(t, "app:1", auth, ours, s.hosts[0]+"/app:1")
	if slices.Contains(s.secrets, s.hosts[1]) {
		t.Errorf("credentials for the first registry went to %v", s.secrets)
	}
	auth.ServerAddress = ""
	s.want(t, s.hosts[0]+"/app:1", auth, ours, s.hosts[0]+"/app:1")
}
