package nodecmd

import (
	"testing"

	"github.com/berthrun/berth/internal/provision/provisiontest"
)

// TestServedWith: the pods of berth end with the unit that its engine needs.
func TestServedWith(t *testing.T) {
	native, docker := map[string]string{}, map[string]string{"/etc/berth/berth.toml": "engine = 'docker'\nlisten = 'unix:///run/x.sock'\n"}
	for _, c := range []struct {
		files      map[string]string
		unit, want string
	}{
		{native, "berth", "/run/berth/berth.sock"},
		{native, "berth-supervisor", "/run/berth/berth.sock"},
		{native, "docker", ""},
		{native, "containerd", "/run/containerd/containerd.sock"},
		{docker, "berth", "/run/x.sock"},
		{docker, "docker", "/run/x.sock"},
		{docker, "berth-supervisor", ""},
		{docker, "kubelet", ""},
	} {
		if got := servedWith(provisiontest.FileHost{Content: c.files}.Files(), c.unit); got != c.want {
			t.Errorf("%s with %v: %q, want %q", c.unit, c.files, got, c.want)
		}
	}
}
