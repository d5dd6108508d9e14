package facts

import (
	"maps"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/berthrun/berth/internal/provision/kubelet"
	"github.com/berthrun/berth/internal/provision/node/nodefile"
	"github.com/berthrun/berth/internal/provision/provisiontest"
)

func TestDescribe(t *testing.T) {
	debian := "PRETTY_NAME=\"Debian GNU/Linux 12 (bookworm)\"\nID=debian\nVERSION_ID=12\n"
	cases := map[string]struct {
		files map[string]string
		want  []string
	}{
		"bare": {nil, []string{"# - Debian GNU/Linux 12 (bookworm), ", "# - no runtime, so berth it is\n", "\n  name: berth\n"}},
		"containerd of a package": {
			map[string]string{"/usr/bin/containerd": ""},
			[]string{"# - runtime containerd 2.2.1\n", "\n  name: containerd\n", "\n  # skipInstall: false\n"},
		},
		"containerd by hand": {
			map[string]string{"/usr/local/bin/containerd": ""},
			[]string{"so skipInstall leaves it as it is", "\n  skipInstall: true\n", "\n  version: 2.2.1\n"},
		},
		"docker, with its containerd": {
			map[string]string{"/usr/bin/containerd": "", "/usr/sbin/dockerd": ""},
			[]string{"\n  name: docker\n"},
		},
		"a kubelet on berth over docker": {
			map[string]string{
				"/usr/bin/containerd": "", "/usr/sbin/dockerd": "", "/usr/local/bin/berth-supervisor": "",
				"/etc/berth/berth.toml": "engine = 'docker'\n",
				kubelet.ConfigFile:      "containerRuntimeEndpoint: unix:///run/berth/berth.sock\n",
			},
			[]string{"# - runtime docker 2.2.1, which the kubelet talks to", "\n  name: docker\n", "\n  socket: /run/berth/berth.sock\n"},
		},
		"a kubelet on crio": {
			map[string]string{
				"/usr/bin/containerd": "", "/usr/bin/crio": "",
				kubelet.ConfigFile: "cgroupDriver: cgroupfs\n",
				kubelet.FlagsFile:  "KUBELET_KUBEADM_ARGS=\"--container-runtime-endpoint=unix:///var/run/crio/crio.sock\"",
			},
			[]string{"which the kubelet talks to", "(cgroup driver cgroupfs)", "\n  name: crio\n", "\n  cgroupDriver: cgroupfs\n"},
		},
		"kubeadm": {
			map[string]string{"/usr/local/bin/kubeadm": "", "/usr/local/bin/kubelet": ""},
			[]string{"# - kubeadm, which will write the kubelet's configuration (kubelet.kubeadm)\n", "\nkubelet:\n", "\n  kubeadm: true\n"},
		},
		"kubeadm of a package": {
			map[string]string{
				"/usr/bin/kubeadm": "", "/usr/bin/kubelet": "",
				"/usr/lib/systemd/system/kubelet.service":                   "[Service]\nExecStart=/usr/bin/kubelet\n",
				"/usr/lib/systemd/system/kubelet.service.d/10-kubeadm.conf": "[Service]\nExecStart=\nExecStart=/usr/bin/kubelet --config=/var/lib/kubelet/config.yaml\n",
			},
			[]string{"# - kubeadm, which will write the kubelet's configuration (kubelet.kubeadm)\n", "\n  kubeadm: true\n"},
		},
		"a kubelet of kubeadm": {
			map[string]string{"/usr/bin/kubeadm": "", kubelet.ConfigFile: "cgroupDriver: systemd\n"},
			[]string{"a kubelet that somebody else set up", "\n  # kubeadm: false\n"},
		},
		"kubeadm and docker's containers": {
			map[string]string{"/usr/bin/kubeadm": "", "/usr/bin/kubelet": "", "/usr/sbin/dockerd": ""},
			[]string{"\n  name: docker\n", "\n  kubeadm: true\n"},
		},
		"proxy and GPU": {
			map[string]string{"/usr/bin/containerd": "", "/usr/bin/nvidia-ctk": "", "/etc/environment": "http_proxy=\"http://p:1\"\nNO_PROXY=a,b\nOTHER=x\n"},
			[]string{"# - NVIDIA's driver or toolkit", "sets http_proxy", "http: http://p:1\n", "noProxy: [a, b]\n"},
		},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			files := map[string]string{"/etc/os-release": debian}
			maps.Copy(files, c.files)
			host := provisiontest.FileHost{Content: files, OnRun: func([]string) (string, error) { return "x v2.2.1", nil }}
			var loaded []*nodefile.Node
			for _, all := range []bool{false, true} {
				text, err := Describe(t.Context(), host, all)
				if err != nil {
					t.Fatal(err)
				}
				for _, want := range c.want {
					if short := strings.HasPrefix(want, "\n  # "); strings.Contains(text, want) != (all || !short) {
						t.Errorf("all=%t: is %q there? Want it %t, in\n%s", all, want, all || !short, text[:min(len(text), 3000)])
					}
				}
				if lines := strings.Count(text, "\n"); !all && lines > 40 {
					t.Errorf("the short file has %d lines", lines)
				}
				n, err := nodefile.Load("init", []byte(text))
				if err != nil {
					t.Errorf("what init writes has faults: %v\n%s", err, text)
				}
				loaded = append(loaded, n)
			}
			if diff := cmp.Diff(loaded[1], loaded[0], cmpopts.EquateEmpty()); diff != "" {
				t.Errorf("the short file says something else than the long one (-long +short):\n%s", diff)
			}
		})
	}
}
