package node

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/manifest"
	"github.com/berthrun/berth/internal/provision"
	"github.com/berthrun/berth/internal/provision/node/distro"
	"github.com/berthrun/berth/internal/provision/node/facts"
	"github.com/berthrun/berth/internal/provision/node/nodefile"
	"github.com/berthrun/berth/internal/provision/tasks"
)

// TestEveryNeedIsThere: the target contains the needs of each task, without cycles.
func TestEveryNeedIsThere(t *testing.T) {
	texts := []string{full("crio", "[]"), full("containerd", assets("containerd-2.4.2-linux-amd64.tar.gz", "runc.amd64"))}
	for _, row := range rows() {
		texts = append(texts, row.text)
	}
	for _, release := range distro.Releases() {
		for _, text := range texts {
			f := factsOf(t, release)
			f.Credentials = map[string]string{"/etc/berth/hub.auth": "a:b"}
			target, err := Build(load(t, text), f)
			if err != nil {
				continue // refused; TestRows shows the reason
			}
			needs := map[string][]string{}
			for _, task := range target.Tasks {
				needs[task.ID()] = task.Meta().Needs
			}
			for id := range needs {
				if cycle := reaches(needs, id, id, map[string]bool{}); cycle {
					t.Errorf("%s: %s needs itself", release, id)
				}
				for _, need := range needs[id] {
					if _, known := needs[need]; !known {
						t.Errorf("%s: %s needs %s, which nobody makes", release, id, need)
					}
				}
			}
		}
	}
}

func reaches(needs map[string][]string, from, to string, seen map[string]bool) bool {
	for _, next := range needs[from] {
		if next == to {
			return true
		}
		if !seen[next] {
			seen[next] = true
			if reaches(needs, next, to, seen) {
				return true
			}
		}
	}
	return false
}

// TestBuildIsPure: equal descriptions and facts always give equal tasks.
func TestBuildIsPure(t *testing.T) {
	text := full("containerd", assets("containerd-2.4.2-linux-amd64.tar.gz", "runc.amd64"))
	f := factsOf(t, "debian 13")
	f.Credentials = map[string]string{"/etc/berth/hub.auth": "a:b"}
	first, err := Build(load(t, text), f)
	if err != nil {
		t.Fatal(err)
	}
	for range 20 {
		again, err := Build(load(t, text), f)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(first.Tasks, again.Tasks); diff != "" {
			t.Fatal(diff)
		}
	}
}

func TestBuildRefuses(t *testing.T) {
	cases := map[string]struct {
		release, text, want string
		kind                error
	}{
		"file of ours": {
			"debian 12", "runtime: {name: berth}\nfiles: [{path: /etc/crictl.yaml, content: x}]\n",
			"files[0]: file /etc/crictl.yaml is set by crictl too", errs.Invalid,
		},
		"link over a directory": {
			"debian 12", "runtime: {name: berth}\nfiles: [{path: /etc/berth/berth.toml, type: symlink, target: /x}]\n",
			"files[0]: link /etc/berth/berth.toml is set by runtime too", errs.Invalid,
		},
		"runtime's unit": {
			"debian 12", "runtime: {name: berth}\nunits: [{name: berth.service, dropIns: {a.conf: \"[Service]\\n\"}}]\n",
			"units[0]: unit berth.service is set by runtime too", errs.Invalid,
		},
		"packages on flatcar": {
			"flatcar", "runtime: {name: berth}\npackages: {install: [vim]}\n",
			"packages.install: flatcar installs no packages", errs.Unsupported,
		},
		"two runtimes in assets": {
			"debian 12", "runtime: {name: containerd, version: \"2.4\", assets: " + assets("containerd-2.4.2.tgz", "containerd-2.3.0.tgz") + "}\n",
			"runtime.assets: 2 of them are named for containerd, want one; set name: containerd on it", errs.Invalid,
		},
		"no runtime in assets": {
			"debian 12", "runtime: {name: containerd, version: \"2.4\", assets: " + assets("bundle.tgz") + "}\n",
			"runtime.assets: 0 of them are named for containerd, want one; set name: containerd on it", errs.Invalid,
		},
		"unknown version": {
			"debian 12", "runtime: {name: containerd, assets: " + assets("containerd.tgz") + "}\n",
			"runtime.version: is missing, and the names of the assets do not contain it", errs.Invalid,
		},
		"driver of docker's additions": {
			"debian 12", "runtime: {name: docker, config: {additions: {exec-opts: [native.cgroupdriver=cgroupfs]}}}\nkubelet: {enabled: true}\n",
			"runtime.config.additions: exec-opts has no \"native.cgroupdriver=systemd\"", errs.Invalid,
		},
		"driver of docker's override": {
			"debian 12", "runtime: {name: docker, socket: /run/x, config: {override: \"{}\"}}\n",
			"runtime.config.override: exec-opts has no \"native.cgroupdriver=systemd\"", errs.Invalid,
		},
		"kubenet of docker alone": {
			"debian 12", "runtime: {name: docker}\nnetwork: {mode: kubenet, podCIDRs: [10.1.0.0/24]}\n",
			"network.mode: docker's containers have docker's own network", errs.Unsupported,
		},
		"credentials for docker": {
			"debian 12", "runtime: {name: docker}\nregistries: [{host: docker.io, credentials: /etc/a}]\n",
			"registries[0].credentials: docker takes them from its clients", errs.Unsupported,
		},
		"addition through a value": {
			"debian 12", "runtime: {name: berth, config: {additions: {log.level.x: 1}}}\n",
			"runtime.config.additions[\"log.level.x\"]: log.level is not a table", errs.Invalid,
		},
		"CDI of old containerd": {
			"debian 12", "runtime: {name: containerd, nvidia: {enabled: true, mode: cdi}}\n",
			"runtime.nvidia.mode: containerd 1.6.0 has no CDI; want containerd 1.7, docker 25 or newer", errs.Unsupported,
		},
		"specifications for old containerd": {
			"debian 12", "runtime: {name: containerd, cdi: {specDirs: [/x]}}\n",
			"runtime.cdi.specDirs: containerd 1.6.0 has no CDI", errs.Unsupported,
		},
		"specifications for some docker": {
			"debian 12", "runtime: {name: docker, cdi: {specDirs: [/x]}}\n",
			"runtime.cdi.specDirs: the version of docker is not known, and docker has CDI from 25 on; set runtime.version", errs.Unsupported,
		},
		"snapshotter of a handler": {
			"debian 12", "runtime: {name: containerd, handlers: [{name: a, path: /x}, {name: b, path: /x, snapshotter: native}]}\n",
			"runtime.handlers[1].snapshotter: containerd 1.6.0 has one snapshotter for all handlers", errs.Unsupported,
		},
		"two client certificates": {
			"debian 12", "runtime: {name: docker}\nregistries: [{host: a, clientCert: /a}, {host: b, server: \"https://b\", clientCert: /b}, {host: docker.io, mirrors: [{url: \"https://a\", clientCert: /c}]}]\n",
			"registries[2].mirrors[0].clientCert: a has two client certificates, /a and /c", errs.Invalid,
		},
		"old NRI": {
			"debian 12", "runtime: {name: containerd, nri: {enabled: true}}\n",
			"runtime.nri.enabled: containerd 1.6.0 serves no NRI plugins; want 1.7 or newer, or leave this out", errs.Unsupported,
		},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			_, err := Build(load(t, c.text), factsOf(t, c.release))
			if err == nil || !strings.Contains(err.Error(), c.want) || !errors.Is(err, c.kind) {
				t.Errorf("%v\nwant %s", err, c.want)
			}
			var faults nodefile.FieldErrors
			if !errors.As(err, &faults) {
				t.Fatalf("%v is no list of field errors", err)
			}
			for _, m := range faults {
				line, column := nodefile.Place([]byte(fileHead+c.text), m.Path)
				if line < 3 || column < 1 || (manifest.Fault{Problem: m.Error()}).Fix() == "" {
					t.Errorf("%v: at %d:%d, or it does not say what to do", m, line, column)
				}
			}
		})
	}
	text := []byte("apiVersion: berth.run/v1alpha1\nkind: Node\nruntime: {name: containerd, nri: {enabled: true}}\nfiles:\n- {path: /etc/crictl.yaml, content: x}\n")
	n, err := nodefile.Load("n", text)
	if err != nil {
		t.Fatal(err)
	}
	_, err = Build(n, factsOf(t, "debian 12"))
	want := "n.yaml:3:35: runtime.nri.enabled: containerd 1.6.0 serves no NRI plugins; want 1.7 or newer, or leave this out: not supported\n" +
		"n.yaml:5:3: files[0]: file /etc/crictl.yaml is set by crictl too; leave one of them out: invalid argument"
	if got := nodefile.Locate(err, "n.yaml", text); got == nil || got.Error() != want || !errors.Is(got, errs.Unsupported) {
		t.Errorf("%v\nwant %s", got, want)
	}
	noFile := factsOf(t, "debian 12")
	noFile.File = ""
	if _, err := Build(load(t, "runtime: {name: berth}\nboot: {enabled: true}\n"), noFile); err == nil {
		t.Error("boot of a description from standard input was taken")
	}
}

// TestSELinuxOfBerth: berth labels containers on a machine with SELinux, unless the node file
// disables it.
func TestSELinuxOfBerth(t *testing.T) {
	for text, want := range map[string]bool{"": false, ", selinux: true": false, ", selinux: false": true} {
		target, err := Build(load(t, "runtime: {name: berth"+text+"}\n"), factsOf(t, "debian 12"))
		if err != nil {
			t.Errorf("%q: %v", text, err)
			continue
		}
		for _, task := range target.Tasks {
			if file, ok := task.(tasks.File); ok && file.Path == "/etc/berth/berth.toml" && strings.Contains(file.Content, "selinux = 'off'") != want {
				t.Errorf("%q: that it is off is said: %t, want %t:\n%s", text, !want, want, file.Content)
			}
		}
	}
}

// TestBerthUnitsAreThoseOfTheInstaller: `make install` and `berth node` install the same services.
func TestBerthUnitsAreThoseOfTheInstaller(t *testing.T) {
	target, err := Build(load(t, "runtime: {name: berth}\n"), factsOf(t, "debian 12"))
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"berth.service", facts.SupervisorUnit} {
		data, err := os.ReadFile(filepath.Join("../../../build", name))
		if err != nil {
			t.Fatal(err)
		}
		want := directives(strings.ReplaceAll(string(data), "@BINDIR@", "/usr/local/bin"))
		i := slices.IndexFunc(target.Tasks, func(task provision.Task) bool { return task.ID() == "unit "+name })
		got := directives(target.Tasks[i].(tasks.Unit).Content)
		// The node file adds the user's options and environment.
		got = slices.DeleteFunc(got, func(line string) bool { return strings.HasPrefix(line, "EnvironmentFile=") })
		for j := range got {
			got[j] = strings.TrimSuffix(got[j], " $BERTH_OPTIONS")
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s:\n%s", name, diff)
		}
	}
}

// directives returns the lines of a unit with content, sorted.
func directives(text string) []string {
	var lines []string
	for line := range strings.Lines(text) {
		if line = strings.TrimSpace(line); line != "" && line[0] != '#' {
			lines = append(lines, line)
		}
	}
	slices.Sort(lines)
	return lines
}

// FuzzBuild: for any file, the reader and Build do not panic, and each task's needs exist.
func FuzzBuild(f *testing.F) {
	for _, row := range rows() {
		f.Add(row.text)
	}
	f.Add(full("containerd", assets("containerd-2.4.2-linux-amd64.tar.gz", "runc.amd64")))
	f.Add(full("crio", "[]"))
	d, err := distro.Release("debian 12")
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, text string) {
		n, err := nodefile.Load("f", []byte("apiVersion: berth.run/v1alpha1\nkind: Node\n"+text))
		if err != nil {
			return
		}
		facts := facts.Facts{Distro: d, Arch: "amd64", File: "/etc/berth/node.yaml", Kubelet: true, Replaced: []facts.Replaced{facts.ReplaceableRuntimes()["crio"]}}
		target, err := Build(n, facts)
		if err != nil {
			return
		}
		ids := map[string]bool{}
		for _, task := range target.Tasks {
			ids[task.ID()] = true
		}
		for _, task := range target.Tasks {
			for _, need := range task.Meta().Needs {
				if !ids[need] {
					t.Errorf("%s needs %s, which nobody makes", task.ID(), need)
				}
			}
		}
	})
}

// TestDriftTimer: the timer also elapses on a machine that has not rebooted since.
func TestDriftTimer(t *testing.T) {
	target, err := Build(load(t, "runtime: {name: berth}\nboot: {enabled: true, driftInterval: 1h}\n"), factsOf(t, "debian 12"))
	if err != nil {
		t.Fatal(err)
	}
	i := slices.IndexFunc(target.Tasks, func(task provision.Task) bool { return task.ID() == "unit "+bootTimer })
	timer := target.Tasks[i].(tasks.Unit)
	if !strings.Contains(timer.Content, "\nOnActiveSec=3600s\nOnUnitInactiveSec=3600s\n") || timer.Running != tasks.Started {
		t.Errorf("%+v", timer)
	}
}

// TestNvidiaWithoutCDI: if the runtime reads no CDI specs, GPUs need the handler, even if
// nvidia-ctk is installed.
func TestNvidiaWithoutCDI(t *testing.T) {
	for text, want := range map[string]bool{
		"name: containerd": true, "name: containerd, version: \"1.7\"": false,
		"name: docker": true, "name: docker, version: \"24.0.7\"": true, "name: docker, version: \"28.5.1\"": false,
	} {
		f := factsOf(t, "debian 12")
		f.NvidiaCTK = "/usr/bin/nvidia-ctk"
		b := &builder{n: load(t, "runtime: {"+text+", nvidia: {enabled: true}}\n"), f: f}
		b.rt = runtimeOf(b.n, f)
		if got := b.nvidiaMode() == "handler"; got != want {
			t.Errorf("%s: handler %v, want %v", text, got, want)
		}
	}
}
