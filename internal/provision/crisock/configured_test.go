package crisock_test

import (
	"io"
	"strings"
	"testing"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/provision"
	"github.com/berthrun/berth/internal/provision/crisock"
)

// oneFile is a machine with one file.
type oneFile struct {
	provision.Files
	name, content string
}

func (f oneFile) Open(name string) (io.ReadCloser, error) {
	if name != f.name {
		return nil, errs.NotFound
	}
	return io.NopCloser(strings.NewReader(f.content)), nil
}

func TestConfigured(t *testing.T) {
	for name, c := range map[string]struct{ runtime, file, content, want string }{
		"usual":              {"berth", "", "", "/run/berth/berth.sock"},
		"berth":              {"berth", "/etc/berth/berth.toml", "listen = 'unix:///run/b.sock'\n", "/run/b.sock"},
		"containerd 1.x, 2.": {"containerd", "/etc/containerd/config.toml", "version = 3\n[grpc]\naddress = '/run/c.sock'\n", "/run/c.sock"},
		"containerd 2.3":     {"containerd", "/etc/containerd/config.toml", "[plugins.'io.containerd.server.v1.grpc']\naddress = '/run/d.sock'\n", "/run/d.sock"},
		"crio":               {"crio", "/etc/crio/crio.conf.d/10-berth-node.conf", "[crio.api]\nlisten = '/run/e.sock'\n", "/run/e.sock"},
		"no socket in it":    {"crio", "/etc/crio/crio.conf", "[crio.api]\nlisten = 7\n", "/run/crio/crio.sock"},
		"no TOML":            {"containerd", "/etc/containerd/config.toml", "[grpc\n", "/run/containerd/containerd.sock"},
		"another unit":       {"kubelet", "", "", ""},
	} {
		t.Run(name, func(t *testing.T) {
			if got := crisock.Configured(oneFile{name: c.file, content: c.content}, c.runtime); got != c.want {
				t.Errorf("%q, want %q", got, c.want)
			}
		})
	}
}
