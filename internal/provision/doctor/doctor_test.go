package doctor_test

import (
	"strings"
	"testing"

	"github.com/berthrun/berth/internal/provision"
	"github.com/berthrun/berth/internal/provision/doctor"
	"github.com/berthrun/berth/internal/provision/provisiontest"
)

// write creates a file and its parent directories.
func write(t *testing.T, h *provisiontest.Host, path, content string) {
	t.Helper()
	at := ""
	parts := strings.Split(strings.TrimPrefix(path, "/"), "/")
	for _, part := range parts[:len(parts)-1] {
		at += "/" + part
		if err := h.Files().Mkdir(at, provision.Attr{Mode: 0o755}); err != nil {
			t.Fatal(err)
		}
	}
	if err := h.Files().Write(path, strings.NewReader(content), provision.Attr{Mode: 0o644}); err != nil {
		t.Fatal(err)
	}
}

func TestExamine(t *testing.T) {
	for _, c := range []struct {
		name  string
		spoil func(h *provisiontest.Host)
		level doctor.Level
		want  string // only in evidence
		fix   string
	}{
		{"no runtime", func(*provisiontest.Host) {}, doctor.Problem, "no runtime answers", "berth node init"},
		{"unit that should run", func(h *provisiontest.Host) {
			write(t, h, "/etc/systemd/system/kubelet.service", "[Service]\n")
			if err := h.Units().Enable(t.Context(), "kubelet.service"); err != nil {
				t.Fatal(err)
			}
		}, doctor.Problem, "kubelet.service is enabled and does not run", "systemctl start kubelet.service"},
		{"socket without runtime", func(h *provisiontest.Host) {
			write(t, h, "/var/lib/kubelet/config.yaml", "containerRuntimeEndpoint: unix:///run/x.sock\n")
		}, doctor.Problem, "the kubelet talks to /run/x.sock (/var/lib/kubelet/config.yaml), where no runtime answers", "containerRuntimeEndpoint"},
		{"a kubelet elsewhere", func(h *provisiontest.Host) {
			write(t, h, "/proc/12/cmdline", "/opt/kubelet\x00--config=/opt/k.yaml\x00")
			write(t, h, "/opt/k.yaml", "containerRuntimeEndpoint: unix:///run/x.sock\n")
		}, doctor.Problem, "the kubelet talks to /run/x.sock (/opt/k.yaml), where no runtime answers", "in /opt/k.yaml"},
		{"a unit without its kubelet", func(h *provisiontest.Host) {
			write(t, h, "/etc/systemd/system/kubelet.service", "[Service]\nExecStart=/usr/bin/kubelet\n")
			write(t, h, "/etc/systemd/system/kubelet.service.d/10-kubeadm.conf", "[Service]\nExecStart=\nExecStart=/opt/bin/kubelet $KUBELET_ARGS\n")
			write(t, h, "/usr/bin/kubelet", "")
		}, doctor.Problem, "kubelet.service starts /opt/bin/kubelet, which is not there", "kubelet.assets"},
		{"socket elsewhere", func(h *provisiontest.Host) {
			write(t, h, "/etc/berth/berth.toml", "listen = 'unix:///run/elsewhere.sock'\n")
			write(t, h, "/run/elsewhere.sock", "")
		}, doctor.Problem, "/run/elsewhere.sock exists, and the server there does not serve CRI", "See its log"},
		{"plugin that is missing", func(h *provisiontest.Host) {
			write(t, h, "/etc/cni/net.d/10-x.conflist", `{"plugins":[{"type":"bridge"}]}`)
		}, doctor.Problem, "wants the CNI plugin bridge", "containernetworking-plugins"},
		{"forwarding", func(h *provisiontest.Host) { h.SetSysctlNow("net.ipv4.ip_forward", "0") }, doctor.Problem, "net.ipv4.ip_forward is 0", "sysctl -w"},
		{"few watchers", func(h *provisiontest.Host) {
			few := 3
			h.Watchers = &few
			write(t, h, "/proc/12/comm", "kubelet\n")
			for _, fd := range []string{"5", "6"} {
				write(t, h, "/proc/12/fd/0", "")
				if err := h.Files().Link("anon_inode:inotify", "/proc/12/fd/"+fd, provision.Attr{}); err != nil {
					t.Fatal(err)
				}
			}
		}, doctor.Problem, "root can watch files 3 more times: a containerd that starts without runs without CRI, and a kubelet does not start; most have kubelet (2)", "sysctl -w fs.inotify.max_user_instances="},
		{"swap", func(h *provisiontest.Host) {
			write(t, h, "/var/lib/kubelet/config.yaml", "{}")
			if err := h.Kernel().SwapOn(t.Context(), "/swapfile"); err != nil {
				t.Fatal(err)
			}
		}, doctor.Problem, "swap is on (/swapfile)", "failSwapOn"},
		{"resolver", func(h *provisiontest.Host) {
			write(t, h, "/var/lib/kubelet/config.yaml", "{}")
			write(t, h, "/etc/resolv.conf", "nameserver 127.0.0.53\n")
		}, doctor.Warning, "CoreDNS", "resolvConf"},
		{"what kubeadm would not like", func(h *provisiontest.Host) {
			write(t, h, "/usr/bin/kubeadm", "")
			write(t, h, "/etc/kubernetes/pki/ca.crt", "")
		}, doctor.Warning, "/etc/kubernetes/pki/ca.crt is there: kubeadm join refuses", "kubeadm reset"},
	} {
		t.Run(c.name, func(t *testing.T) {
			h := provisiontest.New()
			c.spoil(h)
			h.StartProcess()
			for _, f := range doctor.Examine(t.Context(), h, doctor.Options{}) {
				if f.Level == c.level && strings.Contains(f.Evidence, c.want) && strings.Contains(f.Fix, c.fix) {
					if ops := h.Ops(); len(ops) > 0 {
						t.Errorf("doctor changes the machine: %v", ops)
					}
					return
				}
			}
			t.Errorf("no %s says %q: %+v", c.level, c.want, doctor.Examine(t.Context(), h, doctor.Options{}))
		})
	}
}

// TestExamineKubelet: a kubelet that is installed or runs is no problem.
func TestExamineKubelet(t *testing.T) {
	for name, files := range map[string]map[string]string{
		"its program": {"/etc/systemd/system/kubelet.service": "[Service]\nExecStart=-/opt/bin/kubelet\n", "/opt/bin/kubelet": ""},
		"in PATH":     {"/etc/systemd/system/kubelet.service": "[Service]\nExecStart=kubelet --x\n"},
		"it runs":     {"/etc/systemd/system/kubelet.service": "[Service]\nExecStart=/opt/bin/kubelet\n", "/proc/12/cmdline": "/opt/kubelet\x00"},
	} {
		h := provisiontest.New()
		for file, content := range files {
			write(t, h, file, content)
		}
		for _, f := range doctor.Examine(t.Context(), h, doctor.Options{}) {
			if f.Check == "kubelet" && f.Level != doctor.OK {
				t.Errorf("%s: %s", name, f.Evidence)
			}
		}
	}
}

// TestExamineDocker: a machine that runs docker without a kubelet needs no CRI.
func TestExamineDocker(t *testing.T) {
	const said = "runtime"
	problem := func(h *provisiontest.Host) string {
		for _, f := range doctor.Examine(t.Context(), h, doctor.Options{}) {
			if f.Check == said && f.Level == doctor.Problem {
				return f.Evidence
			}
		}
		return ""
	}
	h := provisiontest.New()
	write(t, h, "/run/containerd/containerd.sock", "")
	write(t, h, "/usr/lib/systemd/system/docker.service", "[Service]\n")
	if problem(h) == "" {
		t.Error("a containerd without CRI is no problem, though nothing else runs")
	}
	h.StartNow("docker.service")
	if evidence := problem(h); evidence != "" {
		t.Errorf("docker's containerd is a problem: %s", evidence)
	}
	write(t, h, "/var/lib/kubelet/config.yaml", "{}")
	if problem(h) == "" {
		t.Error("a containerd without CRI is no problem, though there is a kubelet")
	}
	write(t, h, "/var/lib/kubelet/config.yaml", "containerRuntimeEndpoint: unix:///run/berth/berth.sock\n")
	write(t, h, "/etc/berth/berth.toml", "engine = 'docker'\n")
	if evidence := problem(h); strings.Contains(evidence, "containerd.sock") || evidence == "" {
		t.Errorf("the kubelet's berth over docker does not answer, and docker's containerd needs no CRI, but: %q", evidence)
	}
}
