package node

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/manifest"
	"github.com/berthrun/berth/internal/provision"
	"github.com/berthrun/berth/internal/provision/kubelet"
	"github.com/berthrun/berth/internal/provision/node/distro"
	"github.com/berthrun/berth/internal/provision/node/nodefile"
	"github.com/berthrun/berth/internal/provision/provisiontest"
	"github.com/berthrun/berth/internal/provision/tasks"
	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

// TestEveryNeedIsThere: what a task needs is in the target, and nothing needs itself
// through others.
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
				continue // refused; TestRows shows why
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

// TestBuildIsPure: equal descriptions and facts give equal tasks, however often.
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
		"version that nobody tells": {
			"debian 12", "runtime: {name: containerd, assets: " + assets("containerd.tgz") + "}\n",
			"runtime.version: is missing, and the names of the assets do not tell it", errs.Invalid,
		},
		"credentials for docker": {
			"debian 12", "runtime: {name: docker}\nregistries: [{host: docker.io, credentials: /etc/a}]\n",
			"registries[0].credentials: docker takes them from its clients", errs.Unsupported,
		},
		"addition through a value": {
			"debian 12", "runtime: {name: berth, config: {additions: {log.level.x: 1}}}\n",
			"runtime.config.additions[\"log.level.x\"]: log.level is no table", errs.Invalid,
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
			var misfits Misfits
			if !errors.As(err, &misfits) {
				t.Fatalf("%v is no list of misfits", err)
			}
			for _, m := range misfits {
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
	if got := Locate(err, "n.yaml", text); got == nil || got.Error() != want || !errors.Is(got, errs.Unsupported) {
		t.Errorf("%v\nwant %s", got, want)
	}
	noFile := factsOf(t, "debian 12")
	noFile.File = ""
	if _, err := Build(load(t, "runtime: {name: berth}\nboot: {enabled: true}\n"), noFile); err == nil {
		t.Error("boot of a description from standard input was taken")
	}
}

// TestSELinuxOfBerth: berth labels containers where the machine has SELinux, unless it
// is told not to.
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

// TestBerthUnitsAreThoseOfTheInstaller: `make install` and `berth node` run the same
// services.
func TestBerthUnitsAreThoseOfTheInstaller(t *testing.T) {
	target, err := Build(load(t, "runtime: {name: berth}\n"), factsOf(t, "debian 12"))
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"berth.service", supervisorUnit} {
		data, err := os.ReadFile(filepath.Join("../../../build", name))
		if err != nil {
			t.Fatal(err)
		}
		want := directives(strings.ReplaceAll(string(data), "@BINDIR@", "/usr/local/bin"))
		i := slices.IndexFunc(target.Tasks, func(task provision.Task) bool { return task.ID() == "unit "+name })
		got := directives(target.Tasks[i].(tasks.Unit).Content)
		// What the node file adds: options and environment of the user's.
		got = slices.DeleteFunc(got, func(line string) bool { return strings.HasPrefix(line, "EnvironmentFile=") })
		for j := range got {
			got[j] = strings.TrimSuffix(got[j], " $BERTH_OPTIONS")
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s:\n%s", name, diff)
		}
	}
}

// directives are the lines of a unit that say something, sorted.
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

// fakeHost is a machine of files alone.
type fakeHost struct {
	provision.Host
	files map[string]string
	run   func(args []string) (string, error)
}

func (h fakeHost) Live() bool             { return h.run != nil }
func (h fakeHost) Files() provision.Files { return fakeFiles{files: h.files} }

// Kernel has nothing mounted.
func (fakeHost) Kernel() provision.Kernel { return provisiontest.New().Kernel() }

func (h fakeHost) Run(_ context.Context, cmd provision.Command) ([]byte, error) {
	out, err := h.run(cmd.Args)
	return []byte(out), err
}

type fakeFiles struct {
	provision.Files
	files map[string]string
}

func (f fakeFiles) Stat(name string) (provision.FileInfo, error) {
	if _, ok := f.files[name]; !ok {
		return provision.FileInfo{}, errs.NotFound
	}
	return provision.FileInfo{}, nil
}

func (f fakeFiles) Open(name string) (io.ReadCloser, error) {
	content, ok := f.files[name]
	if !ok {
		return nil, errs.NotFound
	}
	return io.NopCloser(strings.NewReader(content)), nil
}

func (f fakeFiles) ReadDir(dir string) ([]string, error) {
	var names []string
	for file := range f.files {
		if rest, ok := strings.CutPrefix(file, dir+"/"); ok {
			name, _, _ := strings.Cut(rest, "/")
			names = append(names, name)
		}
	}
	if len(names) == 0 {
		return nil, errs.NotFound
	}
	slices.Sort(names)
	return slices.Compact(names), nil
}

// Digest reads what lies on the machine that the test runs on.
func (f fakeFiles) Digest(name string) (string, error) {
	data, err := os.ReadFile(name)
	return fmt.Sprintf("sha256:%x", sha256.Sum256(data)), err
}

// TestSourcesWithoutDigest: only a directory needs none, and the machine knows what is one.
func TestSourcesWithoutDigest(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "runc"), nil, 0o755); err != nil {
		t.Fatal(err)
	}
	n := load(t, "runtime: {name: containerd, assets: [{source: "+dir+"}, {source: "+dir+"/runc}]}\nnetwork: {plugins: [{source: "+dir+"/none}]}\n"+
		"kubelet: {enabled: true, assets: [{source: "+dir+"/none, arch: s390x}]}\n")
	misfits := CheckSources(n)
	if len(misfits) != 2 || misfits[0].Path != "runtime.assets[1].digest" || misfits[1].Path != "network.plugins[0].source" ||
		!errors.Is(misfits, errs.Invalid) || !errors.Is(misfits, errs.NotFound) {
		t.Errorf("%v", misfits)
	}
	other := errors.New("other")
	if got := misfits.And(other); !errors.Is(got, other) || errors.Is(got, errs.Invalid) {
		t.Errorf("beside another error: %v", got)
	}
	var all Misfits
	if got := misfits.And(misfits[:1]); !errors.As(got, &all) || len(all) != 3 {
		t.Errorf("beside misfits: %v", got)
	}
	if got := Misfits(nil).And(nil); got != nil {
		t.Errorf("nothing is %v", got)
	}
}

func TestDetect(t *testing.T) {
	files := map[string]string{
		"/etc/os-release":          "ID=rocky\nVERSION_ID=9.5\n",
		"/usr/lib/systemd/systemd": "", "/sys/fs/selinux/enforce": "1", "/usr/bin/nvidia-ctk": "",
		"/etc/berth/hub.auth": "user:password",
	}
	berth := filepath.Join(t.TempDir(), "berth")
	if err := os.WriteFile(berth, []byte("a"), 0o755); err != nil {
		t.Fatal(err)
	}
	host := fakeHost{files: files, run: func([]string) (string, error) {
		return "containerd github.com/containerd/containerd/v2 v2.2.1 abcdef", nil
	}}
	n := load(t, "runtime: {name: containerd, skipInstall: true}\nregistries: [{host: docker.io, credentials: /etc/berth/hub.auth}]\nboot: {enabled: true}\n")
	f, err := Detect(t.Context(), host, n, berth, "/etc/berth/node.yaml")
	if err != nil {
		t.Fatal(err)
	}
	if f.Distro.Family != "rhel" || !f.SELinux || f.NvidiaCTK != "/usr/bin/nvidia-ctk" || f.File != "/etc/berth/node.yaml" {
		t.Errorf("%+v", f)
	}
	if f.Versions["containerd"] != (nodefile.Version{Major: 2, Minor: 2, Patch: 1}) {
		t.Errorf("versions %v", f.Versions)
	}
	if f.Credentials["/etc/berth/hub.auth"] != "user:password" {
		t.Error("credentials were not read")
	}
	if !strings.HasPrefix(f.Berth.Digest, "sha256:") || f.Supervisor.Digest != "" {
		t.Errorf("binaries %+v %+v", f.Berth, f.Supervisor)
	}

	delete(files, "/etc/berth/hub.auth")
	_, err = Detect(t.Context(), host, n, berth, "")
	if !errors.Is(err, errs.NotFound) || !strings.Contains(err.Error(), "/etc/berth/hub.auth") {
		t.Errorf("credentials that are not there: %v", err)
	}
	if got := Locate(err, "f", []byte("registries:\n- credentials: /etc/berth/hub.auth\n")); got == nil || !strings.HasPrefix(got.Error(), "f:2:3: registries[0].credentials: ") {
		t.Errorf("credentials that are not there have the place %v", got)
	}
	delete(files, "/usr/lib/systemd/systemd")
	if _, err := Detect(t.Context(), host, n, berth, ""); !errors.Is(err, errs.Unsupported) {
		t.Errorf("no systemd: %v", err)
	}
	files["/etc/os-release"] = "ID=bottlerocket\n"
	if _, err := Detect(t.Context(), host, n, berth, ""); !errors.Is(err, errs.Unsupported) || !strings.Contains(err.Error(), "settings API") {
		t.Errorf("bottlerocket: %v", err)
	}
}

func TestInit(t *testing.T) {
	debian := "PRETTY_NAME=\"Debian GNU/Linux 12 (bookworm)\"\nID=debian\nVERSION_ID=12\n"
	cases := map[string]struct {
		files map[string]string
		want  []string
	}{
		"bare": {nil, []string{"# - Debian GNU/Linux 12 (bookworm), ", "# - no runtime, so berth it is\n", "\n  name: berth\n"}},
		"containerd of a package": {
			map[string]string{"/usr/bin/containerd": ""},
			[]string{"# - runtime containerd 2.2.1\n", "\n  name: containerd\n", "\n  # skipInstall: false\n"},
		},
		"containerd by hand": {
			map[string]string{"/usr/local/bin/containerd": ""},
			[]string{"so skipInstall leaves it as it is", "\n  skipInstall: true\n", "\n  version: 2.2.1\n"},
		},
		"docker, with its containerd": {
			map[string]string{"/usr/bin/containerd": "", "/usr/sbin/dockerd": ""},
			[]string{"\n  name: docker\n"},
		},
		"a kubelet on crio": {
			map[string]string{
				"/usr/bin/containerd": "", "/usr/bin/crio": "",
				kubeletConfig:     "cgroupDriver: cgroupfs\n",
				kubelet.FlagsFile: "KUBELET_KUBEADM_ARGS=\"--container-runtime-endpoint=unix:///var/run/crio/crio.sock\"",
			},
			[]string{"which the kubelet talks to", "(cgroup driver cgroupfs)", "\n  name: crio\n", "\n  cgroupDriver: cgroupfs\n"},
		},
		"proxy and GPU": {
			map[string]string{"/usr/bin/containerd": "", "/usr/bin/nvidia-ctk": "", "/etc/environment": "http_proxy=\"http://p:1\"\nNO_PROXY=a,b\nOTHER=x\n"},
			[]string{"# - NVIDIA's driver or toolkit", "sets http_proxy", "http: http://p:1\n", "noProxy: [a, b]\n"},
		},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			files := map[string]string{"/etc/os-release": debian}
			maps.Copy(files, c.files)
			host := fakeHost{files: files, run: func([]string) (string, error) { return "x v2.2.1", nil }}
			var loaded []*nodefile.Node
			for _, all := range []bool{false, true} {
				text, err := Init(t.Context(), host, all)
				if err != nil {
					t.Fatal(err)
				}
				for _, want := range c.want {
					if short := strings.HasPrefix(want, "\n  # "); strings.Contains(text, want) != (all || !short) {
						t.Errorf("all=%t: is %q there? Want it %t, in\n%s", all, want, all || !short, text[:min(len(text), 3000)])
					}
				}
				if lines := strings.Count(text, "\n"); !all && lines > 40 {
					t.Errorf("the short file has %d lines", lines)
				}
				n, err := nodefile.Load("init", []byte(text))
				if err != nil {
					t.Errorf("what init writes has faults: %v\n%s", err, text)
				}
				loaded = append(loaded, n)
			}
			if diff := cmp.Diff(loaded[1], loaded[0], cmpopts.EquateEmpty()); diff != "" {
				t.Errorf("the short file says something else than the long one (-long +short):\n%s", diff)
			}
		})
	}
}

// FuzzBuild: whatever a file says, reading it and building from it neither panics nor
// makes a task whose needs are not there.
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
		facts := Facts{Distro: d, Arch: "amd64", File: "/etc/berth/node.yaml", Kubelet: true, Replaced: []Replaced{runtimes()["crio"]}}
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

// TestReplacedByItsSocket: a runtime that listens elsewhere than usual is drained there.
func TestReplacedByItsSocket(t *testing.T) {
	files := map[string]string{
		"/etc/containerd/config.toml": "version = 2\nroot = \"/data/c\"\n[grpc]\naddress = \"/run/other.sock\"\n",
		kubeletConfig:                 "containerRuntimeEndpoint: unix:///run/other.sock\n",
	}
	host := fakeHost{files: files, run: func([]string) (string, error) { return "", nil }}
	list := detectReplaced(t.Context(), host, load(t, "runtime: {name: berth}\n"))
	if len(list) != 1 || list[0].Endpoint != "unix:///run/other.sock" || list[0].Content != "/data/c/io.containerd.content.v1.content/blobs" {
		t.Errorf("%+v, want containerd on /run/other.sock", list)
	}
}

// TestDriftTimer: the timer elapses on a machine that has not been booted since.
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

// TestNvidiaWithoutCDI: where the runtime reads no specifications, GPUs come by the
// handler, also when nvidia-ctk is there.
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
