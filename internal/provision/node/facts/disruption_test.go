package facts

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/berthrun/berth/internal/provision/provisiontest"
)

// TestDisruption: facts report the effect of a restart on running pods, and nothing if none run.
func TestDisruption(t *testing.T) {
	for info, want := range map[string]string{
		"3 false systemd /var/lib/docker": "3 containers stop: dockerd runs without live-restore until then",
		"0 false systemd /var/lib/docker": "",
		"3 true systemd /var/lib/docker":  "",
		"3 true cgroupfs /var/lib/docker": "3 containers are lost to the runtime: runtime.cgroupDriver was cgroupfs",
		"":                                "",
	} {
		host := provisiontest.FileHost{OnRun: func([]string) (string, error) { return info + "\n", nil }}
		if got := detectDisruption(t.Context(), host, load(t, "runtime: {name: docker}\n")); got != want {
			t.Errorf("%q: %q, want %q", info, got, want)
		}
	}
	containerd := "version = 3\nroot = '/data'\n[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc.options]\nSystemdCgroup = false\n"
	files := provisiontest.FileHost{Content: map[string]string{"/etc/containerd/config.toml": containerd}}
	for text, want := range map[string][]string{
		"":                                      {"runtime.root was /data", "runtime.cgroupDriver was cgroupfs"},
		", root: /data, cgroupDriver: cgroupfs": nil,
		", root: /data, state: /run/x, cgroupDriver: cgroupfs": {"runtime.state was /run/containerd"},
	} {
		if diff := cmp.Diff(want, pathChanges(files.Files(), &load(t, "runtime: {name: containerd"+text+"}\n").Runtime)); diff != "" {
			t.Errorf("%q: %s", text, diff)
		}
	}
	if got := pathChanges(provisiontest.FileHost{}.Files(), &load(t, "runtime: {name: crio}\n").Runtime); got != nil {
		t.Errorf("a runtime that is not configured yet: %q", got)
	}
}
