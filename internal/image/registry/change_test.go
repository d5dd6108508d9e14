package registry

import (
	"bytes"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/berthrun/berth/internal/image/imagetest"
)

// TestChangesOfAMirrorAreLogged: the first failure with its reason, and the next answer, once each. A pull reports whom it asks.
func TestChangesOfAMirrorAreLogged(t *testing.T) {
	mirror, home := &imagetest.Registry{}, &imagetest.Registry{}
	s := newSite(t, mirror, home)
	var log bytes.Buffer
	s.cfg.Log = slog.New(slog.NewTextHandler(&log, nil))
	resolve := func() {
		t.Helper()
		r := s.open(t, Auth{})
		var asked []string
		open := 0
		r.Asking = func(who string) func() {
			asked = append(asked, who)
			open++
			return func() { open-- }
		}
		if _, err := r.Resolve(t.Context()); err != nil {
			t.Fatal(err)
		}
		if err := s.fetchLayer(t, r); err != nil {
			t.Fatal(err)
		}
		if want := "the mirror " + s.hosts[0]; asked[0] != want || mirror.Intercept != nil && !slices.Contains(asked, "the registry "+s.hosts[1]) || open != 0 {
			t.Errorf("asked %q, %d still; want %s first", asked, open, want)
		}
		if err := s.store.Delete(t.Context(), s.img.Layers[0].Digest); err != nil {
			t.Fatal(err)
		}
	}
	resolve()
	if log.Len() > 0 {
		t.Errorf("a mirror that works is logged: %s", &log)
	}
	mirror.Intercept = func(w http.ResponseWriter, _ *http.Request) bool {
		http.Error(w, "", http.StatusServiceUnavailable)
		return true
	}
	resolve()
	if text := log.String(); strings.Count(text, "\n") != 1 || !strings.Contains(text, "level=WARN") || !strings.Contains(text, s.hosts[0]) || !strings.Contains(text, "503") || strings.Contains(text, "ns=") {
		t.Errorf("a mirror that fails is logged as %q", text)
	}
	log.Reset()
	mirror.Intercept = nil
	resolve()
	resolve()
	if text := log.String(); strings.Count(text, "\n") != 1 || !strings.Contains(text, s.hosts[0]) || !strings.Contains(text, "again") {
		t.Errorf("a mirror that works again is logged as %q", text)
	}
}
