package nodefile

import (
	"errors"
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/berthrun/berth/internal/manifest"
)

const head = "apiVersion: berth.run/v1alpha1\nkind: Node\n"

// TestFaults: each fault is named with its place. The text after head begins on line 3.
func TestFaults(t *testing.T) {
	cases := map[string]struct{ in, want string }{
		"no runtime":              {"kernel: {}", `f:1:1: runtime: is missing; want a mapping`},
		"runtime of nothing":      {"runtime: null", `f:3:1: runtime.name: is missing; want one of berth, containerd, crio, docker`},
		"runtime of no name":      {"runtime: {}", `f:3:1: runtime.name: is missing; want one of berth, containerd, crio, docker`},
		"unknown runtime":         {"runtime: {name: containred}", `f:3:11: runtime.name: "containred": want one of berth, containerd, crio, docker; did you mean containerd?`},
		"misspelt":                {"runtime: {name: berth}\nregistrys: []", `f:4:1: registrys: no such field; did you mean registries?`},
		"version":                 {"runtime: {name: containerd, version: two}", `f:3:29: runtime.version: "two": want a version such as 2.4.2`},
		"version number":          {"runtime: {name: containerd, version: 2.4}", `f:3:29: runtime.version: "2.4": want a string; write "2.4"`},
		"pause for berth":         {"runtime: {name: berth, sandboxImage: p:1}", `f:3:24: runtime.sandboxImage: berth has no pause container, so no image for it; leave this out`},
		"shim without a name":     {"runtime: {name: berth, handlers: [{name: a, type: shim}]}", `f:3:35: runtime.handlers[0].runtimeType: is missing; want the type name of the shim, such as io.containerd.kata.v2, or its path`},
		"shim with two names":     {"runtime: {name: berth, handlers: [{name: a, type: shim, runtimeType: io.a.b.v2, path: /a/b}]}", `f:3:57: runtime.handlers[0].runtimeType: conflicts with the path of the shim; leave one of them out`},
		"sandbox of a shim":       {"runtime: {name: berth, handlers: [{name: a, type: shim, runtimeType: io.a.b.v2, sandbox: pod}]}", `f:3:81: runtime.handlers[0].sandbox: "pod": want runtime or api, or leave this out`},
		"sandbox of a program":    {"runtime: {name: berth, handlers: [{name: a, path: /a/b, sandbox: runtime}]}", `f:3:57: runtime.handlers[0].sandbox: is for a shim; leave this out, or set type: shim`},
		"sandbox of containerd":   {"runtime: {name: containerd, handlers: [{name: a, type: shim, runtimeType: io.a.b.v2, sandbox: runtime}]}", `f:3:86: runtime.handlers[0].sandbox: containerd has no such option of a handler, as each pod has a sandbox container; leave this out`},
		"handler without a path":  {"runtime: {name: berth, handlers: [{name: runc}]}", `f:3:35: runtime.handlers[0].path: is missing; want the path of the OCI runtime`},
		"options for berth":       {"runtime: {name: berth, handlers: [{name: a, path: /x, snapshotter: b}]}", `f:3:55: runtime.handlers[0].snapshotter: berth needs its socket, too; leave this out, and set handlers.NAME.snapshotter and image.snapshotters in runtime.config.additions`},
		"default of berth":        {"runtime: {name: berth, defaultHandler: runc}", `f:3:24: runtime.defaultHandler: "runc": no such handler; there are none in runtime.handlers`},
		"NRI of berth":            {"runtime: {name: berth, nri: {enabled: true}}", `f:3:24: runtime.nri: this version of berth serves no NRI plugins; leave this out`},
		"NRI's socket of docker":  {"runtime: {name: docker, nri: {socket: /run/x}}", `f:3:25: runtime.nri: docker serves no NRI plugins; leave this out`},
		"override and additions":  {"runtime: {name: crio, config: {override: \"x = 1\", additions: {a: 1}}}", `f:3:51: runtime.config.additions: conflicts with runtime.config.override, which is the whole file; leave one of them out`},
		"addition's path":         {"runtime:\n  name: crio\n  config:\n    additions:\n      a..b: 1", `f:7:7: runtime.config.additions["a..b"]: "a..b": want parts with dots between them`},
		"containerd's addition":   {"runtime:\n  name: berth\n  config:\n    additions:\n      plugins.\"io.a\".b: 1", "f:7:7: runtime.config.additions[\"plugins.\\\"io.a\\\".b\"]: is a key of containerd's configuration, and berth has no \"plugins\"; leave this out (docs/migrate names the keys of berth)"},
		"CRI-O's addition":        {"runtime:\n  name: docker\n  config:\n    additions:\n      crio.image.a: 1", "f:7:7: runtime.config.additions[\"crio.image.a\"]: is a key of CRI-O's configuration, and docker has no \"crio\"; leave this out (docs/migrate names the keys of berth)"},
		"skipInstall and assets":  {"runtime: {name: crio, skipInstall: true, assets: [{source: /x}]}", `f:3:42: runtime.assets: conflicts with runtime.skipInstall, which installs nothing; leave one of them out`},
		"asset without hash":      {"runtime: {name: crio, assets: [{source: https://a/x}]}", `f:3:32: runtime.assets[0].digest: is missing; want sha256: or sha512: and the hash of the file`},
		"asset's password":        {"runtime: {name: crio, assets: [{source: \"https://u:p@a/x\", digest: \"sha256:" + strings.Repeat("0", 64) + "\"}]}", `f:3:33: runtime.assets[0].source: has a password in it; use credentials`},
		"asset's credentials":     {"runtime: {name: crio, assets: [{source: /x, credentials: /c}]}", `f:3:45: runtime.assets[0].credentials: is for servers, and there is none among source and mirrors; leave this out`},
		"asset's authority":       {"runtime: {name: crio, assets: [{source: https://a/x, ca: [b], digest: \"sha256:" + strings.Repeat("0", 64) + "\"}]}", `f:3:59: runtime.assets[0].ca[0]: "b": want an absolute path other than /, without . and ..`},
		"image's key":             {"runtime: {name: berth}\nimages: [{source: https://a/x, names: [b], clientKey: /k, digest: \"sha256:" + strings.Repeat("0", 64) + "\"}]", `f:4:44: images[0].clientKey: is of no use alone; set clientCert, too`},
		"asset's hash":            {"runtime: {name: crio, assets: [{source: https://a/x, digest: sha256:12}]}", `f:3:54: runtime.assets[0].digest: "sha256:12": want sha256: and 64 digits 0-9a-f, or sha512: and 128`},
		"asset's source":          {"runtime: {name: crio, assets: [{source: ftp://a/x, digest: \"sha256:" + strings.Repeat("0", 64) + "\"}]}", `f:3:33: runtime.assets[0].source: "ftp://a/x": want an absolute path, http://, https:// or oci://`},
		"handler of no path":      {"runtime: {name: crio, handlers: [{name: a}]}", `f:3:34: runtime.handlers[0].path: is missing; want the path of the OCI runtime`},
		"handler twice":           {"runtime: {name: crio, gvisor: {enabled: true}, handlers: [{name: runsc, path: /x/y}]}", `f:3:60: runtime.handlers[0].name: "runsc": is taken by runtime.gvisor; choose another name`},
		"default handler":         {"runtime: {name: containerd, defaultHandler: kata}", `f:3:29: runtime.defaultHandler: "kata": no such handler; there are runc`},
		"socket":                  {"runtime: {name: crio, socket: run/x}", `f:3:23: runtime.socket: "run/x": want an absolute path other than /, without . and ..`},
		"newline in option":       {"runtime: {name: crio, options: [\"--a=b\\nExecStartPre=/bin/evil\"]}", `f:3:33: runtime.options[0]: "--a=b\nExecStartPre=/bin/evil": want no line break and no other control character in it`},
		"newline in environment":  {"runtime: {name: crio, environment: {A: \"b\\nc\"}}", `f:3:37: runtime.environment.A: "b\nc": want no line break and no other control character in it`},
		"name in environment":     {"runtime: {name: crio, environment: {A-B: c}}", `f:3:37: runtime.environment.A-B: "A-B": want a name of letters, digits and _`},
		"newline in proxy":        {"runtime: {name: crio}\nproxy: {http: \"http://a\\nX=1\"}", `f:4:9: proxy.http: "http://a\nX=1": want no line break and no other control character in it`},
		"newline in hook":         {"runtime: {name: crio}\nhooks: [{name: a, command: [/bin/a, \"b\\nc\"]}]", `f:4:37: hooks[0].command[1]: "b\nc": want no line break and no other control character in it`},
		"limit":                   {"runtime: {name: crio, unit: {limitNOFILE: many}}", `f:3:30: runtime.unit.limitNOFILE: "many": want a number, SOFT:HARD, or infinity`},
		"oom score":               {"runtime: {name: crio, unit: {oomScoreAdjust: 2000}}", `f:3:30: runtime.unit.oomScoreAdjust: 2000: want -1000 to 1000`},
		"slice":                   {"runtime: {name: crio, runtimeCgroups: /runtime}", `f:3:23: runtime.runtimeCgroups: "/runtime": want a slice such as /runtime.slice`},
		"slice with cgroupfs":     {"runtime: {name: crio, cgroupDriver: cgroupfs, runtimeCgroups: /r.slice}", `f:3:47: runtime.runtimeCgroups: is for the systemd driver; leave this out, or set runtime.cgroupDriver: systemd`},
		"timeout":                 {"runtime: {name: crio, nri: {pluginRequestTimeout: soon}}", `f:3:29: runtime.nri.pluginRequestTimeout: "soon": want a duration such as 500ms, 90s or 1h`},
		"mirror without scheme":   {"runtime: {name: crio}\nregistries:\n- host: docker.io\n  mirrors:\n  - url: mirror.example", `f:7:5: registries[0].mirrors[0].url: "mirror.example": has no scheme; want https://mirror.example, or http:// if it is to be so`},
		"mirror with password":    {"runtime: {name: crio}\nregistries: [{host: a, mirrors: [{url: \"https://u:p@m\"}]}]", `f:4:35: registries[0].mirrors[0].url: has a password in it; use credentials`},
		"registry twice":          {"runtime: {name: crio}\nregistries: [{host: a}, {host: a}]", `f:4:26: registries[1].host: "a": is there twice; leave one out`},
		"registry's host":         {"runtime: {name: crio}\nregistries: [{host: \"https://a\"}]", `f:4:15: registries[0].host: "https://a": want a host with an optional port, such as docker.io, or *`},
		"key without certificate": {"runtime: {name: crio}\nregistries: [{host: a, clientKey: /k}]", `f:4:24: registries[0].clientKey: is of no use alone; set clientCert, too`},
		"docker's mirrors":        {"runtime: {name: docker}\nregistries: [{host: quay.io, mirrors: [{url: \"https://m\"}]}]", `f:4:30: registries[0].mirrors: docker knows mirrors of docker.io only; leave them out`},
		"crio's wildcard":         {"runtime: {name: crio}\nregistries: [{host: \"*\"}]", `f:4:15: registries[0].host: crio has no entry for all registries; name each`},
		"builtin elsewhere":       {"runtime: {name: crio}\nnetwork: {mode: builtin}", `f:4:11: network.mode: builtin is berth's own network, and crio has none; want cni or kubenet`},
		"kubenet of no CIDR":      {"runtime: {name: berth}\nnetwork: {mode: kubenet}", `f:4:1: network.podCIDRs: is missing; want the addresses of this node's pods for mode kubenet (only containerd can wait for the kubelet's CIDRs)`},
		"CIDR":                    {"runtime: {name: berth}\nnetwork: {podCIDRs: [10.0.0.0]}", `f:4:22: network.podCIDRs[0]: "10.0.0.0": want a CIDR such as 10.244.0.0/24`},
		"host bits":               {"runtime: {name: berth}\nnetwork: {podCIDRs: [10.0.0.1/24]}", `f:4:22: network.podCIDRs[0]: "10.0.0.1/24": has host bits set; the CIDR is 10.0.0.0/24`},
		"overlap": {
			"runtime: {name: berth}\nnetwork: {masquerade: {nonMasqueradeCIDRs: [10.0.0.0/8, fd00::/8, 10.1.0.0/16]}}",
			`f:4:67: network.masquerade.nonMasqueradeCIDRs[2]: "10.1.0.0/16": overlaps 10.0.0.0/8; leave one of them out`,
		},
		"one family twice":                {"runtime: {name: berth}\nnetwork: {podCIDRs: [10.0.0.0/24, 10.1.0.0/24]}", `f:4:35: network.podCIDRs[1]: "10.1.0.0/24": is a second one of its family; want one of each at most`},
		"module":                          {"runtime: {name: berth}\nkernel: {modules: [a b]}", `f:4:20: kernel.modules[0]: "a b": want the name of a module`},
		"sysctl":                          {"runtime: {name: berth}\nkernel: {sysctls: {ip_forward: \"1\"}}", `f:4:20: kernel.sysctls.ip_forward: "ip_forward": want a key such as net.ipv4.ip_forward`},
		"sysctl's number":                 {"runtime: {name: berth}\nkernel: {sysctls: {net.ipv4.ip_forward: 1}}", `f:4:20: kernel.sysctls["net.ipv4.ip_forward"]: "1": want a string; write "1"`},
		"group twice":                     {"runtime: {name: berth}\ngroups: [{name: a}, {name: a}]", `f:4:22: groups[1].name: "a": is there twice; leave one out`},
		"user's shell":                    {"runtime: {name: berth}\nusers: [{name: a, shell: bash}]", `f:4:19: users[0].shell: "bash": want an absolute path other than /, without . and ..`},
		"file's mode":                     {"runtime: {name: berth}\nfiles: [{path: /a, mode: \"9\"}]", `f:4:20: files[0].mode: "9": want octal permissions such as "0644"`},
		"file's path":                     {"runtime: {name: berth}\nfiles: [{path: /a/../b}]", `f:4:10: files[0].path: "/a/../b": want an absolute path other than /, without . and ..`},
		"link to nowhere":                 {"runtime: {name: berth}\nfiles: [{path: /a, type: symlink}]", `f:4:9: files[0].target: is missing; want where the symlink points`},
		"directory's content":             {"runtime: {name: berth}\nfiles: [{path: /a, type: directory, content: x}]", `f:4:37: files[0].content: is for a file; leave this out, or set type: file`},
		"unit's name":                     {"runtime: {name: berth}\nunits: [{name: chrony}]", `f:4:10: units[0].name: "chrony": want a full name of a unit, such as chrony.service`},
		"drop-in's name":                  {"runtime: {name: berth}\nunits: [{name: a.service, dropIns: {x: y}}]", `f:4:37: units[0].dropIns.x: "x": want a file name that ends in .conf`},
		"hook's command":                  {"runtime: {name: berth}\nhooks: [{name: a, command: [ls]}]", `f:4:29: hooks[0].command[0]: "ls": want an absolute path`},
		"two cgroup drivers":              {"runtime: {name: berth, cgroupDriver: systemd}\nkubelet: {enabled: true, config: {cgroupDriver: cgroupfs}}", `f:4:35: kubelet.config.cgroupDriver: cgroupfs: the runtime's is systemd, and a node with two kills its own pods; leave this out, and set runtime.cgroupDriver`},
		"kubeadm and config":              {"runtime: {name: berth}\nkubelet: {kubeadm: true, config: {maxPods: 1}}", `f:4:26: kubelet.config: conflicts with kubelet.kubeadm, which writes the configuration; leave one of them out`},
		"image without hash":              {"runtime: {name: berth}\nimages: [{source: /a, names: [b]}]", `f:4:10: images[0].digest: is missing; want one such as sha256:0000000000000000000000000000000000000000000000000000000000000000`},
		"proxy without scheme":            {"runtime: {name: berth}\nproxy: {http: \"proxy:3128\"}", `f:4:9: proxy.http: "proxy:3128": want a URL such as http://proxy.example:3128`},
		"drift too often":                 {"runtime: {name: berth}\nboot: {enabled: true, driftInterval: 1s}", `f:4:23: boot.driftInterval: 1s: want 1m or more`},
		"drift alone":                     {"runtime: {name: berth}\nboot: {driftInterval: 1h}", `f:4:8: boot.driftInterval: does nothing alone; set boot.enabled: true`},
		"rotation of berth":               {"runtime: {name: berth}\nlogs: {rotate: true}", `f:4:8: logs.rotate: berth never cuts a log; leave this out: the kubelet rotates, or another client that calls ReopenContainerLog`},
		"sandbox image of docker":         {"runtime: {name: docker, sandboxImage: x}\nkubelet: {enabled: true}", `f:3:25: runtime.sandboxImage: berth has its own image for the sandboxes of docker; leave this out`},
		"builtin of docker alone":         {"runtime: {name: docker}\nnetwork: {mode: builtin}", `f:4:11: network.mode: docker's containers have docker's own network; want cni, or a kubelet or runtime.socket, for which berth serves CRI over docker`},
		"keeping a fetched file":          {"runtime: {name: berth}\nfiles: [{path: /a, ifNotExists: true, source: {source: \"https://a/x\", digest: \"sha256:" + strings.Repeat("0", 64) + "\"}}]", `f:4:20: files[0].ifNotExists: is for a file with content; leave this out: one with source is known by its digest`},
		"keeping a directory":             {"runtime: {name: berth}\nfiles: [{path: /a, ifNotExists: true, type: directory}]", `f:4:20: files[0].ifNotExists: is for a file with content; leave this out: a directory keeps what is in it`},
		"keeping a symlink":               {"runtime: {name: berth}\nfiles: [{path: /a, ifNotExists: true, type: symlink, target: b}]", `f:4:20: files[0].ifNotExists: is for a file with content; leave this out`},
		"owner of a fetched file":         {"runtime: {name: berth}\nfiles: [{path: /a, owner: x, source: {source: \"https://a/x\", digest: \"sha256:" + strings.Repeat("0", 64) + "\"}}]", `f:4:20: files[0].owner: a file with source is root's; leave this out`},
		"name of a fetched file":          {"runtime: {name: berth}\nfiles: [{path: /a, source: {source: \"https://a/x\", digest: \"sha256:" + strings.Repeat("0", 64) + "\", name: b}}]", `f:4:135: files[0].source.name: the name of the file is in its path; leave this out`},
		"mode of a symlink":               {"runtime: {name: berth}\nfiles: [{path: /a, type: symlink, target: b, mode: \"0600\"}]", `f:4:46: files[0].mode: a symlink has none; leave this out`},
		"owner of a symlink":              {"runtime: {name: berth}\nfiles: [{path: /a, type: symlink, target: b, owner: x}]", `f:4:46: files[0].owner: a symlink has none; leave this out`},
		"kubelet's config alone":          {"runtime: {name: berth}\nkubelet: {config: {maxPods: 1}}", `f:4:11: kubelet.config: does nothing without kubelet.enabled or kubelet.kubeadm; set one of them, or leave this out`},
		"kubelet's flags alone":           {"runtime: {name: berth}\nkubelet: {flags: {v: \"2\"}}", `f:4:11: kubelet.flags: does nothing without kubelet.enabled or kubelet.kubeadm; set one of them, or leave this out`},
		"kubelet by two":                  {"runtime: {name: berth}\nkubelet: {enabled: true, kubeadm: true}", `f:4:26: kubelet.kubeadm: conflicts with kubelet.enabled; leave one of them out: either kubeadm writes the kubelet's configuration, or berth does`},
		"kubelet's driver as flag":        {"runtime: {name: berth}\nkubelet: {enabled: true, flags: {cgroup-driver: cgroupfs}}", `f:4:34: kubelet.flags.cgroup-driver: follows runtime.cgroupDriver; leave this out, and set that`},
		"kubelet's endpoint as flag":      {"runtime: {name: berth}\nkubelet: {enabled: true, flags: {container-runtime-endpoint: /x}}", `f:4:34: kubelet.flags.container-runtime-endpoint: follows runtime.socket; leave this out, and set that`},
		"bootstrap alone":                 {"runtime: {name: berth}\nkubelet: {enabled: true, bootstrapKubeconfig: /x}", `f:4:26: kubelet.bootstrapKubeconfig: does nothing alone; set kubelet.kubeconfig, which the kubelet writes by it`},
		"two options in a flag":           {"runtime: {name: berth}\nkubelet: {enabled: true, flags: {node-labels: \"a=b --x=y\"}}", `f:4:34: kubelet.flags.node-labels: "a=b --x=y": want one word without spaces, quotes, backslashes, % and $`},
		"kubeconfig with a space":         {"runtime: {name: berth}\nkubelet: {enabled: true, kubeconfig: \"/a b\"}", `f:4:26: kubelet.kubeconfig: "/a b": want one word without spaces, quotes, backslashes, % and $`},
		"docker's server":                 {"runtime: {name: docker}\nregistries: [{host: docker.io, server: \"https://other\"}]", `f:4:32: registries[0].server: "https://other": docker asks the registry itself; want http:// or https:// before docker.io`},
		"docker's wildcard":               {"runtime: {name: docker}\nregistries: [{host: \"*\"}]", `f:4:15: registries[0].host: docker has no entry for all registries; name each`},
		"docker's mirror's path":          {"runtime: {name: docker}\nregistries: [{host: docker.io, mirrors: [{url: \"https://m\", overridePath: true}]}]", `f:4:61: registries[0].mirrors[0].overridePath: docker always adds /v2; leave this out`},
		"docker's capabilities":           {"runtime: {name: docker}\nregistries: [{host: docker.io, mirrors: [{url: \"https://m\", capabilities: [pull]}]}]", `f:4:61: registries[0].mirrors[0].capabilities: docker asks a mirror to pull and to resolve, and never to push; leave this out`},
		"crio's capabilities":             {"runtime: {name: crio}\nregistries: [{host: a, mirrors: [{url: \"https://m\", capabilities: [resolve]}]}]", `f:4:53: registries[0].mirrors[0].capabilities: crio asks a mirror to pull and to resolve, and never to push; leave this out`},
		"override and log level":          {"runtime: {name: berth, logLevel: debug, config: {override: \"a = 1\"}}", `f:3:24: runtime.logLevel: conflicts with runtime.config.override, which is the whole file; leave this out, and say it there`},
		"override and handlers":           {"runtime: {name: crio, handlers: [{name: a, path: /x}], config: {override: \"a = 1\"}}", `f:3:23: runtime.handlers: conflicts with runtime.config.override, which is the whole file; leave this out, and say it there`},
		"override and root":               {"runtime: {name: crio, root: /data, config: {override: \"a = 1\"}}", `f:3:23: runtime.root: runtime.config.override has the whole configuration and no crio.root = "/data"; say it there, or leave this out`},
		"override of no TOML":             {"runtime: {name: containerd, config: {override: \"not [toml\"}}", `f:3:38: runtime.config.override: line 1, column 5 of it: toml: expected '=' after key; want the whole configuration in TOML`},
		"override of no JSON":             {"runtime: {name: docker, config: {override: \"{\"}}", `f:3:34: runtime.config.override: is not a JSON object: unexpected end of JSON input; want the whole of daemon.json`},
		"docker's handler's root":         {"runtime: {name: docker, handlers: [{name: a, path: /x, root: /y}]}", `f:3:56: runtime.handlers[0].root: docker has no such option of a handler; leave this out`},
		"docker's handler's options":      {"runtime: {name: docker, handlers: [{name: a, path: /x, options: {b: c}}]}", `f:3:56: runtime.handlers[0].options: are those of a shim; leave them out, or set type: shim`},
		"docker's shim's path":            {"runtime: {name: docker, handlers: [{name: a, type: shim, runtimeType: x, path: /x}]}", `f:3:74: runtime.handlers[0].path: docker finds a shim by its runtimeType; leave this out`},
		"crio's handler's snapshotter":    {"runtime: {name: crio, handlers: [{name: a, path: /x, snapshotter: y}]}", `f:3:54: runtime.handlers[0].snapshotter: crio has no such option of a handler; leave this out`},
		"crio's shim's type":              {"runtime: {name: crio, handlers: [{name: a, type: shim, path: /x, runtimeType: y}]}", `f:3:66: runtime.handlers[0].runtimeType: crio starts a shim by its path; leave this out`},
		"configuration of an OCI runtime": {"runtime: {name: containerd, handlers: [{name: a, path: /x, configPath: /y}]}", `f:3:60: runtime.handlers[0].configPath: is passed to a shim, and an OCI runtime gets none; leave this out`},
		"root of a shim":                  {"runtime: {name: containerd, handlers: [{name: a, type: shim, runtimeType: y, root: /y}]}", `f:3:78: runtime.handlers[0].root: is for type oci; leave this out`},
		"rotation twice":                  {"runtime: {name: crio}\nlogs: {rotate: true}\nkubelet: {enabled: true}", `f:4:8: logs.rotate: the kubelet rotates the logs of its containers; leave this out`},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			_, err := Load("f", []byte(head+c.in+"\n"))
			if err == nil {
				t.Fatal("no fault")
			}
			if diff := cmp.Diff(c.want, err.Error()); diff != "" {
				t.Error(diff)
			}
			helpful(t, err)
		})
	}
}

// helpful checks that each fault has a place and names a fix.
func helpful(t *testing.T, err error) {
	t.Helper()
	var faults manifest.Faults
	if !errors.As(err, &faults) {
		t.Fatalf("%v has no list of faults", err)
	}
	for _, f := range faults {
		if f.Line == 0 || f.Column == 0 || f.Fix() == "" {
			t.Errorf("%s: at line %d, column %d, and what to do is %q", f, f.Line, f.Column, f.Fix())
		}
	}
}

// TestEveryFaultSaysWhatToDo reads the source of the checks, so that it also finds faults without a
// case in TestFaults.
func TestEveryFaultSaysWhatToDo(t *testing.T) {
	files, err := filepath.Glob("*.go")
	if err != nil {
		t.Fatal(err)
	}
	// The index of the fault's text in the arguments.
	at := map[string]int{"Fault": 1, "conflict": 2, "refuse": 1}
	seen := 0
	for _, name := range files {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		set := token.NewFileSet()
		file, err := parser.ParseFile(set, name, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		ast.Inspect(file, func(n ast.Node) bool {
			call, ok := n.(*ast.CallExpr)
			if !ok {
				return true
			}
			method, ok := call.Fun.(*ast.SelectorExpr)
			if !ok {
				return true
			}
			i, ok := at[method.Sel.Name]
			if !ok || len(call.Args) <= i {
				return true
			}
			text := ""
			ast.Inspect(call.Args[i], func(n ast.Node) bool {
				if literal, ok := n.(*ast.BasicLit); ok {
					part, err := strconv.Unquote(literal.Value)
					if err != nil {
						t.Error(err)
					}
					text += part
				}
				return true
			})
			seen++
			// A text that is passed through is checked where it is written.
			if text != "" && text != "%s" && text != "%v" && (manifest.Fault{Problem: text}).Fix() == "" {
				t.Errorf("%s: %q does not say what to do", set.Position(call.Pos()), text)
			}
			return true
		})
	}
	if seen < 50 {
		t.Errorf("only %d faults were seen", seen)
	}
}

// TestFaultsTogether: one reading reports all faults.
func TestFaultsTogether(t *testing.T) {
	_, err := Load("n.yaml", []byte("apiVersion: berth.run/v1\nkind: Node\nruntime:\n  name: crio\n  version: x\nnetwork:\n  mtu: 3\nnope: 1\n"))
	want := `n.yaml:1:1: apiVersion: "berth.run/v1": want one of berth.run/v1alpha1
n.yaml:5:3: runtime.version: "x": want a version such as 2.4.2
n.yaml:7:3: network.mtu: 3: want 68 to 65535, or 0
n.yaml:8:1: nope: no such field`
	if err == nil || !strings.HasPrefix(err.Error(), want) {
		t.Errorf("%v", err)
	}
}

func TestParseVersion(t *testing.T) {
	for text, want := range map[string]Version{
		"2.4": {2, 4, 0}, "v1.7.27": {1, 7, 27}, "2.3.0-rc.1": {2, 3, 0},
		"1.6.20~ds1-1+deb12u3": {1, 6, 20}, "28.5.1": {28, 5, 1},
	} {
		if got, err := ParseVersion(text); err != nil || got != want {
			t.Errorf("%s: %v, %v", text, got, err)
		}
	}
	for _, text := range []string{"", "2", "2.x", "2.4.2.1", "latest", "2.4\n", " 2.4", "999999999999.1"} {
		if got, err := ParseVersion(text); err == nil {
			t.Errorf("%q was read as %v", text, got)
		}
	}
}

func TestSplitPath(t *testing.T) {
	for text, want := range map[string][]string{
		"a": {"a"}, "a.b": {"a", "b"}, `plugins."io.x.v1".c`: {"plugins", "io.x.v1", "c"}, `"a.b"`: {"a.b"},
	} {
		if got, err := SplitPath(text); err != nil || !cmp.Equal(got, want) {
			t.Errorf("%s: %q, %v", text, got, err)
		}
	}
	for _, text := range []string{"", ".", "a.", ".a", "a..b", `a."b`, `a."b"c`, `""`, `a"b"`} {
		if got, err := SplitPath(text); err == nil {
			t.Errorf("%q was read as %q", text, got)
		}
	}
}
