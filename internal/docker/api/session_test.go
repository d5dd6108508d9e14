package api_test

import (
	"bytes"
	"errors"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/moby/moby/client"

	"github.com/berthrun/berth/internal/docker/api"
	"github.com/berthrun/berth/internal/docker/fakeengine"
	"github.com/berthrun/berth/internal/errs"
)

func newClient(t *testing.T, endpoint string, timeout time.Duration) *api.Client {
	t.Helper()
	c, err := api.New(api.Options{Endpoint: endpoint, Timeout: timeout})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

func list(t *testing.T, c *api.Client) error {
	t.Helper()
	_, err := c.ContainerList(t.Context(), client.ContainerListOptions{All: true})
	return err
}

func last(e *fakeengine.Engine) string {
	calls := e.Calls()
	return calls[len(calls)-1]
}

// TestVersions: the newest version that both sides know is used, and an engine without one is
// refused with both versions.
func TestVersions(t *testing.T) {
	for _, test := range []struct {
		name, newest, oldest, used string
		want                       error
		words                      []string
	}{
		{name: "the oldest", newest: "1.40", used: "1.40"},
		{name: "a patch", newest: "1.41.3", used: "1.41"},
		{name: "the newest", newest: client.MaxAPIVersion, used: client.MaxAPIVersion},
		{name: "newer than the client", newest: "1.99", oldest: "1.44", used: client.MaxAPIVersion},
		{
			name: "too old", newest: "1.39", want: errs.Unsupported,
			words: []string{"version 1.39", "1.40 or later", "upgrade the engine"},
		},
		{
			name: "too new", newest: "1.99", oldest: "1.90", want: errs.Unsupported,
			words: []string{"version 1.99", client.MaxAPIVersion, "upgrade berth"},
		},
		{name: "not a version", newest: "new", want: errs.Unavailable, words: []string{`"new"`, "is not a Docker engine"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			e := fakeengine.Start(t, fakeengine.Script{APIVersion: test.newest, MinAPIVersion: test.oldest})
			c := newClient(t, e.Endpoint, time.Minute)
			facts, err := c.Facts(t.Context())
			if test.want == nil {
				if err != nil || facts.APIVersion != test.used || last(e) != "GET /v"+test.used+"/info" {
					t.Fatalf("Facts = %+v, %v; the last call is %s", facts, err, last(e))
				}
				return
			}
			checkFault(t, err, test.want, append(test.words, e.Endpoint)...)
		})
	}
}

func checkFault(t *testing.T, err, kind error, words ...string) {
	t.Helper()
	if has := errs.Kind(err); err == nil || !errors.Is(has, kind) || (has == nil) != (kind == nil) {
		t.Fatalf("error %v, want kind %v", err, kind)
	}
	for _, word := range words {
		if !strings.Contains(err.Error(), word) {
			t.Errorf("%q does not have %q", err, word)
		}
	}
	if strings.Contains(err.Error(), "\n") {
		t.Errorf("%q is more than one line", err)
	}
}

// TestAnEngineThatIsReplaced: calls after an upgrade and after a downgrade succeed with the
// version that the engine has now, also when it refuses the former one; facts are the new ones.
func TestAnEngineThatIsReplaced(t *testing.T) {
	for _, test := range []struct {
		name         string
		first, other fakeengine.Script
		used         string
	}{
		{
			"upgraded",
			fakeengine.Script{Version: "20.10.24"},
			fakeengine.Script{Version: "28.0.0", APIVersion: "1.48"},
			"1.48",
		},
		{
			"upgraded, refuses the former",
			fakeengine.Script{Version: "20.10.24"},
			fakeengine.Script{Version: "29.0.0", APIVersion: "1.52", MinAPIVersion: "1.44"},
			"1.52",
		},
		{
			"downgraded",
			fakeengine.Script{Version: "29.0.0", APIVersion: "1.52", MinAPIVersion: "1.44"},
			fakeengine.Script{Version: "20.10.24"},
			"1.41",
		},
		{"with one version of the API", fakeengine.Script{Version: "20.10.23"}, fakeengine.Script{Version: "20.10.24"}, "1.41"},
	} {
		t.Run(test.name, func(t *testing.T) {
			e := fakeengine.Start(t, test.first)
			c := newClient(t, e.Endpoint, time.Minute)
			if _, err := c.Facts(t.Context()); err != nil {
				t.Fatal(err)
			}
			e.Replace(test.other)
			if err := list(t, c); err != nil {
				t.Fatalf("the first call after the replacement: %v", err)
			}
			if err := list(t, c); err != nil || last(e) != "GET /v"+test.used+"/containers/json" {
				t.Errorf("the second call is %s: %v", last(e), err)
			}
			facts, err := c.Facts(t.Context())
			if err != nil || facts.Version != test.other.Version || facts.APIVersion != test.used {
				t.Errorf("Facts = %+v, %v", facts, err)
			}
		})
	}
}

// TestFactsAreOfOneEngine: an engine that is replaced between two calls of Facts mixes nothing.
func TestFactsAreOfOneEngine(t *testing.T) {
	e := fakeengine.Start(t, fakeengine.Script{Version: "20.10.24"})
	c := newClient(t, e.Endpoint, time.Minute)
	if _, err := c.Version(t.Context()); err != nil {
		t.Fatal(err)
	}
	e.Replace(fakeengine.Script{Version: "28.0.0", APIVersion: "1.48", CgroupDriver: "systemd"})
	facts, err := c.Facts(t.Context())
	if err != nil || facts.Version != "28.0.0" || facts.APIVersion != "1.48" || facts.CgroupDriver != "systemd" {
		t.Errorf("Facts = %+v, %v", facts, err)
	}
}

// TestVersionIsReadOnceAMinute: answers about the version are kept.
func TestVersionIsReadOnceAMinute(t *testing.T) {
	e := fakeengine.Start(t, fakeengine.Script{})
	c := newClient(t, e.Endpoint, time.Minute)
	for range 5 {
		if _, err := c.Version(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if calls := e.Calls(); len(calls) != 1 {
		t.Errorf("calls: %v", calls)
	}
}

// TestALoadIsNotSentTwice: a call that has consumed its input reports the replacement.
func TestALoadIsNotSentTwice(t *testing.T) {
	e := fakeengine.Start(t, fakeengine.Script{})
	c := newClient(t, e.Endpoint, time.Minute)
	if err := list(t, c); err != nil {
		t.Fatal(err)
	}
	e.Replace(fakeengine.Script{
		Version: "29.0.0", APIVersion: "1.52", MinAPIVersion: "1.44",
		Answers: map[string]http.HandlerFunc{"POST /images/load": fakeengine.Text("")},
	})
	_, err := c.ImageLoad(t.Context(), bytes.NewReader([]byte("an archive")))
	checkFault(t, err, errs.Unavailable, e.Endpoint, "replaced", "repeat the request")
	if answer, err := c.ImageLoad(t.Context(), bytes.NewReader([]byte("an archive"))); err != nil {
		t.Errorf("the second load: %v", err)
	} else {
		answer.Close()
	}
}

func TestAtLeast(t *testing.T) {
	for _, test := range []struct {
		version, least string
		want           bool
	}{
		{"1.41", "1.41", true},
		{"1.41", "1.41.0", true},
		{"1.41.0", "1.41", true},
		{"1.41", "1.41.1", false},
		{"1.100", "1.44", true},
		{"1.9", "1.40", false},
		{"2.0", "1.40", true},
		{"", "1.40", false},
		{"1", "1.40", false},
		{"1.x", "1.40", false},
		{"-1.50", "1.40", false},
	} {
		if got := api.AtLeast(test.version, test.least); got != test.want {
			t.Errorf("AtLeast(%q, %q) = %v", test.version, test.least, got)
		}
	}
}

// FuzzVersions: every two texts have an order, and a text that is not a version is the oldest.
func FuzzVersions(f *testing.F) {
	for _, pair := range [][2]string{{"1.41", "1.41.0"}, {"1.9", "1.40"}, {"", "1.40"}, {"1.41.1", "1.x"}, {"65536.0", "-1.0"}} {
		f.Add(pair[0], pair[1])
	}
	f.Fuzz(func(t *testing.T, a, b string) {
		valid := func(text string) bool { return api.AtLeast(text, "0.0") }
		above, below := api.AtLeast(a, b), api.AtLeast(b, a)
		switch {
		case valid(a) && valid(b) && !above && !below:
			t.Errorf("%q and %q have no order", a, b)
		case valid(a) && !valid(b) && (!above || below):
			t.Errorf("%q is not after %q: %v, %v", a, b, above, below)
		case !valid(a) && above:
			t.Errorf("%q, which is not a version, is at least %q", a, b)
		}
	})
}
