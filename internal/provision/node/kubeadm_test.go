package node

import (
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/provision"
	"github.com/berthrun/berth/internal/provision/kubeadmconf"
	"github.com/berthrun/berth/internal/provision/node/nodefile"
	"github.com/berthrun/berth/internal/provision/provisiontest"
)

// ofVersion returns a machine in memory with Debian 12, a cgroup version, and kubeadm.
func ofVersion(t *testing.T, v1 bool) *provisiontest.Host {
	t.Helper()
	h := provisiontest.New()
	put(t, h, "/etc/os-release", "ID=debian\nVERSION_ID=12\n")
	put(t, h, "/usr/bin/kubeadm", "")
	h.Programs["/usr/bin/kubeadm"] = func(provision.Command) ([]byte, error) { return []byte("v1.36.3\n"), nil }
	kind := "cgroup2"
	if v1 {
		kind = "tmpfs"
		put(t, h, "/sys/fs/cgroup/memory/tasks", "")
	}
	h.AddMount(provision.Mount{Source: kind, Path: "/sys/fs/cgroup", Type: kind})
	return h
}

// put creates a file and its parent directories.
func put(t *testing.T, h *provisiontest.Host, file, content string) {
	t.Helper()
	at := ""
	parts := strings.Split(strings.TrimPrefix(file, "/"), "/")
	for _, part := range parts[:len(parts)-1] {
		at += "/" + part
		if err := h.Files().Mkdir(at, provision.Attr{Mode: 0o755}); err != nil {
			t.Fatal(err)
		}
	}
	if err := h.Files().Write(file, strings.NewReader(content), provision.Attr{Mode: 0o644}); err != nil {
		t.Fatal(err)
	}
}

// TestKubeadm: kubeadm's configuration has the settings of the node file and of the machine.
func TestKubeadm(t *testing.T) {
	for name, c := range map[string]struct {
		text string
		v1   bool
		want kubeadmconf.Node
	}{
		"least": {"runtime: {name: berth}\nkubelet: {kubeadm: true}\n", false, kubeadmconf.Node{
			Version: "v1.36.3", Socket: "/run/berth/berth.sock", CgroupDriver: "systemd", AsksDriver: true,
		}},
		"flags": {"runtime: {name: crio, socket: /run/x.sock, cgroupDriver: cgroupfs}\nkubelet: {kubeadm: true, flags: {hostname-override: Node-7, " +
			"node-labels: \"a=b\", node-ip: \"192.0.2.7,2001:db8::7\", register-with-taints: \"a:NoExecute\"}}\n", true, kubeadmconf.Node{
			Version: "v1.36.3", Socket: "/run/x.sock", CgroupDriver: "cgroupfs", AsksDriver: true, CgroupV1: true,
			Name: "node-7", Labels: "a=b", Address: "192.0.2.7", Taints: []kubeadmconf.Taint{{Key: "a", Effect: "NoExecute"}},
		}},
		"an old containerd, no taints, a family": {"runtime: {name: containerd}\nkubelet: {kubeadm: true, flags: {register-with-taints: \"\", node-ip: \"::\"}}\n", false, kubeadmconf.Node{
			Version: "v1.36.3", Socket: "/run/containerd/containerd.sock", CgroupDriver: "systemd", Taints: []kubeadmconf.Taint{},
		}},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := Kubeadm(t.Context(), ofVersion(t, c.v1), load(t, c.text))
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(c.want, got); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
		})
	}
}

// TestKubeadmRefused: a setting that kubeadm could not use is refused. The error names the field.
func TestKubeadmRefused(t *testing.T) {
	for text, want := range map[string]string{
		"runtime: {name: berth}\n": "kubelet.kubeadm: is not set",
		"runtime: {name: berth}\nkubelet: {kubeadm: true, flags: {node-ip: x}}\n":                        "kubelet.flags.node-ip",
		"runtime: {name: berth}\nkubelet: {kubeadm: true, flags: {register-with-taints: \"a:Never\"}}\n": "register-with-taints",
	} {
		_, err := Kubeadm(t.Context(), ofVersion(t, false), load(t, text))
		var faults nodefile.FieldErrors
		if !errors.As(err, &faults) || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", text, err, want)
		}
	}
	n := load(t, "runtime: {name: berth}\nnetwork: {mode: kubenet, podCIDRs: [10.88.7.0/24, \"fd00:7::/64\"]}\n")
	for cluster, refused := range map[string]bool{"": false, "10.88.0.0/16,fd00::/16": false, "10.88.0.0/16": true, "10.89.0.0/16,fd00::/16": true} {
		if err := NoPodsOutside(n, cluster); errors.Is(err, errs.Invalid) != refused {
			t.Errorf("pods of a cluster %q: %v, want an error: %v", cluster, err, refused)
		}
	}
}
