package preflight_test

import (
	"bytes"
	"compress/gzip"
	"slices"
	"strings"
	"testing"

	"github.com/berthrun/berth/internal/provision"
	"github.com/berthrun/berth/internal/provision/preflight"
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

const config = `CONFIG_NAMESPACES=y
CONFIG_NET_NS=y
CONFIG_PID_NS=y
CONFIG_IPC_NS=y
CONFIG_UTS_NS=y
CONFIG_CPUSETS=y
CONFIG_MEMCG=y
CONFIG_INET=y
CONFIG_EXT4_FS=m
CONFIG_PROC_FS=y
CONFIG_IP_NF_TARGET_REDIRECT=m
CONFIG_NETFILTER_XT_MATCH_COMMENT=m
CONFIG_FAIR_GROUP_SCHED=y
CONFIG_CGROUPS=y
CONFIG_CGROUP_PIDS=y
CONFIG_CGROUP_SCHED=y
CONFIG_CGROUP_BPF=y
CONFIG_OVERLAY_FS=m
CONFIG_CFS_BANDWIDTH=y
CONFIG_SECCOMP=y
CONFIG_SECCOMP_FILTER=y
CONFIG_CGROUP_HUGETLB=y
`

// good is a machine that passes kubeadm's checks, except that no runtime listens here.
func good(t *testing.T) *provisiontest.Host {
	t.Helper()
	h := provisiontest.New()
	for _, name := range []string{"losetup", "mount", "cp", "conntrack", "iptables", "kubelet", "kubeadm"} {
		write(t, h, "/usr/bin/"+name, "")
	}
	h.Programs["/usr/bin/kubelet"] = says("Kubernetes v1.36.3\n")
	h.Programs["/usr/bin/kubeadm"] = says("v1.36.3\n")
	h.Programs["getent"] = says("127.0.1.1 STREAM node-1\n")
	write(t, h, "/etc/systemd/system/kubelet.service", "[Service]\n[Install]\nWantedBy=multi-user.target\n")
	if err := h.Units().Enable(t.Context(), "kubelet.service"); err != nil {
		t.Fatal(err)
	}
	h.SetSysctlNow("net.ipv4.ip_forward", "1")
	h.SetSysctlNow("net.bridge.bridge-nf-call-iptables", "1")
	write(t, h, "/proc/sys/kernel/osrelease", "6.1.0-50-amd64\n")
	write(t, h, "/proc/sys/kernel/hostname", "Node-1\n")
	write(t, h, "/boot/config-6.1.0-50-amd64", config)
	write(t, h, "/sys/fs/cgroup/cgroup.controllers", "cpuset cpu io memory hugetlb pids rdma misc\n")
	mount(t, h, "/sys/fs/cgroup", "cgroup2")
	write(t, h, "/etc/resolv.conf", "nameserver 192.0.2.1\n")
	write(t, h, "/proc/cpuinfo", "processor\t: 0\n\nprocessor\t: 1\n")
	write(t, h, "/proc/meminfo", "MemTotal:        4000000 kB\nMemFree: 1 kB\n")
	write(t, h, "/proc/net/tcp", "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n"+
		"   0: 0100007F:0CEA 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 77 1 0 100 0 0 10 0\n")
	return h
}

func says(text string) func(provision.Command) ([]byte, error) {
	return func(provision.Command) ([]byte, error) { return []byte(text), nil }
}

func mount(t *testing.T, h *provisiontest.Host, path, kind string) {
	t.Helper()
	h.AddMount(provision.Mount{Source: kind, Path: path, Type: kind})
}

// noRuntime is what every machine in memory lacks.
func noRuntime(f preflight.Objection) bool { return f.Check == "CRI" }

func TestAGoodMachine(t *testing.T) {
	h := good(t)
	h.StartProcess()
	findings := preflight.Look(t.Context(), h)
	if rest := slices.DeleteFunc(slices.Clone(findings), noRuntime); len(rest) > 0 || len(findings) != 1 {
		t.Errorf("findings: %v", findings)
	}
	for _, op := range h.Ops() {
		if !strings.HasPrefix(op, "run ") {
			t.Errorf("it changes the machine: %s", op)
		}
	}
	if !preflight.Installed(h) || preflight.Installed(provisiontest.New()) {
		t.Error("kubeadm is not seen, or seen where it is not")
	}
}

// replace rewrites a file with one string replaced.
func replaced(t *testing.T, text, old, by string) string {
	t.Helper()
	if !strings.Contains(text, old) {
		t.Fatalf("no %q to replace", old)
	}
	return strings.Replace(text, old, by, 1)
}

func TestFindings(t *testing.T) {
	const listener = "   1: 00000000:280A 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 4711 1 0 100 0 0 10 0\n"
	for _, c := range []struct {
		name  string
		spoil func(t *testing.T, h *provisiontest.Host)
		check string
		who   preflight.Who
		words string
	}{
		{"no forwarding", func(t *testing.T, h *provisiontest.Host) { h.SetSysctlNow("net.ipv4.ip_forward", "0") }, "FileContent--proc-sys-net-ipv4-ip_forward", preflight.Both, "net.ipv4.ip_forward is 0"},
		{"no br_netfilter", func(t *testing.T, h *provisiontest.Host) { h.SetSysctlNow("net.bridge.bridge-nf-call-iptables", "0") }, "FileContent--proc-sys-net-bridge-bridge-nf-call-iptables", preflight.Nobody, "before 1.30"},
		{"swap", func(t *testing.T, h *provisiontest.Host) {
			if err := h.Kernel().SwapOn(t.Context(), "/swapfile"); err != nil {
				t.Fatal(err)
			}
		}, "Swap", preflight.Nobody, "/swapfile"},
		{"program", func(t *testing.T, h *provisiontest.Host) { remove(t, h, "/usr/bin/losetup") }, "FileExisting-losetup", preflight.Both, "losetup is not in PATH"},
		{"conntrack of old", func(t *testing.T, h *provisiontest.Host) {
			remove(t, h, "/usr/bin/conntrack")
			h.Programs["/usr/bin/kubelet"] = says("Kubernetes v1.31.0\n")
			h.Programs["/usr/bin/kubeadm"] = says("v1.31.0\n")
		}, "FileExisting-conntrack", preflight.Both, "conntrack"},
		{"no kubelet", func(t *testing.T, h *provisiontest.Host) { remove(t, h, "/usr/bin/kubelet") }, "KubeletVersion", preflight.Both, "no kubelet"},
		{"old kubelet", func(t *testing.T, h *provisiontest.Host) {
			h.Programs["/usr/bin/kubelet"] = says("Kubernetes v1.32.9\n")
		}, "KubeletVersion", preflight.Both, "the kubelet is 1.32 and kubeadm 1.36"},
		{"new kubelet", func(t *testing.T, h *provisiontest.Host) {
			h.Programs["/usr/bin/kubelet"] = says("Kubernetes v1.37.0\n")
		}, "KubeletVersion", preflight.Init, "1.37"},
		{"kubelet's unit", func(t *testing.T, h *provisiontest.Host) {
			if err := h.Units().Disable(t.Context(), "kubelet.service"); err != nil {
				t.Fatal(err)
			}
		}, "Service-kubelet", preflight.Nobody, "would not start at boot"},
		{"no unit", func(t *testing.T, h *provisiontest.Host) {
			if err := h.Units().Disable(t.Context(), "kubelet.service"); err != nil {
				t.Fatal(err)
			}
			remove(t, h, "/etc/systemd/system/kubelet.service")
		}, "Service-kubelet", preflight.Nobody, "no kubelet.service"},
		{"runtime of another place", func(t *testing.T, h *provisiontest.Host) { write(t, h, "/run/berth/berth.sock", "") }, "CRI", preflight.Both, "/run/berth/berth.sock by itself"},
		{"two runtimes", func(t *testing.T, h *provisiontest.Host) {
			write(t, h, "/run/containerd/containerd.sock", "")
			write(t, h, "/run/crio/crio.sock", "")
		}, "CRI", preflight.Both, "more than one runtime: /run/containerd/containerd.sock, /run/crio/crio.sock"},
		{"old kernel", func(t *testing.T, h *provisiontest.Host) {
			write(t, h, "/proc/sys/kernel/osrelease", "4.19.0\n")
			write(t, h, "/boot/config-4.19.0", config)
		}, "SystemVerification", preflight.Nobody, "kernel 4.19.0"},
		{"kernel without", func(t *testing.T, h *provisiontest.Host) {
			write(t, h, "/boot/config-6.1.0-50-amd64", replaced(t, config, "CONFIG_MEMCG=y", "# CONFIG_MEMCG is not set"))
		}, "SystemVerification", preflight.Both, "without CONFIG_MEMCG (/boot/config-6.1.0-50-amd64)"},
		{"kernel's configuration is packed", func(t *testing.T, h *provisiontest.Host) {
			var b bytes.Buffer
			w := gzip.NewWriter(&b)
			w.Write([]byte(replaced(t, config, "CONFIG_SECCOMP=y\n", "")))
			if err := w.Close(); err != nil {
				t.Fatal(err)
			}
			write(t, h, "/proc/config.gz", b.String())
		}, "SystemVerification", preflight.Nobody, "without CONFIG_SECCOMP (/proc/config.gz)"},
		{"damaged configuration", func(t *testing.T, h *provisiontest.Host) { write(t, h, "/proc/config.gz", "no gzip") }, "SystemVerification", preflight.Nobody, "cannot be looked at: cannot read /proc/config.gz"},
		{"no configuration", func(t *testing.T, h *provisiontest.Host) { remove(t, h, "/boot/config-6.1.0-50-amd64") }, "SystemVerification", preflight.Both, "configuration is not there"},
		{"controllers", func(t *testing.T, h *provisiontest.Host) {
			write(t, h, "/sys/fs/cgroup/cgroup.controllers", "cpu cpuset pids\n")
		}, "SystemVerification", preflight.Both, "controllers memory are missing"},
		{"cgroup v1", onCgroupV1, "SystemVerification", preflight.Both, "failCgroupV1"},
		{"hostname", func(t *testing.T, h *provisiontest.Host) { write(t, h, "/proc/sys/kernel/hostname", "my_node\n") }, "Hostname", preflight.Both, `"my_node" cannot`},
		{"unknown hostname", func(t *testing.T, h *provisiontest.Host) { delete(h.Programs, "getent") }, "Hostname", preflight.Nobody, "its own name node-1"},
		{"resolver", func(t *testing.T, h *provisiontest.Host) { write(t, h, "/etc/resolv.conf", "nameserver 127.0.0.53\n") }, "resolv.conf", preflight.Nobody, "Loop detected"},
		{"resolved without its file", func(t *testing.T, h *provisiontest.Host) { run(t, h, "systemd-resolved.service") }, "resolv.conf", preflight.Nobody, "/run/systemd/resolve/resolv.conf, which is not there"},
		{"firewall", func(t *testing.T, h *provisiontest.Host) { run(t, h, "firewalld.service") }, "Firewalld", preflight.Nobody, "6443/tcp"},
		{"one CPU", func(t *testing.T, h *provisiontest.Host) { write(t, h, "/proc/cpuinfo", "processor\t: 0\n") }, "NumCPU", preflight.Init, "1 CPU"},
		{"memory", func(t *testing.T, h *provisiontest.Host) {
			write(t, h, "/proc/meminfo", "MemTotal:        1000000 kB\n")
		}, "Mem", preflight.Init, "976 MB"},
		{"port", func(t *testing.T, h *provisiontest.Host) {
			write(t, h, "/proc/net/tcp6", "head\n"+listener)
			write(t, h, "/proc/812/comm", "kubelet\n")
			write(t, h, "/proc/812/fd/0", "")
			if err := h.Files().Link("socket:[4711]", "/proc/812/fd/3", provision.Attr{}); err != nil {
				t.Fatal(err)
			}
		}, "Port-10250", preflight.Both, "port 10250 is in use by kubelet (process 812)"},
		{"left over", func(t *testing.T, h *provisiontest.Host) { write(t, h, "/etc/kubernetes/manifests/etcd.yaml", "") }, "FileAvailable--etc-kubernetes-manifests-etcd.yaml", preflight.Init, "is there"},
		{"manifests", func(t *testing.T, h *provisiontest.Host) { write(t, h, "/etc/kubernetes/manifests/own.yaml", "") }, "DirAvailable--etc-kubernetes-manifests", preflight.Nobody, "own.yaml"},
		{"etcd's data", func(t *testing.T, h *provisiontest.Host) { write(t, h, "/var/lib/etcd/member", "") }, "DirAvailable--var-lib-etcd", preflight.Init, "not empty: member"},
		{"kubelet's data", func(t *testing.T, h *provisiontest.Host) { write(t, h, "/var/lib/kubelet/pods/x", "") }, "DirAvailable--var-lib-kubelet-pods", preflight.Nobody, "has had pods"},
	} {
		t.Run(c.name, func(t *testing.T) {
			h := good(t)
			c.spoil(t, h)
			findings := preflight.Look(t.Context(), h)
			if !slices.ContainsFunc(findings, func(f preflight.Objection) bool {
				return f.Check == c.check && f.Who == c.who && strings.Contains(f.String(), c.words) && f.Fix != ""
			}) {
				t.Errorf("want %s, %s, %q of %v", c.check, c.who, c.words, findings)
			}
		})
	}
}

func onCgroupV1(t *testing.T, h *provisiontest.Host) {
	t.Helper()
	if err := h.Kernel().Unmount(t.Context(), "/sys/fs/cgroup"); err != nil {
		t.Fatal(err)
	}
	mount(t, h, "/sys/fs/cgroup", "tmpfs")
	write(t, h, "/sys/fs/cgroup/memory/tasks", "")
	write(t, h, "/proc/cgroups", "#subsys_name\thierarchy\tnum_cgroups\tenabled\ncpu\t1\t1\t1\n")
}

func remove(t *testing.T, h *provisiontest.Host, path string) {
	t.Helper()
	if err := h.Files().Remove(path); err != nil {
		t.Fatal(err)
	}
}

func run(t *testing.T, h *provisiontest.Host, unit string) {
	t.Helper()
	write(t, h, "/etc/systemd/system/"+unit, "[Service]\n")
	if err := h.Units().Start(t.Context(), unit); err != nil {
		t.Fatal(err)
	}
}

// TestResetFindsTheRuntime: a fix by kubeadm reset names the socket where kubeadm would search another
// one: it then leaves the pods running, and only warns.
func TestResetFindsTheRuntime(t *testing.T) {
	for socket, want := range map[string]string{
		"/run/berth/berth.sock": "kubeadm reset --cri-socket unix:///run/berth/berth.sock", "/run/crio/crio.sock": "kubeadm reset;",
	} {
		h := good(t)
		write(t, h, socket, "")
		write(t, h, "/etc/kubernetes/pki/ca.crt", "")
		write(t, h, "/proc/net/tcp6", "   1: 00000000:280A 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 4711 1 0 100 0 0 10 0\n")
		found := 0
		for _, f := range preflight.Look(t.Context(), h) {
			if strings.Contains(f.Fix, "kubeadm reset") {
				found++
				if !strings.Contains(f.Fix+";", want) {
					t.Errorf("%s: the fix is %q, want %q in it", socket, f.Fix, want)
				}
			}
		}
		if found != 2 {
			t.Errorf("%s: %d fixes by kubeadm reset, want those of the port and the file", socket, found)
		}
	}
}

// TestTheConfigurationOfANode: a node of kubeadm has a configuration that names its runtime and lets its
// kubelet start with cgroup v1. Neither is a problem any more.
func TestTheConfigurationOfANode(t *testing.T) {
	h := good(t)
	write(t, h, "/etc/kubernetes/kubelet.conf", "")
	write(t, h, "/run/berth/berth.sock", "")
	write(t, h, "/run/containerd/containerd.sock", "")
	write(t, h, "/run/crio/crio.sock", "")
	onCgroupV1(t, h)
	for _, f := range preflight.Look(t.Context(), h) {
		if f.Check == "SystemVerification" && strings.Contains(f.Evidence, "cgroup v1") && f.Who != preflight.Nobody {
			t.Errorf("init and join are over, and so is: %v", f)
		}
		if f.Check == "CRI" && (strings.Contains(f.Evidence, "by itself") || strings.Contains(f.Evidence, "more than one")) {
			t.Errorf("the node has a runtime, and does not search one: %v", f)
		}
	}
}

// TestANodeOfKubeadm: ports in use and existing files are normal on a node.
func TestANodeOfKubeadm(t *testing.T) {
	h := good(t)
	write(t, h, "/etc/kubernetes/kubelet.conf", "")
	write(t, h, "/etc/kubernetes/pki/ca.crt", "")
	write(t, h, "/proc/net/tcp6", "   1: 00000000:280A 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 4711 1 0 100 0 0 10 0\n")
	if findings := slices.DeleteFunc(preflight.Look(t.Context(), h), noRuntime); len(findings) > 0 {
		t.Errorf("findings: %v", findings)
	}
}
