package innode

import (
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
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

// TestRenew: a node that starts with another address gets this address in its files. Nothing else
// changes.
func TestRenew(t *testing.T) {
	n := node{t.TempDir()}
	for name, text := range map[string]string{
		"etc/kubernetes/manifests/other.yaml": "peer: https://10.0.0.2:2380 host: 10.0.0.21",
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
		"etc/kubernetes/manifests/other.yaml": "peer: https://10.0.0.7:2380 host: 10.0.0.21",
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

// controlPlane is a control-plane node. Its PATH has a kubeadm whose certificates contain the
// addresses that its configuration names.
func controlPlane(t *testing.T, kubeadm string) node {
	t.Helper()
	bin := t.TempDir()
	if err := os.WriteFile(filepath.Join(bin, "kubeadm"), []byte("#!/bin/sh -eu\n"+kubeadm), 0o755); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", bin+":"+os.Getenv("PATH"))
	n := node{t.TempDir()}
	for name, text := range map[string]string{
		"etc/kubernetes/manifests/kube-apiserver.yaml": "advertise: 10.0.0.2", "etc/kubernetes/manifests/etcd.yaml": "peer: 10.0.0.2",
		"etc/kubernetes/pki/ca.crt": "CA", "etc/kubernetes/pki/ca.key": "CA", "etc/kubernetes/pki/etcd/ca.crt": "CA", "etc/kubernetes/pki/etcd/ca.key": "CA",
		KubeadmFile:   "apiVersion: kubeadm.k8s.io/v1beta4\nkind: InitConfiguration\nlocalAPIEndpoint: {advertiseAddress: 10.0.0.2}\n---\napiVersion: kubeadm.k8s.io/v1beta4\nkind: ClusterConfiguration\n",
		addressesFile: "10.0.0.2\n",
	} {
		if err := n.write(name, text); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{"apiserver", "etcd/server", "etcd/peer"} {
		for _, end := range []string{".crt", ".key"} {
			if err := n.write("etc/kubernetes/pki/"+name+end, "10.0.0.2\n"); err != nil {
				t.Fatal(err)
			}
		}
	}
	return n
}

// goodKubeadm writes the requested certificate, if it finds the authorities in the directory.
const goodKubeadm = `
config=${5#--config=}
dir=$(sed -n 's/^certificatesDir: //p' "$config")
file=$4
case $4 in etcd-*) file=etcd/${4#etcd-};; esac
cat "$dir/ca.key" "$dir/etcd/ca.key" > /dev/null
sed -n 's/.*advertiseAddress: \([0-9.]*\).*/\1/p' "$config" > "$dir/$file.crt"
cp "$dir/$file.crt" "$dir/$file.key"
`

// certificatesOf returns the address in each certificate of a node.
func certificatesOf(t *testing.T, n node) string {
	t.Helper()
	var all []string
	for _, name := range []string{"apiserver", "etcd/server", "etcd/peer"} {
		for _, end := range []string{".crt", ".key"} {
			text, err := os.ReadFile(n.path("etc/kubernetes/pki/" + name + end))
			if err != nil {
				all = append(all, "none")
				continue
			}
			all = append(all, strings.TrimSpace(string(text)))
		}
	}
	slices.Sort(all)
	return strings.Join(slices.Compact(all), " ")
}

func addrs(texts ...string) []netip.Addr {
	var all []netip.Addr
	for _, text := range texts {
		all = append(all, netip.MustParseAddr(text))
	}
	return all
}

// TestRenewCertificates: renew also creates missing certificates, but none on a worker.
func TestRenewCertificates(t *testing.T) {
	n := controlPlane(t, goodKubeadm)
	if err := os.Remove(n.path("etc/kubernetes/pki/etcd/peer.crt")); err != nil {
		t.Fatal(err)
	}
	if err := n.renew(t.Context(), addrs("10.0.0.7")); err != nil {
		t.Fatal(err)
	}
	if got := certificatesOf(t, n); got != "10.0.0.7" {
		t.Errorf("certificates of %s", got)
	}
	left, err := filepath.Glob(n.path("etc/kubernetes/pki/.*"))
	if err != nil || len(left) > 0 {
		t.Errorf("left: %v, %v", left, err)
	}
	if text, err := os.ReadFile(n.path(KubeadmFile)); err != nil || strings.Contains(string(text), "certificatesDir") {
		t.Errorf("kubeadm's configuration: %v\n%s", err, text)
	}
}

// TestRenewIsRepeated: if kubeadm fails, or the node stops during the renewal, the node keeps its
// certificates. Its next start completes the renewal, for the address that it has then.
func TestRenewIsRepeated(t *testing.T) {
	for name, kubeadm := range map[string]string{
		"at once": "exit 1\n", "at the last": "case $4 in etcd-peer) exit 1;; esac\n" + goodKubeadm, "silently": "exit 0\n",
	} {
		t.Run(name, func(t *testing.T) {
			n := controlPlane(t, kubeadm)
			if err := n.renew(t.Context(), addrs("10.0.0.7")); err == nil || !strings.Contains(err.Error(), "kubeadm init phase certs") {
				t.Fatalf("%v", err)
			}
			if got := certificatesOf(t, n); got != "10.0.0.2" {
				t.Errorf("after the failure: certificates of %s", got)
			}
			if text, err := os.ReadFile(n.path(addressesFile)); err != nil || string(text) != "10.0.0.2\n" {
				t.Errorf("recorded: %q, %v", text, err)
			}
			for _, now := range []string{"10.0.0.7", "10.0.0.9", "10.0.0.2"} {
				again := controlPlane(t, goodKubeadm) // only its kubeadm is used
				again.root = t.TempDir()
				if err := os.CopyFS(again.root, os.DirFS(n.root)); err != nil {
					t.Fatal(err)
				}
				if err := again.renew(t.Context(), addrs(now)); err != nil {
					t.Fatal(err)
				}
				if got := certificatesOf(t, again); got != now {
					t.Errorf("certificates of %s, want %s", got, now)
				}
				for _, file := range []string{"etc/kubernetes/manifests/etcd.yaml", KubeadmFile, addressesFile} {
					if text, err := os.ReadFile(again.path(file)); err != nil || !strings.Contains(string(text), now) {
						t.Errorf("%s of %s: %q, %v", file, now, text, err)
					}
				}
				if _, err := os.Stat(again.path(halfFile)); err == nil {
					t.Error("it begins again forever")
				}
			}
		})
	}
}

// TestWorkerHasNoCertificates: a worker has no certificates, and no kubeadm to create them.
func TestWorkerHasNoCertificates(t *testing.T) {
	n := controlPlane(t, "exit 1\n")
	if err := os.RemoveAll(n.path("etc/kubernetes/manifests")); err != nil {
		t.Fatal(err)
	}
	if err := n.renew(t.Context(), addrs("10.0.0.7")); err != nil {
		t.Error(err)
	}
}

// TestTwoNetworks: a node with a second network keeps both addresses.
func TestTwoNetworks(t *testing.T) {
	for _, test := range []struct {
		before, now string
		want        map[string]string
	}{
		{"10.0.0.2 10.9.0.2", "10.0.0.2 10.9.0.2", map[string]string{}},
		{"10.0.0.2 10.9.0.3", "10.0.0.2 10.9.0.2", map[string]string{"10.9.0.3": "10.9.0.2"}},
		{"10.0.0.2 10.9.0.2", "10.0.0.2", map[string]string{"10.9.0.2": "10.0.0.2"}},
		{"10.0.0.2 fd00::2", "10.0.0.2", map[string]string{}},
	} {
		got := changes(addrs(strings.Fields(test.before)...), addrs(strings.Fields(test.now)...))
		if !maps.Equal(got, test.want) {
			t.Errorf("%s, now %s: %v, want %v", test.before, test.now, got, test.want)
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

// TestSearch: resolv.conf as the programs of a node see it, for different contents that the engine
// wrote.
func TestSearch(t *testing.T) {
	for _, test := range []struct {
		wrote, want string
		domains     any // nil: not in the description
	}{
		{"search dns.podman\nnameserver 10.89.0.1\n", "search dns.podman\nnameserver 10.89.0.1\noptions ndots:0\n", nil},
		{"search dns.podman\nnameserver 10.89.0.1\n", "nameserver 10.89.0.1\nsearch a.example\noptions ndots:0\n", "a.example"},
		{"search dns.podman\nnameserver 10.89.0.1\n", "nameserver 10.89.0.1\n", ""},
		{"nameserver 10.89.0.1\noptions timeout:1", "nameserver 10.89.0.1\noptions timeout:1", nil},
		{"domain a.example\noptions timeout:1", "domain a.example\noptions timeout:1\noptions ndots:0\n", nil},
		{"search a.example\noptions timeout:1 ndots:2\n", "search a.example\noptions timeout:1 ndots:2\n", nil},
	} {
		n := node{t.TempDir()}
		if err := n.write("etc/resolv.conf", test.wrote); err != nil {
			t.Fatal(err)
		}
		domains, set := test.domains.(string)
		for range 2 { // a node starts several times
			if err := n.search(func(string) (string, bool) { return domains, set }); err != nil {
				t.Fatal(err)
			}
			if got, err := os.ReadFile(n.path("etc/resolv.conf")); err != nil || !slices.Equal(slices.Sorted(strings.Lines(string(got))), slices.Sorted(strings.Lines(test.want))) {
				t.Errorf("%q with %v: %q, %v; want %q", test.wrote, test.domains, got, err, test.want)
			}
		}
	}
	if err := (node{t.TempDir()}).search(func(string) (string, bool) { return "", false }); err != nil {
		t.Errorf("without a resolv.conf: %v", err)
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
