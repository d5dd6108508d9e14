package kubeadm

import (
	"errors"
	"strings"
	"testing"

	"github.com/berthrun/berth/internal/cluster/config"
	"github.com/berthrun/berth/internal/errs"
)

// TestUnused: a patch for another kubeadm version than the nodes' is unused, unless the file has a
// patch for that version too.
func TestUnused(t *testing.T) {
	merge := func(version string) string {
		return "'{apiVersion: kubeadm.k8s.io/" + version + ", kind: ClusterConfiguration, clusterName: other}'"
	}
	op := func(version, kind string) string {
		group, version, _ := strings.Cut(version, "/")
		return "{group: " + group + ", version: " + version + ", kind: " + kind + ", patch: '[{op: add, path: /a, value: b}]'}"
	}
	const old, now = "v1.35.6", "v1.36.3"
	for _, test := range []struct {
		text, version string
		want          []string
	}{
		{"kubeadmConfigPatches: [" + merge("v1beta3") + "]", old, nil},
		{"kubeadmConfigPatches: [" + merge("v1beta3") + "]", now, []string{
			"kubeadmConfigPatches[0]: the patch changes nothing: it is for ClusterConfiguration of kubeadm.k8s.io/v1beta3, and Kubernetes v1.36.3 is given kubeadm.k8s.io/v1beta4",
		}},
		{"kubeadmConfigPatches: [" + merge("v1beta4") + "]", old, []string{"is given kubeadm.k8s.io/v1beta3"}},
		{"kubeadmConfigPatches: [" + merge("v1beta3") + ", " + merge("v1beta4") + "]", now, nil},
		{"kubeadmConfigPatches: [" + merge("v1beta3") + ", 'kind: ClusterConfiguration']", now, nil},
		{"kubeadmConfigPatches: [" + merge("v1beta3") + "]\nkubeadmConfigPatchesJSON6902: [" + op("kubeadm.k8s.io/v1beta4", "ClusterConfiguration") + "]", now, nil},
		{"kubeadmConfigPatchesJSON6902: [" + op("kubeadm.k8s.io/v1beta3", "InitConfiguration") + "]", now, []string{"kubeadmConfigPatchesJSON6902[0]: the patch changes nothing: it is for InitConfiguration of"}},
		{"kubeadmConfigPatchesJSON6902: [" + op("kubelet.config.k8s.io/v1", "KubeletConfiguration") + "]", now, []string{"is given kubelet.config.k8s.io/v1beta1"}},
		{"networking: {kubeProxyMode: none}\nkubeadmConfigPatches: ['kind: KubeProxyConfiguration']", now, []string{"kubeadmConfigPatches[0]: the patch changes nothing: there is no kube-proxy"}},
		{"nodes: [{}, {role: worker, kubeadmConfigPatches: ['{apiVersion: kubeadm.k8s.io/v1beta3, kind: JoinConfiguration}']}]", now, []string{"node berth-worker: kubeadmConfigPatches[0]: the patch"}},
		{"pools: [{name: a, count: 3, kubeadmConfigPatches: ['{apiVersion: kubeadm.k8s.io/v1beta3, kind: JoinConfiguration}']}]", now, []string{"pool a: kubeadmConfigPatches[0]: the patch"}},
	} {
		c := load(t, test.text+"\n")
		got, err := Unused(c, versionsOf(c, test.version))
		if err != nil || len(got) != len(test.want) {
			t.Errorf("%s at %s: %q, %v; want %q", test.text, test.version, got, err, test.want)
			continue
		}
		for i, want := range test.want {
			if !strings.Contains(got[i], want) {
				t.Errorf("%s at %s: %q, want %q", test.text, test.version, got[i], want)
			}
		}
	}
	c := load(t, "pools: [{name: a}]\nkubeadmConfigPatches: ["+merge("v1beta3")+"]\n")
	versions := versionsOf(c, now)
	versions["berth-a"] = old
	if got, err := Unused(c, versions); err != nil || len(got) != 1 {
		t.Errorf("nodes of two versions: %q, %v", got, err)
	}
	if _, err := Unused(c, nil); !errors.Is(err, errs.Invalid) {
		t.Errorf("no version: %v", err)
	}
}

func versionsOf(c *config.Cluster, version string) map[string]string {
	versions := map[string]string{}
	for _, n := range c.Nodes {
		versions[c.ContainerName(n)] = version
	}
	return versions
}
