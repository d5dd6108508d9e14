package node

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/provision"
	"github.com/berthrun/berth/internal/provision/kubelet"
	"github.com/berthrun/berth/internal/provision/node/facts"
	"github.com/berthrun/berth/internal/provision/provisiontest"
	"github.com/berthrun/berth/internal/provision/tasks"
)

func TestKubeletProbe(t *testing.T) {
	probe := kubeletProbe{runtime: "berth", driver: "systemd", endpoint: "unix:///run/berth/berth.sock"}
	cases := map[string]struct {
		files map[string]string
		want  string
	}{
		"no kubelet":      {nil, ""},
		"same":            {map[string]string{kubeletConfig: "cgroupDriver: systemd\ncontainerRuntimeEndpoint: unix:///var/run/berth/berth.sock\n"}, ""},
		"other driver":    {map[string]string{kubeletConfig: "cgroupDriver: cgroupfs\n"}, `misconfiguration: kubelet cgroup driver: "cgroupfs" is different from berth cgroup driver: "systemd"`},
		"other socket":    {map[string]string{kubeletConfig: "containerRuntimeEndpoint: unix:///run/x.sock\n"}, "the kubelet talks to unix:///run/x.sock and berth listens on unix:///run/berth/berth.sock; change " + kubeletConfig},
		"default socket":  {map[string]string{kubeletConfig: "cgroupDriver: systemd\n"}, "the kubelet talks to unix:///run/containerd/containerd.sock"},
		"not set up":      {map[string]string{"/etc/systemd/system/kubelet.service": "[Service]\nExecStart=/usr/bin/kubelet --config=" + kubeletConfig + "\n"}, ""},
		"never used":      {map[string]string{"/usr/lib/systemd/system/kubelet.service": "[Service]\nExecStart=/usr/bin/kubelet $KUBELET_ARGS\n"}, ""},
		"kubeadm's flags": {map[string]string{kubeletConfig: "{}", "/var/lib/kubelet/kubeadm-flags.env": "KUBELET_KUBEADM_ARGS=\"--container-runtime-endpoint=unix:///run/y.sock --x\"\n"}, "the kubelet talks to unix:///run/y.sock"},
		"broken":          {map[string]string{kubeletConfig: "{"}, kubeletConfig},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			err := probe.Run(t.Context(), provisiontest.FileHost{Content: c.files})
			if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
				t.Errorf("%v, want %q", err, c.want)
			}
		})
	}
}

func TestPluginProbe(t *testing.T) {
	probe := pluginProbe{dirs: []string{"/a", "/b"}, plugins: []string{"ptp", "portmap"}}
	if err := probe.Run(t.Context(), provisiontest.FileHost{Content: map[string]string{"/a/ptp": "", "/b/portmap": ""}}); err != nil {
		t.Error(err)
	}
	if err := probe.Run(t.Context(), provisiontest.FileHost{Content: map[string]string{"/a/ptp": ""}}); err == nil || !strings.Contains(err.Error(), "portmap is in none of /a, /b") {
		t.Error(err)
	}
}

func TestWatchProbe(t *testing.T) {
	h := provisiontest.New()
	probe := watchProbe{}
	if err := probe.Run(t.Context(), h); err != nil {
		t.Error(err)
	}
	few := leastWatchers - 1
	h.Watchers = &few
	if err := probe.Run(t.Context(), h); !errors.Is(err, errs.Exhausted) || !strings.Contains(err.Error(), "3 more can be made") {
		t.Errorf("with %d watchers left: %v", few, err)
	}
	h.NotLive = true
	if err := probe.Run(t.Context(), h); err != nil {
		t.Errorf("on a root directory: %v", err)
	}
}

// TestDisruptionOfTheUnit: the task of the runtime's unit reports the effect of a restart on
// running pods.
func TestDisruptionOfTheUnit(t *testing.T) {
	f := factsOf(t, "debian 12")
	f.Disrupts = "all stop"
	target, err := Build(load(t, "runtime: {name: docker}\n"), f)
	if err != nil {
		t.Fatal(err)
	}
	i := slices.IndexFunc(target.Tasks, func(task provision.Task) bool { return task.ID() == "unit docker.service" })
	if got := target.Tasks[i].(tasks.Unit).Disruption(); got != "all stop" {
		t.Errorf("the unit says %q of its restart", got)
	}
}

// TestKubeletElsewhere: a kubelet may run with another configuration than kubeadm's. The probe
// compares it with the runtime. If the endpoint changes, the error names the file to edit.
func TestKubeletElsewhere(t *testing.T) {
	host := provisiontest.FileHost{OnRun: func([]string) (string, error) { return "", nil }, Content: map[string]string{
		"/proc/812/cmdline": "/opt/kubelet\x00--config=/opt/kubelet.yaml\x00",
		"/opt/kubelet.yaml": "cgroupDriver: systemd\ncontainerRuntimeEndpoint: unix:///run/containerd/containerd.sock\n",
	}}
	for probe, want := range map[kubeletProbe]string{
		{runtime: "berth", driver: "systemd", endpoint: "unix:///run/containerd/containerd.sock"}:  "",
		{runtime: "berth", driver: "cgroupfs", endpoint: "unix:///run/containerd/containerd.sock"}: `kubelet cgroup driver: "systemd" is different from berth cgroup driver: "cgroupfs" (/opt/kubelet.yaml)`,
		{runtime: "berth", driver: "systemd", endpoint: "unix:///run/berth/berth.sock"}:            "change /opt/kubelet.yaml",
	} {
		err := probe.Run(t.Context(), host)
		if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%+v: error %v, want %q", probe, err, want)
		}
	}
	f := factsOf(t, "debian 12")
	k, err := kubelet.Find(host)
	if err != nil {
		t.Fatal(err)
	}
	f.Kubelet, f.KubeletFiles, f.Replaced = true, k.Files, []facts.Replaced{facts.ReplaceableRuntimes()["containerd"]}
	target, err := Build(load(t, "runtime: {name: berth}\n"), f)
	if err != nil {
		t.Fatal(err)
	}
	if !slices.ContainsFunc(target.Tasks, func(task provision.Task) bool { return task.ID() == "file /opt/kubelet.yaml" }) {
		t.Error("nobody points the kubelet's own configuration at the new runtime")
	}
	f.KubeletFixed = kubelet.Value{Text: "unix:///run/containerd/containerd.sock", From: "process 812"}
	if _, err := Build(load(t, "runtime: {name: berth}\n"), f); !errors.Is(err, errs.State) || !strings.Contains(err.Error(), "process 812") {
		t.Errorf("a kubelet whose endpoint is in no file: %v", err)
	}
	f.KubeletFixed.Text = "unix:///var/run/berth/berth.sock"
	if _, err := Build(load(t, "runtime: {name: berth}\n"), f); err != nil {
		t.Errorf("one that talks to the new runtime: %v", err)
	}
}

// TestNetworkProbe: if the network lacks a plugin, a running runtime is not restarted. A runtime
// that starts for the first time does start, with a warning.
func TestNetworkProbe(t *testing.T) {
	probe := networkProbe{unit: "rt.service", conf: "/etc/cni/net.d", dirs: []string{"/opt/cni/bin"}}
	for name, c := range map[string]struct {
		plugin, runs   bool
		fails, warning bool
	}{
		"all is there": {true, true, false, false},
		"runs":         {false, true, true, false},
		"does not run": {false, false, false, true},
	} {
		t.Run(name, func(t *testing.T) {
			h := provisiontest.New()
			files := map[string]string{"/etc/cni/net.d/10-x.conflist": `{"plugins":[{"type":"bridge"}]}`, "/etc/systemd/system/rt.service": "[Service]\n"}
			if c.plugin {
				files["/opt/cni/bin/bridge"] = ""
			}
			for _, dir := range []string{"/etc/cni", "/etc/cni/net.d", "/opt", "/opt/cni", "/opt/cni/bin"} {
				if err := h.Files().Mkdir(dir, provision.Attr{Mode: 0o755}); err != nil {
					t.Fatal(err)
				}
			}
			for file, content := range files {
				if err := h.Files().Write(file, strings.NewReader(content), provision.Attr{Mode: 0o644}); err != nil {
					t.Fatal(err)
				}
			}
			if c.runs {
				h.StartNow("rt.service")
			}
			warned := false
			err := probe.Run(provision.WithWarnings(t.Context(), func(string) { warned = true }), h)
			if (err != nil) != c.fails || warned != c.warning || err != nil && !strings.Contains(err.Error(), "wants the CNI plugins bridge") {
				t.Errorf("error %v, warned %t", err, warned)
			}
		})
	}
}

// TestConfigProbe: a binary that refuses its configuration prevents the restart. A binary that is
// too old to check it causes a message.
func TestConfigProbe(t *testing.T) {
	probe := configProbe{file: "/etc/x", args: []string{"/usr/bin/dockerd", "--validate"}}
	for said, want := range map[string][2]bool{"": {}, "unknown flag: --validate": {false, true}, "unable to configure: bad key": {true, false}} {
		host := provisiontest.FileHost{OnRun: func([]string) (string, error) {
			if said != "" {
				return "", errors.New(said)
			}
			return "", nil
		}}
		warned := false
		err := probe.Run(provision.WithWarnings(t.Context(), func(string) { warned = true }), host)
		if (err != nil) != want[0] || warned != want[1] || err != nil && !strings.Contains(err.Error(), "/etc/x is refused by the installed dockerd: unable to configure") {
			t.Errorf("%q: error %v, warned %t", said, err, warned)
		}
	}
}
