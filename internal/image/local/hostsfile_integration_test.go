//go:build integration

package local

import (
	"bytes"
	"errors"
	"log/slog"
	"path/filepath"
	"strings"
	"testing"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/image"
	"github.com/berthrun/berth/internal/image/imagetest"
)

// TestHostsFileWithAFault: a pull and an explanation agree about a hosts.toml. A pull with a file that cannot be used asks
// nobody, and the explanation says so at the endpoint with the fault.
func TestHostsFileWithAFault(t *testing.T) {
	r := &imagetest.Registry{}
	host := serve(t, r)
	r.Push("app", "1", build(t, layersOf(1, "")))
	for name, c := range map[string]struct{ text, problem string }{
		"capabilities": {"[host.\"http://HOST\"]\ncapabilities = [\"fly\"]\n", ":2: capabilities: want a list"},
		"a missing ca": {"[host.\"http://HOST\"]\nca = \"gone.crt\"\n", "gone.crt, which is not there"},
		"not TOML":     {"server = \n", ":1: is not TOML"},
	} {
		t.Run(name, func(t *testing.T) {
			cfg := trust(t, host, map[string]string{"hosts.toml": strings.ReplaceAll(c.text, "HOST", host)})
			file := filepath.Join(cfg.RegistryConfigDirs[1], host, "hosts.toml")
			s := open(t, cfg)
			_, err := s.Pull(t.Context(), host+"/app:1", image.Auth{Username: "joe", Password: registryPassword}, nil)
			if !errors.Is(err, errs.Invalid) || !strings.Contains(err.Error(), file) || !strings.Contains(err.Error(), c.problem) {
				t.Errorf("pulled with error %v", err)
			}
			for _, try := range []bool{false, true} {
				e, err := s.Explain(t.Context(), image.PullTarget{}, host+"/app:1", image.Auth{}, try)
				if err != nil {
					t.Fatal(err)
				}
				first := e.Endpoints[0]
				if !strings.Contains(e.Fault, c.problem) || !strings.Contains(first.Problem, c.problem) || !strings.HasPrefix(first.Source, file) || first.Skipped == "" {
					t.Errorf("try %v: explained as %+v", try, e)
				}
			}
		})
	}
	if asked := r.Requests(); len(asked) > 0 {
		t.Errorf("the registry was asked: %q", asked)
	}
}

// TestUnknownKeyIsLoggedOnce: containerd ignores a key that it does not know, and so does berth, which says so.
func TestUnknownKeyIsLoggedOnce(t *testing.T) {
	r := &imagetest.Registry{}
	host := serve(t, r)
	r.Push("app", "1", build(t, layersOf(1, "")))
	cfg := trust(t, host, map[string]string{"hosts.toml": "server = \"http://" + host + "\"\nskip_verfy = true\n"})
	var log bytes.Buffer
	cfg.Log = slog.New(slog.NewTextHandler(&log, nil))
	s := open(t, cfg)
	for range 2 {
		if _, err := s.Pull(t.Context(), host+"/app:1", image.Auth{}, nil); err != nil {
			t.Fatal(err)
		}
	}
	s.Close() // no goroutine logs any more
	if n := strings.Count(log.String(), "hosts.toml:2: skip_verfy: is not a key of hosts.toml"); n != 1 {
		t.Errorf("the log has the warning %d times:\n%s", n, log.String())
	}
}
