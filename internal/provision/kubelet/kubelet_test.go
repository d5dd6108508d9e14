package kubelet_test

import (
	"path"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/berthrun/berth/internal/provision"
	"github.com/berthrun/berth/internal/provision/kubelet"
	"github.com/berthrun/berth/internal/provision/provisiontest"
)

// host is a machine with files.
func host(t *testing.T, files map[string]string) *provisiontest.Host {
	t.Helper()
	h := provisiontest.New()
	var mkdir func(dir string)
	mkdir = func(dir string) {
		if dir == "/" {
			return
		}
		mkdir(path.Dir(dir))
		if err := h.Files().Mkdir(dir, provision.Attr{Mode: 0o755}); err != nil {
			t.Fatal(err)
		}
	}
	for name, content := range files {
		mkdir(path.Dir(name))
		if err := h.Files().Write(name, strings.NewReader(content), provision.Attr{Mode: 0o644}); err != nil {
			t.Fatal(err)
		}
	}
	return h
}

const (
	kubeadmUnit   = "[Unit]\nDescription=kubelet\n[Service]\nExecStart=/usr/bin/kubelet\nRestart=always\n"
	kubeadmDropIn = `[Service]
Environment="KUBELET_KUBECONFIG_ARGS=--bootstrap-kubeconfig=/etc/kubernetes/bootstrap-kubelet.conf --kubeconfig=/etc/kubernetes/kubelet.conf"
Environment="KUBELET_CONFIG_ARGS=--config=/var/lib/kubelet/config.yaml"
EnvironmentFile=-/var/lib/kubelet/kubeadm-flags.env
EnvironmentFile=-/etc/default/kubelet
ExecStart=
ExecStart=/usr/bin/kubelet $KUBELET_KUBECONFIG_ARGS $KUBELET_CONFIG_ARGS $KUBELET_KUBEADM_ARGS $KUBELET_EXTRA_ARGS
`
)

func TestFind(t *testing.T) {
	const config, flags = "/var/lib/kubelet/config.yaml", "/var/lib/kubelet/kubeadm-flags.env"
	for _, c := range []struct {
		name                     string
		files                    map[string]string
		source, endpoint, driver string
		from                     string // of the endpoint
	}{
		{"none", map[string]string{"/proc/1/cmdline": "/sbin/init\x00", "/proc/self": "x"}, "", "", "", ""},
		{"configuration alone", map[string]string{config: "cgroupDriver: systemd\ncontainerRuntimeEndpoint: unix:///run/a.sock\n"}, config, "unix:///run/a.sock", "systemd", config},
		{
			"kubeadm's, not started",
			map[string]string{config: "cgroupDriver: systemd\n", flags: `KUBELET_KUBEADM_ARGS="--container-runtime-endpoint=unix:///run/b.sock --x=y"`},
			config, "unix:///run/b.sock", "systemd", flags,
		},
		{
			"by process, elsewhere than usual", map[string]string{
				"/proc/7/cmdline":       "/opt/k8s/kubelet\x00--config\x00/etc/k8s/kubelet.yaml\x00--cgroup-driver=cgroupfs\x00",
				"/etc/k8s/kubelet.yaml": "cgroupDriver: systemd\ncontainerRuntimeEndpoint: unix:///run/c.sock\n", config: "cgroupDriver: other\n",
			}, "process 7", "unix:///run/c.sock", "cgroupfs", "/etc/k8s/kubelet.yaml",
		},
		{
			"by process, options only",
			map[string]string{"/proc/70/cmdline": "kubelet\x00--container-runtime-endpoint=unix:///run/d.sock\x00--cgroup-driver=systemd\x00"},
			"process 70", "unix:///run/d.sock", "systemd", "process 70",
		},
		{
			"another program's argument", map[string]string{"/proc/9/cmdline": "vi\x00kubelet\x00--config=/x\x00"}, "", "", "", "",
		},
		{
			"by unit with drop-in and environment", map[string]string{
				"/usr/lib/systemd/system/kubelet.service": kubeadmUnit, "/etc/systemd/system/kubelet.service.d/10-kubeadm.conf": kubeadmDropIn,
				config: "cgroupDriver: cgroupfs\ncontainerRuntimeEndpoint: unix:///run/e.sock\n",
				flags:  "KUBELET_KUBEADM_ARGS=\"--container-runtime-endpoint=unix:///run/f.sock\"\n", "/etc/default/kubelet": "# mine\nKUBELET_EXTRA_ARGS=--cgroup-driver=systemd\n",
			}, "kubelet.service", "unix:///run/f.sock", "systemd", flags,
		},
		{
			"by unit with drop-ins of the configuration", map[string]string{
				"/etc/systemd/system/kubelet.service": "[Service]\nExecStart=/usr/bin/kubelet --config=/etc/k/main.yaml \\\n  --config-dir=/etc/k/d\n",
				"/etc/k/main.yaml":                    "cgroupDriver: cgroupfs\ncontainerRuntimeEndpoint: unix:///run/g.sock\n",
				"/etc/k/d/10.conf":                    "cgroupDriver: systemd\n", "/etc/k/d/20.conf": "containerRuntimeEndpoint: unix:///run/h.sock\n", "/etc/k/d/README": "cgroupDriver: no\n",
			}, "kubelet.service", "unix:///run/h.sock", "systemd", "/etc/k/d/20.conf",
		},
		{
			"option in a unit",
			map[string]string{"/etc/systemd/system/kubelet.service": "[Service]\nEnvironment=E=/run/i.sock\nExecStart=-/usr/bin/kubelet '--container-runtime-endpoint=unix://${E}'\n"},
			"kubelet.service", "unix:///run/i.sock", "", "/etc/systemd/system/kubelet.service",
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			k, err := kubelet.Find(host(t, c.files))
			if err != nil {
				t.Fatal(err)
			}
			got := []string{k.Source, k.Endpoint.Text, k.Driver.Text, k.Endpoint.From}
			if diff := cmp.Diff([]string{c.source, c.endpoint, c.driver, c.from}, got); diff != "" {
				t.Errorf("source, endpoint, driver, endpoint's file (-want +got):\n%s", diff)
			}
		})
	}
}

// TestSilent: a unit that never ran does not show which endpoint its kubelet would have.
func TestSilent(t *testing.T) {
	const unit, config = "/usr/lib/systemd/system/kubelet.service", "/var/lib/kubelet/config.yaml"
	for name, c := range map[string]struct {
		files map[string]string
		want  bool
	}{
		"no kubelet":               {nil, false},
		"of a package":             {map[string]string{unit: "[Service]\nExecStart=/usr/bin/kubelet $KUBELET_ARGS\n"}, false},
		"of a package, and runs":   {map[string]string{unit: "[Service]\nExecStart=/usr/bin/kubelet $KUBELET_ARGS\n", "/proc/7/cmdline": "/usr/bin/kubelet\x00"}, true},
		"before its configuration": {map[string]string{unit: "[Service]\nExecStart=/usr/bin/kubelet --config=" + config + "\n"}, false},
		"with its configuration":   {map[string]string{unit: "[Service]\nExecStart=/usr/bin/kubelet --config=" + config + "\n", config: "maxPods: 9\n"}, true},
		"with an endpoint":         {map[string]string{config: "containerRuntimeEndpoint: unix:///run/a.sock\n"}, false},
	} {
		h := host(t, c.files)
		k, err := kubelet.Find(h)
		if got := k.Silent(h.Files()); err != nil || got != c.want {
			t.Errorf("%s: %v, %v", name, got, err)
		}
	}
}

func TestFindTellsBadFiles(t *testing.T) {
	_, err := kubelet.Find(host(t, map[string]string{
		"/proc/7/cmdline": "kubelet\x00--config=/etc/k.yaml\x00", "/etc/k.yaml": "a: b: c",
	}))
	if err == nil || !strings.Contains(err.Error(), "/etc/k.yaml is not YAML") {
		t.Errorf("error %v, want one that names the file", err)
	}
}

// TestEvictionsOfDropIns: the kubelet merges the keys of evictionHard.
func TestEvictionsOfDropIns(t *testing.T) {
	k, err := kubelet.Find(host(t, map[string]string{
		"/proc/7/cmdline": "kubelet\x00--config=/k/main.yaml\x00--config-dir=/k/d\x00",
		"/k/main.yaml":    "evictionHard: {nodefs.available: 10%, imagefs.available: 15%}\n",
		"/k/d/10.conf":    "evictionHard: {imagefs.available: 20%}\n",
	}))
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]string{"nodefs.available": "10%", "imagefs.available": "20%"}
	if diff := cmp.Diff(want, k.Limits.Eviction); diff != "" || k.Limits.EvictionFrom != "/k/d/10.conf" {
		t.Errorf("from %s: %s", k.Limits.EvictionFrom, diff)
	}
}
