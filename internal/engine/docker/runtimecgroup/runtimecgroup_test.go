package runtimecgroup

import (
	"errors"
	"strings"
	"testing"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/sys/cgroup"
)

func TestRefusedOptions(t *testing.T) {
	for name, c := range map[string]struct{ endpoint, cgroup, want string }{
		"TCP":      {"tcp://192.0.2.1:2375", "/docker-runtime", "the engine's endpoint is tcp://192.0.2.1:2375"},
		"root":     {"unix:///run/docker.sock", "/", "want an absolute path other than /"},
		"relative": {"unix:///run/docker.sock", "docker", "want an absolute path"},
		"parent":   {"unix:///run/docker.sock", "/a/../b", "want an absolute path"},
	} {
		_, err := Start(Options{Endpoint: c.endpoint, Cgroup: c.cgroup, Tree: &cgroup.Tree{}})
		if !errors.Is(err, errs.Invalid) || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want Invalid with %q", name, err, c.want)
		}
	}
}
