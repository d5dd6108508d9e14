package innode

import (
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestReplaced(t *testing.T) {
	changed := map[string]string{"10.0.0.2": "10.0.0.3", "10.0.0.3": "10.0.0.2", "fd00::2": "fd00::9"}
	for text, want := range map[string]string{
		"- --advertise-address=10.0.0.2":        "- --advertise-address=10.0.0.3",
		"https://10.0.0.2:2379,https://[::1]:1": "https://10.0.0.3:2379,https://[::1]:1",
		"10.0.0.20 110.0.0.2 10.0.0.2.example":  "10.0.0.20 110.0.0.2 10.0.0.2.example",
		"10.0.0.2 10.0.0.3":                     "10.0.0.3 10.0.0.2",
		"https://[fd00::2]:6443 fd00::22":       "https://[fd00::9]:6443 fd00::22",
	} {
		if got := replaced(text, changed); got != want {
			t.Errorf("%q became %q, want %q", text, got, want)
		}
	}
}

// TestRenew: a node that starts with another address has it in its files, and nothing
// else has changed.
func TestRenew(t *testing.T) {
	n := node{t.TempDir()}
	for name, text := range map[string]string{
		"etc/kubernetes/manifests/etcd.yaml":  "peer: https://10.0.0.2:2380 host: 10.0.0.21",
		"etc/kubernetes/kubelet.conf":         "server: https://c:6443",
		"var/lib/kubelet/kubeadm-flags.env":   "--node-ip=10.0.0.2,fd00::2",
		"etc/kubernetes/manifests/sub/x.yaml": "10.0.0.2",
	} {
		if err := n.write(name, text); err != nil {
			t.Fatal(err)
		}
	}
	first := []netip.Addr{netip.MustParseAddr("10.0.0.2"), netip.MustParseAddr("fd00::2")}
	second := []netip.Addr{netip.MustParseAddr("10.0.0.7"), netip.MustParseAddr("fd00::2")}
	for _, now := range [][]netip.Addr{first, first, second} {
		if err := n.renew(t.Context(), now); err != nil {
			t.Fatal(err)
		}
	}
	for name, want := range map[string]string{
		"etc/kubernetes/manifests/etcd.yaml":  "peer: https://10.0.0.7:2380 host: 10.0.0.21",
		"etc/kubernetes/kubelet.conf":         "server: https://c:6443",
		"var/lib/kubelet/kubeadm-flags.env":   "--node-ip=10.0.0.7,fd00::2",
		"etc/kubernetes/manifests/sub/x.yaml": "10.0.0.2",
		addressesFile:                         "10.0.0.7 fd00::2\n",
	} {
		if got, err := os.ReadFile(n.path(name)); err != nil || string(got) != want {
			t.Errorf("%s has %q, %v; want %q", name, got, err, want)
		}
	}
}

func TestSearchDomains(t *testing.T) {
	const text = "search corp.example\nnameserver 10.89.0.1\noptions ndots:0\n"
	if got, want := withSearch(text, "a.example b.example"), "nameserver 10.89.0.1\noptions ndots:0\nsearch a.example b.example\n"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
	if got, want := withSearch(text, ""), "nameserver 10.89.0.1\noptions ndots:0\n"; got != want {
		t.Errorf("without any: %q, want %q", got, want)
	}
}

func TestProxies(t *testing.T) {
	n := node{t.TempDir()}
	env := map[string]string{"HTTP_PROXY": "http://u:p%41@proxy:3128", "no_proxy": "10.0.0.0/8,.svc"}
	if err := n.proxies(func(name string) (string, bool) { value, set := env[name]; return value, set }); err != nil {
		t.Fatal(err)
	}
	file := n.path("etc/systemd/system.conf.d/10-proxies.conf")
	got, err := os.ReadFile(file)
	if want := "[Manager]\nDefaultEnvironment=\"HTTP_PROXY=http://u:p%%41@proxy:3128\" \"no_proxy=10.0.0.0/8,.svc\"\n"; err != nil || string(got) != want {
		t.Errorf("%q, %v; want %q", got, err, want)
	}
	if err := n.proxies(func(string) (string, bool) { return "", false }); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(file); err == nil {
		t.Error("the file stays without proxies")
	}
}

func TestMachineID(t *testing.T) {
	n := node{t.TempDir()}
	if err := n.write("etc/machine-id", ""); err != nil {
		t.Fatal(err)
	}
	var ids []string
	for range 2 {
		if err := n.machineID(); err != nil {
			t.Fatal(err)
		}
		text, err := os.ReadFile(n.path("etc/machine-id"))
		if err != nil {
			t.Fatal(err)
		}
		ids = append(ids, strings.TrimSpace(string(text)))
	}
	if len(ids[0]) != 32 || ids[0] != ids[1] {
		t.Errorf("machine ids %q", ids)
	}
}

func TestCgroups(t *testing.T) {
	classic, unified := t.TempDir(), t.TempDir()
	for file, text := range map[string]string{
		classic + "/cpuset/cgroup.procs": "", classic + "/cpuset/cpuset.cpus": "0-1\n", classic + "/cpuset/cpuset.mems": "0\n",
		classic + "/memory/cgroup.procs": "", classic + "/no-hierarchy/x": "",
		unified + "/cgroup.controllers": "cpu memory pids\n",
	} {
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	for range 2 {
		for _, mount := range []string{classic, unified} {
			if err := cgroups(mount); err != nil {
				t.Fatal(err)
			}
		}
	}
	if got, err := os.ReadFile(classic + "/cpuset/kubelet.slice/cpuset.cpus"); err != nil || string(got) != "0-1\n" {
		t.Errorf("cpus %q, %v", got, err)
	}
	for path, want := range map[string]bool{
		classic + "/memory/kubelet": true, classic + "/no-hierarchy/kubelet": false,
		unified + "/kubelet.slice/cgroup.subtree_control": true, unified + "/cgroup.subtree_control": true,
	} {
		if _, err := os.Stat(path); (err == nil) != want {
			t.Errorf("%s: %v, want it to be there: %v", path, err, want)
		}
	}
}
