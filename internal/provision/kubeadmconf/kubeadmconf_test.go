package kubeadmconf_test

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/golden"
	"github.com/berthrun/berth/internal/provision/kubeadmconf"
	"github.com/berthrun/berth/internal/require"
)

const token = "abcdef.0123456789abcdef"

func hash() string { return "sha256:" + strings.Repeat("0f", 32) }

// least is a node without any settings.
func least() kubeadmconf.Node {
	return kubeadmconf.Node{Version: "v1.36.3", Socket: "/run/berth/berth.sock", CgroupDriver: "systemd", AsksDriver: true}
}

// full is a node with all settings.
func full() kubeadmconf.Node {
	return kubeadmconf.Node{
		Version: "v1.36.3", Socket: "/run/containerd/containerd.sock", CgroupDriver: "cgroupfs", CgroupV1: true,
		Name: "node-7", Address: "192.0.2.7", Labels: "zone=a,x=y",
		Taints: []kubeadmconf.Taint{{Key: "gpu", Value: "yes", Effect: "NoSchedule"}, {Key: "k", Effect: "NoExecute"}},
	}
}

// configurations returns the configurations of each verb, by name.
func configurations(t *testing.T) map[string]string {
	t.Helper()
	texts := map[string]string{}
	keep := func(name string) func(string, error) {
		return func(text string, err error) {
			t.Helper()
			if err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			texts[name] = text
		}
	}
	untainted := least()
	untainted.Taints = []kubeadmconf.Taint{}
	keep("init-least")(kubeadmconf.ForInit(untainted, kubeadmconf.Init{}))
	keep("init-full")(kubeadmconf.ForInit(full(), kubeadmconf.Init{
		Version: "v1.36.1", PodSubnet: "10.244.0.0/16,fd00:244::/56", ServiceSubnet: "10.97.0.0/16,fd00:97::/112",
		Endpoint: "api.example:6443", Token: token,
	}))
	keep("join-least")(kubeadmconf.ForJoin(least(), kubeadmconf.Join{Endpoint: "[2001:db8::1]:6443", Token: token, SkipCA: true}))
	keep("join-full")(kubeadmconf.ForJoin(full(), kubeadmconf.Join{
		Endpoint: "192.0.2.10:6443", Token: token, Hashes: []string{hash()}, ControlPlane: true, CertificateKey: strings.Repeat("0f", 32),
	}))
	return texts
}

func TestConfigurations(t *testing.T) {
	for name, text := range configurations(t) {
		golden.Check(t, "testdata/"+name+".yaml", text)
	}
}

// TestKubeadmTakesThem: kubeadm itself accepts the configurations.
func TestKubeadmTakesThem(t *testing.T) {
	kubeadm := require.Given(t, "KUBEADM", "kubeadm")
	for name, text := range configurations(t) {
		file := filepath.Join(t.TempDir(), name)
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		out, err := exec.CommandContext(t.Context(), kubeadm, "config", "validate", "--config", file).CombinedOutput()
		if err != nil || strings.TrimSpace(string(out)) != "ok" {
			t.Errorf("%s: %v\n%s\n%s", name, err, out, text)
		}
	}
}

// TestOlderKubernetes: before 1.35 kubeadm only warns about cgroup v1, so its other system checks
// stay enabled. kubeadm before 1.31 cannot read the format.
func TestOlderKubernetes(t *testing.T) {
	n := full()
	for version, ignored := range map[string]bool{"v1.34.2": false, "v1.35.0-rc.1": true, "": true} {
		n.Version = version
		text, err := kubeadmconf.ForJoin(n, kubeadmconf.Join{Endpoint: "a:1", Token: token, SkipCA: true})
		if err != nil || strings.Contains(text, "SystemVerification") != ignored || !strings.Contains(text, "fail-cgroupv1") {
			t.Errorf("%q: %v, want SystemVerification ignored: %v\n%s", version, err, ignored, text)
		}
	}
	n.Version = "v1.30.9"
	if _, err := kubeadmconf.ForJoin(n, kubeadmconf.Join{Endpoint: "a:1", Token: token, SkipCA: true}); !errors.Is(err, errs.Unsupported) {
		t.Errorf("1.30: %v, want errs.Unsupported", err)
	}
}

// TestCgroupRoot: a node that joins keeps its pods below its own root, with any
// KubeletConfiguration of the cluster. A new cluster has no such setting.
func TestCgroupRoot(t *testing.T) {
	for name, text := range configurations(t) {
		joins := strings.HasPrefix(name, "join")
		if got := strings.Contains(text, "  - name: cgroup-root\n    value: /\n"); got != joins || !joins && strings.Contains(text, "cgroupRoot") {
			t.Errorf("%s: sets the root of cgroups: %v, want %v\n%s", name, got, joins, text)
		}
	}
}

// TestFaults: each fault names the fix, and none contains a token.
func TestFaults(t *testing.T) {
	join := func(change func(*kubeadmconf.Node, *kubeadmconf.Join)) error {
		n, j := least(), kubeadmconf.Join{Endpoint: "192.0.2.10:6443", Token: token, Hashes: []string{hash()}}
		change(&n, &j)
		_, err := kubeadmconf.ForJoin(n, j)
		return err
	}
	start := func(change func(*kubeadmconf.Node, *kubeadmconf.Init)) error {
		n, i := least(), kubeadmconf.Init{}
		change(&n, &i)
		_, err := kubeadmconf.ForInit(n, i)
		return err
	}
	type node = kubeadmconf.Node
	for want, err := range map[string]error{
		`name of the node "A_b"`:                             join(func(n *node, _ *kubeadmconf.Join) { n.Name = "A_b" }),
		`address "127.0.0.1"`:                                join(func(n *node, _ *kubeadmconf.Join) { n.Address = "127.0.0.1" }),
		`the API server "192.0.2.10": want host:port`:        join(func(_ *node, j *kubeadmconf.Join) { j.Endpoint = "192.0.2.10" }),
		`want --token or --token-file`:                       join(func(_ *node, j *kubeadmconf.Join) { j.Token = "" }),
		`the token is not one of kubeadm's`:                  join(func(_ *node, j *kubeadmconf.Join) { j.Token = "hunter.2" }),
		`want --discovery-token-ca-cert-hash`:                join(func(_ *node, j *kubeadmconf.Join) { j.Hashes = nil }),
		`conflicts with --discovery-token-ca-cert-hash`:      join(func(_ *node, j *kubeadmconf.Join) { j.SkipCA = true }),
		`--discovery-token-ca-cert-hash "sha256:0"`:          join(func(_ *node, j *kubeadmconf.Join) { j.Hashes = append(j.Hashes, "sha256:0") }),
		`add --control-plane, or leave it out`:               join(func(_ *node, j *kubeadmconf.Join) { j.CertificateKey = "hunter2" }),
		`--certificate-key: want the key`:                    join(func(_ *node, j *kubeadmconf.Join) { j.CertificateKey, j.ControlPlane = "hunter2", true }),
		`want --kubernetes-version`:                          start(func(n *node, _ *kubeadmconf.Init) { n.Version = "" }),
		`--kubernetes-version "stable"`:                      start(func(_ *node, i *kubeadmconf.Init) { i.Version = "stable" }),
		`--pod-network-cidr "10.244.0.1/16": want a CIDR`:    start(func(_ *node, i *kubeadmconf.Init) { i.PodSubnet = "10.244.0.1/16" }),
		`--service-cidr "10.1.0.0/16,10.2.0.0/16": want one`: start(func(_ *node, i *kubeadmconf.Init) { i.ServiceSubnet = "10.1.0.0/16,10.2.0.0/16" }),
		`the API server advertises 2001:db8::1`:              start(func(n *node, _ *kubeadmconf.Init) { n.Address = "2001:db8::1" }),
		`--control-plane-endpoint "x"`:                       start(func(_ *node, i *kubeadmconf.Init) { i.Endpoint = "x" }),
	} {
		if err == nil || !errors.Is(err, errs.Invalid) || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "hunter") {
			t.Errorf("%v, want %q of kind errs.Invalid", err, want)
		}
	}
}

func TestParseTaints(t *testing.T) {
	taints, err := kubeadmconf.ParseTaints("")
	if err != nil || taints == nil || len(taints) > 0 {
		t.Errorf("nothing: %v, %v; want none, which is not kubeadm's own", taints, err)
	}
	for _, text := range []string{"a", "a=b", "a:Never", ":NoSchedule", "a:NoSchedule,"} {
		if _, err := kubeadmconf.ParseTaints(text); !errors.Is(err, errs.Invalid) {
			t.Errorf("%q: %v, want errs.Invalid", text, err)
		}
	}
}
