package node

import (
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/berthrun/berth/internal/golden"
	"github.com/berthrun/berth/internal/provision"
	"github.com/berthrun/berth/internal/provision/node/distro"
	"github.com/berthrun/berth/internal/provision/node/facts"
	"github.com/berthrun/berth/internal/provision/node/nodefile"
	"github.com/berthrun/berth/internal/provision/tasks"
)

// factsOf returns the facts of a machine with a fresh release.
func factsOf(t *testing.T, release string) facts.Facts {
	t.Helper()
	d, err := distro.Release(release)
	if err != nil {
		t.Fatal(err)
	}
	f := facts.Facts{
		Distro: d, Arch: "amd64", SELinux: d.SELinux, File: "/etc/berth/node.yaml",
		Berth:      facts.Binary{Path: "/root/berth", Digest: "sha256:" + strings.Repeat("b", 64)},
		Supervisor: facts.Binary{Path: "/root/berth-supervisor", Digest: "sha256:" + strings.Repeat("c", 64)},
	}
	if d.Immutable {
		f.Versions = map[string]nodefile.Version{"containerd": {Major: 2, Minor: 1, Patch: 5}, "docker": {Major: 28}}
	}
	return f
}

const fileHead = "apiVersion: berth.run/v1alpha1\nkind: Node\n"

// load reads a description, given without its head.
func load(t *testing.T, text string) *nodefile.Node {
	t.Helper()
	n, err := nodefile.Load("test", []byte(fileHead+text))
	if err != nil {
		t.Fatal(err)
	}
	return n
}

const zeros = "sha256:0000000000000000000000000000000000000000000000000000000000000000"

func assets(names ...string) string {
	var list []string
	for _, name := range names {
		list = append(list, fmt.Sprintf("{source: https://assets.example/%s, digest: %q}", name, zeros))
	}
	return "[" + strings.Join(list, ", ") + "]"
}

// rows are the runtimes and versions that the test renders for every distribution.
func rows() []struct{ name, text string } {
	containerd := func(version string) string {
		return "runtime: {name: containerd, assets: " + assets("containerd-"+version+"-linux-amd64.tar.gz", "runc.amd64") + "}\n" +
			"network: {plugins: " + assets("cni-plugins-linux-amd64-v1.9.0.tgz") + "}\n"
	}
	return []struct{ name, text string }{
		{"berth", "runtime: {name: berth}\n"},
		{"berth 0.1 of assets", "runtime: {name: berth, assets: " + assets("berth-0.1.0-linux-amd64.tar.gz") + "}\n"},
		{"containerd of packages", "runtime: {name: containerd}\n"},
		{"containerd 1.7 of assets", containerd("1.7.27")},
		{"containerd 2.2 of assets", containerd("2.2.0")},
		{"containerd 2.4 of assets", containerd("2.4.2")},
		{"crio of packages", "runtime: {name: crio}\n"},
		{"crio 1.36 of assets", "runtime: {name: crio, assets: " + assets("cri-o.amd64.v1.36.3.tar.gz") + "}\n"},
		{"docker of packages", "runtime: {name: docker}\n"},
		{"docker 28 of assets", "runtime: {name: docker, version: \"28.5.1\", assets: " + assets("docker-28.5.1.tgz") + "}\n"},
	}
}

// TestRows shows the tasks of each runtime on every distribution: one line per task, with hashes of
// contents. TestTexts has the contents.
func TestRows(t *testing.T) {
	for _, release := range distro.Releases() {
		t.Run(release, func(t *testing.T) {
			var s strings.Builder
			for _, row := range rows() {
				fmt.Fprintf(&s, "=== %s\n", row.name)
				target, err := Build(load(t, row.text), factsOf(t, release))
				if err != nil {
					fmt.Fprintf(&s, "refused: %v\n", err)
					continue
				}
				for _, task := range target.Tasks {
					s.WriteString(line(task) + "\n")
				}
			}
			golden.Check(t, "testdata/"+"rows/"+strings.ReplaceAll(release, " ", "-")+".txt", s.String())
		})
	}
}

// TestTexts shows everything of a few nodes.
func TestTexts(t *testing.T) {
	for name, c := range map[string]struct{ release, text string }{
		"berth-least":         {"debian 12", "runtime: {name: berth}\n"},
		"berth-builtin":       {"ubuntu 24.04", "runtime: {name: berth}\nnetwork: {mode: builtin, podCIDRs: [10.244.3.0/24, \"fd00:10:244:3::/64\"], mtu: 1400}\n"},
		"containerd-packages": {"debian 12", "runtime: {name: containerd}\n"},
		"containerd-flatcar":  {"flatcar", "runtime: {name: containerd}\n"},
		"containerd-cos":      {"cos", "runtime: {name: containerd, options: [--log-level=debug]}\n"},
		"containerd-full":     {"rocky 9", full("containerd", assets("containerd-2.4.2-linux-amd64.tar.gz", "runc.amd64", "runsc", "containerd-shim-runsc-v1"))},
		"containerd-template": {"debian 13", "runtime: {name: containerd}\nnetwork: {mode: kubenet}\n"},
		"kubenet-no-defaults": {"debian 13", "runtime: {name: containerd}\nnetwork: {mode: kubenet, podCIDRs: [10.88.7.0/24]}\nkernel: {defaultSysctls: false}\n"},
		"containerd-skip":     {"fedora 44", "runtime: {name: containerd, version: \"2.1\", skipInstall: true}\n"},
		"crio-full":           {"opensuse-tumbleweed", full("crio", "[]")},
		"docker-packages":     {"debian 12", "runtime: {name: docker}\nregistries: [{host: docker.io, mirrors: [{url: \"https://mirror.example\"}]}]\nlogs: {rotate: true}\n"},
		"docker-assets":       {"amzn 2023", "runtime: {name: docker, version: \"28.5.1\", assets: " + assets("docker-28.5.1.tgz") + "}\n"},
		"docker-kubelet": {"debian 12", "runtime: {name: docker}\nkubelet: {enabled: true}\nnetwork: {mode: kubenet, podCIDRs: [10.244.1.0/24], mtu: 1400}\n" +
			"images: [{source: /opt/hello.tar, digest: \"" + zeros + "\", names: [\"berth.run/hello:demo\"]}]\nhooks: [{name: last, when: after, command: [/usr/bin/last]}]\n"},
		"docker-kubeadm":               {"amzn 2023", "runtime: {name: docker, version: \"28.5.1\", cgroupDriver: cgroupfs, socket: /run/cri.sock, assets: " + assets("docker-28.5.1.tgz") + "}\nnetwork: {mode: builtin, podCIDRs: [10.244.1.0/24], mtu: 1400}\nkubelet: {kubeadm: true, assets: " + assets("kubelet", "kubeadm") + "}\n"},
		"kubeadm":                      {"ubuntu 26.04", "runtime: {name: berth}\nkernel: {swap: \"off\"}\nkubelet: {kubeadm: true, assets: " + assets("kubelet", "kubeadm", "kubectl") + "}\n"},
		"nvidia-handler":               {"ubuntu 24.04", "runtime: {name: containerd, version: \"1.7\", nvidia: {enabled: true, default: true}}\n"},
		"nvidia-berth":                 {"ubuntu 24.04", "runtime: {name: berth, nvidia: {enabled: true}}\n"},
		"masquerade-dual":              {"debian 13", "runtime: {name: containerd}\nnetwork: {mode: kubenet, podCIDRs: [10.244.1.0/24, \"fd00:1::/64\"], masquerade: {enabled: true, nonMasqueradeCIDRs: [10.0.0.0/8, \"fd00::/8\"]}}\n"},
		"switch-to-berth":              {"debian 12", "runtime: {name: berth}\n"},
		"switch-to-containerd":         {"debian 12", "runtime: {name: containerd}\nkubelet: {enabled: true}\n"},
		"switch-berth-to-docker":       {"debian 12", "runtime: {name: docker}\nkubelet: {enabled: true}\n"},
		"switch-docker-to-berth":       {"debian 12", "runtime: {name: berth}\nkubelet: {enabled: true}\n"},
		"switch-cri-dockerd-to-docker": {"debian 12", "runtime: {name: docker}\nkubelet: {enabled: true}\n"},
		"switch-docker-to-crio":        {"debian 12", "runtime: {name: crio, assets: " + assets("cri-o.amd64.v1.36.3.tar.gz") + "}\nkubelet: {enabled: true}\n"},
		"masquerade-everybody":         {"debian 13", "runtime: {name: containerd}\nnetwork: {masquerade: {enabled: true, nonMasqueradeCIDRs: [0.0.0.0/0]}}\n"},
	} {
		t.Run(name, func(t *testing.T) {
			f := factsOf(t, c.release)
			f.Credentials = map[string]string{"/etc/berth/hub.auth": "user:secret"}
			if name == "containerd-full" {
				f.NvidiaCTK = "/usr/bin/nvidia-ctk"
			}
			for _, other := range map[string][]string{
				"switch-to-berth": {"containerd"}, "switch-to-containerd": {"berth"}, "switch-berth-to-docker": {"berth"},
				"switch-docker-to-berth": {"docker"}, "switch-cri-dockerd-to-docker": {"cri-dockerd"}, "switch-docker-to-crio": {"berth", "docker"},
			}[name] {
				f.Replaced, f.Kubelet = append(f.Replaced, facts.ReplaceableRuntimes()[other]), true
			}
			target, err := Build(load(t, c.text), f)
			if err != nil {
				t.Fatal(err)
			}
			var s strings.Builder
			for _, task := range target.Tasks {
				s.WriteString(whole(task) + "\n")
			}
			for _, gate := range target.Gates {
				fmt.Fprintf(&s, "--- gate %s\n", gate.Unit)
				for _, probe := range gate.Before {
					s.WriteString("before: " + probe.Name() + "\n")
				}
				for _, probe := range gate.After {
					s.WriteString("after: " + probe.Name() + "\n")
				}
			}
			golden.Check(t, "testdata/"+"texts/"+name+".txt", s.String())
		})
	}
}

// full returns a description with nearly all fields.
func full(runtime, assets string) string {
	credentials := ""
	gpu := ""
	kata := "path: /opt/kata/bin/containerd-shim-kata-v2"
	if runtime == "containerd" {
		kata = "runtimeType: io.containerd.kata.v2"
		credentials = ", credentials: /etc/berth/hub.auth"
		gpu = "  nvidia: {enabled: true}\n  gvisor: {enabled: true, platform: kvm}\n  nri: {enabled: true, pluginRequestTimeout: 3s}\n"
	}
	return "runtime:\n  name: " + runtime + "\n  assets: " + assets + `
  root: /data/` + runtime + `
  logLevel: debug
  runtimeCgroups: /runtime.slice
  sandboxImage: registry.example/pause:3.10.1
  handlers: [{name: kata, type: shim, ` + kata + `, configPath: /opt/kata/configuration.toml}]
  defaultHandler: kata
  options: [--first=1, --second]
  environment: {GOGC: "50", QUOTE: "a \"b\" $c \\d"}
  unit: {limitNOFILE: "500000", limitMEMLOCK: infinity}
` + gpu + `registries:
- host: docker.io
  mirrors: [{url: "https://mirror.example", ca: [/etc/ssl/mirror.pem]` + credentials + `}]
network:
  mode: kubenet
  podCIDRs: [10.244.1.0/24, "fd00:10:244:1::/64"]
  masquerade: {enabled: true, nonMasqueradeCIDRs: [10.0.0.0/8]}
kernel:
  modules: [br_netfilter, nf_conntrack]
  sysctls: {kernel.panic: "3", vm.swappiness: "1"}
  swap: "off"
packages: {install: [nfs-common, chrony=4.3]}
groups: [{name: ops, gid: 2000}]
users: [{name: ops, uid: 2000, group: ops, groups: [adm], home: /home/ops, shell: /bin/bash}]
files:
- {path: /etc/own, type: directory, mode: "2775", group: ops}
- {path: /etc/own/file, content: "hello\n", owner: ops, restarts: [chrony.service]}
- {path: /etc/own/once, content: "x", ifNotExists: true}
- {path: /etc/own/link, type: symlink, target: file}
- {path: /etc/own/fetched, source: {source: "https://assets.example/f", digest: "` + zeros + `"}}
units:
- {name: own.service, content: "[Service]\nExecStart=/bin/true\n"}
- {name: chrony.service, dropIns: {10-nice.conf: "[Service]\nNice=5\n"}}
hooks:
- {name: first, command: [/usr/bin/first, "a b", "100%", "$x"], requires: [network-online.target]}
- {name: last, command: [/usr/bin/last], when: after}
kubelet:
  enabled: true
  kubeconfig: /etc/kubernetes/kubelet.conf
  bootstrapKubeconfig: /etc/kubernetes/bootstrap-kubelet.conf
  config: {maxPods: 250}
  flags: {node-labels: "a=b", v: "2"}
crictl: {timeout: 10, debug: true}
images: [{source: /opt/images/base.tar, digest: "` + zeros + `", names: ["registry.example/base:1"]}]
proxy: {https: "http://user:pw@proxy.example:3128", noProxy: [.internal]}
boot: {enabled: true, driftInterval: 1h}
`
}

// line renders a task in one line.
func line(task provision.Task) string {
	var fields []string
	value := reflect.ValueOf(task)
	for i := range value.NumField() {
		name, field := value.Type().Field(i).Name, value.Field(i)
		if name == "M" || name == "Path" || name == "Name" || field.IsZero() {
			continue
		}
		text, err := json.Marshal(field.Interface())
		if err != nil {
			panic(err)
		}
		if len(text) > 90 && name != "Install" && name != "Names" {
			text = fmt.Appendf(nil, "(%.6x)", sha256.Sum256(text))
		}
		fields = append(fields, name+"="+string(text))
	}
	return strings.TrimSpace(task.ID() + "  " + strings.Join(fields, " "))
}

// whole renders a complete task, with its contents.
func whole(task provision.Task) string {
	var s strings.Builder
	meta := task.Meta()
	fmt.Fprintf(&s, "--- %s\nwhy: %s\n", task.ID(), meta.Why)
	for _, need := range meta.Needs {
		fmt.Fprintf(&s, "needs: %s\n", need)
	}
	for _, unit := range meta.Restarts {
		fmt.Fprintf(&s, "restarts: %s\n", unit)
	}
	value := reflect.ValueOf(task)
	for i := range value.NumField() {
		name, field := value.Type().Field(i).Name, value.Field(i)
		if name == "M" || name == "Content" || name == "DropIns" || field.IsZero() {
			continue
		}
		text, err := json.MarshalIndent(field.Interface(), "  ", "  ")
		if err != nil {
			panic(err)
		}
		fmt.Fprintf(&s, "%s: %s\n", name, text)
	}
	block := func(head, content string) {
		fmt.Fprintf(&s, "%s:\n", head)
		for part := range strings.Lines(content) {
			s.WriteString("  | " + part)
		}
	}
	switch task := task.(type) {
	case tasks.File:
		block("Content", task.Content)
	case tasks.Unit:
		if task.Content != "" {
			block("Content", task.Content)
		}
		for _, name := range sorted(task.DropIns) {
			block("DropIn "+name, task.DropIns[name])
		}
	}
	return s.String()
}

func sorted(m map[string]string) []string {
	var keys []string
	for key := range m {
		keys = append(keys, key)
	}
	slices.Sort(keys)
	return keys
}
