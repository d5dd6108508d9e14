package patch

import (
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/berthrun/berth/internal/errs"
)

const v1beta3 = `apiVersion: kubeadm.k8s.io/v1beta3
kind: ClusterConfiguration
apiServer:
  certSANs: [localhost]
  extraArgs: {runtime-config: "", v: "1"}
networking: {podSubnet: 10.0.0.0/8}
---
apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
imageGCHighThresholdPercent: 100
`

const v1beta4 = `apiVersion: kubeadm.k8s.io/v1beta4
kind: ClusterConfiguration
apiServer:
  certSANs: [localhost]
  extraArgs: [{name: runtime-config, value: ""}, {name: v, value: "1"}]
`

// TestLabelsOfNodes: a patch that adds a label keeps those of the description.
func TestLabelsOfNodes(t *testing.T) {
	for _, test := range []struct{ old, added, want string }{
		{"", "ingress-ready=true", "ingress-ready=true"},
		{"tier=front,zone=a", "ingress-ready=true", "tier=front,zone=a,ingress-ready=true"},
		{"tier=front,zone=a", "zone=b,ingress-ready=true", "tier=front,zone=b,ingress-ready=true"},
		{"tier=front", "", ""},
	} {
		docs, err := Parse("kind: InitConfiguration\nnodeRegistration: {kubeletExtraArgs: {node-labels: \"" + test.old + "\"}}\n")
		if err != nil {
			t.Fatal(err)
		}
		merges, err := ParseMerge("kind: InitConfiguration\nnodeRegistration: {kubeletExtraArgs: {node-labels: \"" + test.added + "\"}}\n")
		if err != nil {
			t.Fatal(err)
		}
		docs[0]["apiVersion"] = "kubeadm.k8s.io/v1beta3"
		if docs, err = Apply(docs, merges, nil); err != nil {
			t.Fatal(err)
		}
		text, err := Render(docs)
		if err != nil || !strings.Contains(text, "node-labels: "+test.want+"\n") && !strings.Contains(text, "node-labels: \""+test.want+"\"\n") {
			t.Errorf("%q and %q, want %q: %v\n%s", test.old, test.added, test.want, err, text)
		}
	}
}

func TestApply(t *testing.T) {
	cases := map[string]struct {
		docs, merge string
		ops         [][4]string
		want        string
	}{
		"nothing": {docs: v1beta3, want: `apiServer:
  certSANs:
  - localhost
  extraArgs:
    runtime-config: ""
    v: "1"
apiVersion: kubeadm.k8s.io/v1beta3
kind: ClusterConfiguration
networking:
  podSubnet: 10.0.0.0/8
---
apiVersion: kubelet.config.k8s.io/v1beta1
imageGCHighThresholdPercent: 100
kind: KubeletConfiguration
`},
		"merge, replace, remove": {docs: v1beta3, merge: `kind: ClusterConfiguration
networking: {podSubnet: null, dnsDomain: x}
apiServer: null
new: {a: {b: null, c: 1}}
---
kind: KubeletConfiguration
imageGCHighThresholdPercent: 90
---
apiVersion: kubeadm.k8s.io/v1beta2
kind: ClusterConfiguration
notForThisVersion: true
---
kind: Nothing
notForAnyDocument: true
`, want: `apiVersion: kubeadm.k8s.io/v1beta3
kind: ClusterConfiguration
networking:
  dnsDomain: x
new:
  a:
    c: 1
---
apiVersion: kubelet.config.k8s.io/v1beta1
imageGCHighThresholdPercent: 90
kind: KubeletConfiguration
`},
		"list for a mapping": {docs: v1beta3, merge: `kind: ClusterConfiguration
apiServer: {certSANs: [localhost, me], extraArgs: [{name: v, value: "5"}, {name: x, value: "y"}, {name: runtime-config}]}
`, want: `apiServer:
  certSANs:
  - localhost
  - me
  extraArgs:
    v: "5"
    x: "y"
apiVersion: kubeadm.k8s.io/v1beta3
kind: ClusterConfiguration
networking:
  podSubnet: 10.0.0.0/8
---
apiVersion: kubelet.config.k8s.io/v1beta1
imageGCHighThresholdPercent: 100
kind: KubeletConfiguration
`},
		"mapping for a list": {docs: v1beta4, merge: `kind: ClusterConfiguration
apiServer: {extraArgs: {x: "y", v: null, runtime-config: api/all=true, a: b}}
scheduler: {extraArgs: {z: "1"}}
`, want: `apiServer:
  certSANs:
  - localhost
  extraArgs:
  - name: runtime-config
    value: api/all=true
  - name: a
    value: b
  - name: x
    value: "y"
apiVersion: kubeadm.k8s.io/v1beta4
kind: ClusterConfiguration
scheduler:
  extraArgs:
  - name: z
    value: "1"
`},
		"JSON patch after the merge": {docs: v1beta4, merge: "kind: ClusterConfiguration\napiServer: {certSANs: [a]}\n", ops: [][4]string{
			{"kubeadm.k8s.io", "v1beta4", "ClusterConfiguration", "- {op: add, path: /apiServer/certSANs/-, value: b}\n- op: remove\n  path: /apiServer/extraArgs"},
			{"kubeadm.k8s.io", "v1beta3", "ClusterConfiguration", `[{"op": "remove", "path": "/not/there"}]`},
			{"", "", "ClusterConfiguration", `[{"op": "test", "path": "/apiServer/certSANs/1", "value": "a"}]`},
		}, want: `apiServer:
  certSANs:
  - localhost
  - a
  - b
apiVersion: kubeadm.k8s.io/v1beta4
kind: ClusterConfiguration
`},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			docs, err := Parse(c.docs)
			if err != nil {
				t.Fatal(err)
			}
			merges, err := ParseMerge(c.merge)
			if err != nil {
				t.Fatal(err)
			}
			var ops []JSON6902
			for _, o := range c.ops {
				op, err := ParseJSON6902(o[0], o[1], o[2], o[3])
				if err != nil {
					t.Fatal(err)
				}
				ops = append(ops, op)
			}
			patched, err := Apply(docs, merges, ops)
			if err != nil {
				t.Fatal(err)
			}
			got, err := Render(patched)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(c.want, got); diff != "" {
				t.Error(diff)
			}
			again, err := Render(docs)
			if err != nil {
				t.Fatal(err)
			}
			if before, _ := Parse(c.docs); cmp.Diff(before, docs) != "" {
				t.Errorf("the documents themselves were changed:\n%s", again)
			}
		})
	}
}

func TestWrongPatchesAreTold(t *testing.T) {
	for text, want := range map[string]string{
		"kind: [":                      "yaml:",
		"- kind: ClusterConfiguration": "want a mapping",
		"apiVersion: v1":               "must say the kind",
	} {
		if _, err := ParseMerge(text); !errors.Is(err, errs.Invalid) || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v; want %q", text, err, want)
		}
	}
	for text, want := range map[string]string{
		"op: add":                         "is a list of operations",
		"- {op: add, value: 1}":           "operation 1: has no path",
		"- {op: add, path: a/b}":          `path "a/b" must begin with /`,
		"- {op: set, path: /a, value: 1}": `"set": want one of add`,
		"- {op: move, path: /a}":          "move has no from",
		"- {op: add, op: add, path: /a}":  "already set",
	} {
		if _, err := ParseJSON6902("", "", "K", text); !errors.Is(err, errs.Invalid) || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v; want %q", text, err, want)
		}
	}
	docs, err := Parse(v1beta4)
	if err != nil {
		t.Fatal(err)
	}
	for text, want := range map[string]string{
		"apiVersion: kubeadm.k8s.io/v1beta4\nkind: ClusterConfiguration\napiServer: {extraArgs: {a: b}}": "into ClusterConfiguration: apiServer: extraArgs: a mapping",
		"kind: ClusterConfiguration\napiServer: {extraArgs: [{value: b}]}":                               "an argument without a name",
		"kind: ClusterConfiguration\napiServer: {extraArgs: a}":                                          "want arguments",
	} {
		merges, err := ParseMerge(text)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := Apply(docs, merges, nil); !errors.Is(err, errs.Invalid) || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v; want %q", text, err, want)
		}
	}
	for text, want := range map[string]string{
		"[{op: remove, path: /a/b}]":          "cannot apply a JSON patch to ClusterConfiguration",
		"[{op: replace, path: '', value: 1}]": "cannot apply a JSON patch to ClusterConfiguration",
	} {
		op, err := ParseJSON6902("", "", "ClusterConfiguration", text)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := Apply(docs, nil, []JSON6902{op}); !errors.Is(err, errs.Invalid) || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v; want %q", text, err, want)
		}
	}
}

func TestTOML(t *testing.T) {
	const config = "version = 3\n[plugins.'io.containerd.cri.v1.images']\n  max_concurrent_downloads = 3\n  [plugins.'io.containerd.cri.v1.images'.registry]\n" +
		"    config_path = '/etc/containerd/certs.d'\n[timeouts]\n  share = 0.5\n"
	got, err := TOML(config, []string{
		"version = 2\n[plugins.'io.containerd.grpc.v1.cri']\n  for_another_version = true\n",
		"version = 3\n[plugins.'io.containerd.cri.v1.images']\n  max_concurrent_downloads = 5\n",
		"[plugins.'io.containerd.cri.v1.images'.registry]\n  config_path = '/x'\n",
	}, []string{`[{"op": "add", "path": "/oom_score", "value": -999}]`})
	if err != nil {
		t.Fatal(err)
	}
	want := "oom_score = -999\nversion = 3\n\n[plugins]\n[plugins.'io.containerd.cri.v1.images']\nmax_concurrent_downloads = 5\n\n" +
		"[plugins.'io.containerd.cri.v1.images'.registry]\nconfig_path = '/x'\n\n[timeouts]\nshare = 0.5\n"
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	for name, c := range map[string]struct {
		config, merge, ops, want string
	}{
		"no version":  {"root = '/x'", "", "[]", "says no version"},
		"no TOML":     {"version = 2\nroot", "", "[]", "line 2"},
		"wrong patch": {"version = 2", "a = [", "[]", "containerd patch 1: line 1"},
		"wrong ops":   {"version = 2", "", "{}", "containerd JSON patch 1"},
		"failing ops": {"version = 2", "", `[{"op": "remove", "path": "/a"}]`, "cannot apply containerd JSON patch 1"},
	} {
		if _, err := TOML(c.config, []string{c.merge}, []string{c.ops}); !errors.Is(err, errs.Invalid) || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v; want %q", name, err, c.want)
		}
	}
	if CheckTOML("a = 1") != nil || CheckTOML("a") == nil || CheckOps("[]") != nil || CheckOps("{}") == nil {
		t.Error("the checks do not tell right from wrong")
	}
}
