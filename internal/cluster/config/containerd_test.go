package config

import (
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/registries"
)

func TestReadContainerdPatches(t *testing.T) {
	both := []string{"pull", "resolve"}
	for name, c := range map[string]struct {
		patches, ops []string
		want         ContainerdPatches
	}{
		"none": {},
		"hosts.toml, in every version": {
			[]string{
				"[plugins.\"io.containerd.grpc.v1.cri\".registry]\n  config_path = \"/etc/containerd/certs.d\"",
				"version = 3\n[plugins.'io.containerd.cri.v1.images'.registry]\n  config_path = '/etc/containerd/certs.d:/more'",
			},
			nil,
			ContainerdPatches{HostDirs: []string{"/etc/containerd/certs.d", "/more"}},
		},
		"mirrors of old": {
			[]string{
				"[plugins.\"io.containerd.grpc.v1.cri\".registry.mirrors.\"localhost:5001\"]\n  endpoint = [\"http://kind-registry:5000\", \"http://b\"]",
				"[plugins.\"io.containerd.grpc.v1.cri\".registry.configs.\"localhost:5001\".tls]\n  insecure_skip_verify = true\n  ca_file = '/a'\n" +
					"[plugins.\"io.containerd.grpc.v1.cri\".registry.configs.\"r.example\".auth]\n  username = 'u'",
			},
			nil,
			ContainerdPatches{
				Registries: []registries.Registry{{
					Host: "localhost:5001", Access: registries.Access{SkipVerify: true},
					Mirrors: []registries.Mirror{{URL: "http://kind-registry:5000", Capabilities: both}, {URL: "http://b", Capabilities: both}},
				}},
				Ignored: []string{
					"plugins.io.containerd.grpc.v1.cri.registry.configs.localhost:5001.tls.ca_file",
					"plugins.io.containerd.grpc.v1.cri.registry.configs.r.example.auth",
				},
			},
		},
		"a mirror whose certificate is not verified": {
			[]string{
				"[plugins.\"io.containerd.grpc.v1.cri\".registry.configs.\"10.0.0.5:5000\".tls]\n  insecure_skip_verify = true",
				"[plugins.\"io.containerd.grpc.v1.cri\".registry.mirrors.\"docker.io\"]\n  endpoint = [\"https://10.0.0.5:5000/v2/hub\", \"https://10.0.0.5\"]",
			},
			nil,
			ContainerdPatches{Registries: []registries.Registry{
				{Host: "10.0.0.5:5000", Access: registries.Access{SkipVerify: true}},
				{Host: "docker.io", Mirrors: []registries.Mirror{
					{URL: "https://10.0.0.5:5000/v2/hub", Capabilities: both, Access: registries.Access{SkipVerify: true}}, {URL: "https://10.0.0.5", Capabilities: both},
				}},
			}},
		},
		"all else": {
			[]string{"version = 2\noom_score = 1\n[debug]\nlevel = 'debug'\n[plugins.\"io.containerd.grpc.v1.cri\".registry]\nheaders = 1"},
			[]string{"[]"},
			ContainerdPatches{Ignored: []string{"containerdConfigPatchesJSON6902[0]", "debug.level", "oom_score", "plugins.io.containerd.grpc.v1.cri.registry.headers"}},
		},
	} {
		got, err := (&Cluster{Settings: Settings{ContainerdConfigPatches: c.patches, ContainerdConfigPatchesJSON6902: c.ops}}).ReadContainerdPatches()
		if err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if diff := cmp.Diff(c.want, got); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
	}
	if _, err := (&Cluster{Settings: Settings{ContainerdConfigPatches: []string{"["}}}).ReadContainerdPatches(); !errors.Is(err, errs.Invalid) {
		t.Errorf("%v", err)
	}
}
