package render

import (
	"bytes"
	"compress/gzip"
	"encoding/base64"
	"encoding/json"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	ignition "github.com/coreos/ignition/v2/config/v3_4"
	"github.com/google/go-cmp/cmp"
	"go.yaml.in/yaml/v3"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/golden"
	"github.com/berthrun/berth/internal/provision/node"
	"github.com/berthrun/berth/internal/provision/node/distro"
	"github.com/berthrun/berth/internal/provision/node/facts"
	"github.com/berthrun/berth/internal/provision/node/nodefile"
)

const head = "apiVersion: berth.run/v1alpha1\nkind: Node\n"

const zeros = "sha256:0000000000000000000000000000000000000000000000000000000000000000"

// input is a node on a fresh machine.
func input(t *testing.T, release, text string, change func(*facts.Assumptions)) Input {
	t.Helper()
	in, err := tryInput(t, release, text, change)
	if err != nil {
		t.Fatal(err)
	}
	return in
}

// tryInput is input for a node that may be refused.
func tryInput(t *testing.T, release, text string, change func(*facts.Assumptions)) (Input, error) {
	t.Helper()
	d, err := distro.Release(release)
	if err != nil {
		t.Fatal(err)
	}
	n, err := nodefile.Load("test", []byte(head+text))
	if err != nil {
		t.Fatal(err)
	}
	s := facts.Assumptions{
		Distro: d, Arch: "amd64", File: "/etc/berth/node.yaml",
		Read: func(string) ([]byte, error) { return []byte("user:secret"), nil },
	}
	if change != nil {
		change(&s)
	}
	facts, programs, err := facts.Assume(n, s)
	if err != nil {
		t.Fatal(err)
	}
	target, err := node.Build(n, facts)
	return Input{
		Target: target, Distro: d, Arch: "amd64", Node: []byte(head + text), NodePath: s.File, Programs: programs,
		Berth: Fetched{Source: s.Berth.Path, Digest: s.Berth.Digest}, Credentials: facts.Credentials,
	}, err
}

// fetched makes the node fetch berth's binaries from a server.
func fetched(s *facts.Assumptions) {
	s.Berth = facts.Binary{Path: "https://assets.example/berth", Digest: zeros}
	s.Supervisor = facts.Binary{Path: "https://assets.example/berth-supervisor", Digest: zeros}
}

const own = `groups: [{name: ops, gid: 2000}]
users: [{name: ops, uid: 2000, group: ops, groups: [adm], home: /home/ops, shell: /bin/bash}]
files:
- {path: /etc/own, type: directory, mode: "2775", group: ops}
- {path: /etc/own/file, content: "it's $HOME ` + "`x`" + `\nEND\n", owner: ops, restarts: [chrony.service]}
- {path: /etc/own/tail, content: "no newline"}
- {path: /etc/own/link, type: symlink, target: file}
units: [{name: chrony.service, dropIns: {10-nice.conf: "[Service]\nNice=5\n"}}]
packages: {install: [chrony=4.3]}
kernel: {swap: "off"}
`

const archives = "runtime: {name: containerd, assets: [{source: \"https://assets.example/containerd-2.4.2-linux-amd64.tar.gz\", digest: \"" + zeros +
	"\"}, {source: \"https://assets.example/runc.amd64\", digest: \"" + zeros + "\"}]}\n"

type form struct {
	render func(Input) (Output, error)
	ext    string
}

func forms() map[string]form {
	return map[string]form{"cloud-init": {CloudInit, "yaml"}, "ignition": {Ignition, "json"}, "dir": {Dir, "json"}, "script": {Script, "sh"}}
}

// TestGolden shows each format for a few nodes. Files that never change are cut from scripts and
// user data.
func TestGolden(t *testing.T) {
	for name, c := range map[string]struct {
		release, text string
		change        func(*facts.Assumptions)
	}{
		"debian-12-containerd": {"debian 12", "runtime: {name: containerd}\n" + own, fetched},
		"debian-13-berth":      {"debian 13", "runtime: {name: berth}\n", fetched},
		"rocky-9-containerd":   {"rocky 9", archives, fetched},
		"fedora-44-docker":     {"fedora 44", "runtime: {name: docker}\n", fetched},
		"flatcar-containerd":   {"flatcar", "runtime: {name: containerd}\n", fetched},
	} {
		for target, form := range forms() {
			t.Run(name+"/"+target, func(t *testing.T) {
				out, err := form.render(input(t, c.release, c.text, c.change))
				text := string(out.Text)
				if err != nil {
					text = "refused: " + err.Error() + "\n"
				}
				text = strings.Replace(text, lib, "(lib.sh)\n", 1)
				packed, err := zipped(lib)
				if err != nil {
					t.Fatal(err)
				}
				text = strings.Replace(text, base64.StdEncoding.EncodeToString(packed), "(lib.sh, packed)", 1)
				for _, left := range out.Left {
					text += "not in it: " + left.What + ": " + left.Reason + "\n"
				}
				golden.Check(t, "testdata/"+name+"."+target+".txt", text)
			})
		}
	}
}

// TestIgnitionIsValid: Ignition's own reader accepts the output.
func TestIgnitionIsValid(t *testing.T) {
	for release, text := range map[string]string{
		"flatcar": "runtime: {name: containerd}\n", "debian 12": "runtime: {name: containerd}\n" + own, "fedora 44": "runtime: {name: berth}\n", "rocky 9": archives,
	} {
		out, err := Ignition(input(t, release, text, fetched))
		if err != nil {
			t.Fatal(err)
		}
		_, report, err := ignition.Parse(out.Text)
		if err != nil || len(report.Entries) > 0 {
			t.Errorf("%s: %v\n%s\n%s", release, err, report.String(), out.Text)
		}
	}
}

// TestIgnitionOfEveryRow: Ignition's own reader accepts every runtime on every distribution.
func TestIgnitionOfEveryRow(t *testing.T) {
	asset := func(name string) string {
		return "{source: \"https://assets.example/" + name + "\", digest: \"" + zeros + "\"}"
	}
	valid := 0
	for _, release := range distro.Releases() {
		for row, text := range map[string]string{
			"berth":                "runtime: {name: berth}\n",
			"containerd":           "runtime: {name: containerd}\n" + own,
			"containerd of assets": archives,
			"crio":                 "runtime: {name: crio}\n",
			"crio of assets":       "runtime: {name: crio, assets: [" + asset("cri-o.amd64.v1.36.3.tar.gz") + "]}\n",
			"docker":               "runtime: {name: docker}\n",
			"docker of assets":     "runtime: {name: docker, version: \"28.5.1\", assets: [" + asset("docker-28.5.1.tgz") + "]}\n",
		} {
			in, err := tryInput(t, release, text, fetched)
			if errors.Is(err, errs.Unsupported) {
				continue // TestRows of package node shows the reason
			}
			if err != nil {
				t.Fatalf("%s, %s: %v", release, row, err)
			}
			out, err := Ignition(in)
			if err != nil {
				t.Errorf("%s, %s: %v", release, row, err)
				continue
			}
			_, report, err := ignition.Parse(out.Text)
			if err != nil || len(report.Entries) > 0 {
				t.Errorf("%s, %s: %v\n%s\n%s", release, row, err, report.String(), out.Text)
			}
			valid++
		}
	}
	if want := 4 * len(distro.Releases()); valid < want {
		t.Errorf("%d rows are valid, want at least %d", valid, want)
	}
}

// TestIgnitionStartsNothingTooEarly: units that need berth's first apply are not enabled before it.
// All other units are.
func TestIgnitionStartsNothingTooEarly(t *testing.T) {
	enabled := func(in Input) map[string]bool {
		out, err := Ignition(in)
		if err != nil {
			t.Fatal(err)
		}
		config, _, err := ignition.Parse(out.Text)
		if err != nil {
			t.Fatal(err)
		}
		units := map[string]bool{}
		for _, u := range config.Systemd.Units {
			units[u.Name] = u.Enabled != nil && *u.Enabled
		}
		return units
	}
	later := enabled(input(t, "debian 12", archives, fetched))
	if on, there := later["containerd.service"]; on || !there || !later[FirstBootUnit] {
		t.Errorf("with archives: %v", later)
	}
	now := enabled(input(t, "flatcar", "runtime: {name: containerd}\n", fetched))
	if _, there := now[FirstBootUnit]; there || !now["containerd.service"] {
		t.Errorf("with nothing to wait for: %v", now)
	}
}

func TestIgnitionRefusesByName(t *testing.T) {
	_, err := Ignition(input(t, "debian 12", archives, nil))
	for _, want := range []string{"asset containerd-2.4.2-linux-amd64.tar.gz: Ignition unpacks no archives", "packages conntrack", "--berth"} {
		if !errors.Is(err, errs.Unsupported) || !strings.Contains(err.Error(), want) {
			t.Errorf("%v\nwant %s", err, want)
		}
	}
}

// TestSecretsAreNamed: hosts.toml with a password, the file with the password, and the node file
// beside them.
func TestSecretsAreNamed(t *testing.T) {
	text := "runtime: {name: containerd}\nregistries: [{host: docker.io, mirrors: [{url: \"https://mirror.example\", credentials: /etc/berth/hub.auth}]}]\n"
	for target, form := range forms() {
		out, err := form.render(input(t, "debian 13", text, fetched))
		if err != nil {
			t.Fatalf("%s: %v", target, err)
		}
		want := []string{"/etc/containerd/certs.d/docker.io/hosts.toml", "/etc/berth/node.yaml", "/etc/berth/hub.auth"}
		if diff := cmp.Diff(want, out.Secrets); diff != "" {
			t.Errorf("%s: %s", target, diff)
		}
		for _, e := range out.Tree {
			if e.Secret && e.Mode != "0600" {
				t.Errorf("%s is secret and has mode %s", e.Path, e.Mode)
			}
		}
	}
}

// TestLocalImageIsTold: user data does not contain an archive on this machine. A message reports
// this.
func TestLocalImageIsTold(t *testing.T) {
	out, err := CloudInit(input(t, "debian 13", "runtime: {name: berth}\nimages: [{source: /opt/base.tar, digest: \""+zeros+"\", names: [\"registry.example/base:1\"]}]\n", fetched))
	if err != nil {
		t.Fatal(err)
	}
	for _, left := range out.Left {
		if left.What == "image registry.example/base:1" && strings.Contains(left.Reason, "/opt/base.tar") {
			return
		}
	}
	t.Errorf("not told: %v", out.Left)
}

// TestCloudInitKeepsContents: compressed and encoded files decode to the same content.
func TestCloudInitKeepsContents(t *testing.T) {
	large := strings.Repeat("a line\n", 2000)
	node, err := json.Marshal(large)
	if err != nil {
		t.Fatal(err)
	}
	out, err := CloudInit(input(t, "debian 12", "runtime: {name: berth}\nfiles:\n- {path: /etc/large, content: "+string(node)+"}\n- {path: /etc/odd, content: \"\\x01\\r\"}\n", fetched))
	if err != nil {
		t.Fatal(err)
	}
	var config cloudConfig
	if err := yaml.Unmarshal(out.Text, &config); err != nil {
		t.Fatal(err)
	}
	want := map[string]string{"/etc/large": large, "/etc/odd": "\x01\r"}
	for _, f := range config.WriteFiles {
		content := f.Content
		if f.Encoding != "" {
			data, err := base64.StdEncoding.DecodeString(content)
			if err != nil {
				t.Fatal(err)
			}
			content = string(data)
		}
		if f.Encoding == "gz+b64" {
			r, err := gzip.NewReader(strings.NewReader(content))
			if err != nil {
				t.Fatal(err)
			}
			data, err := io.ReadAll(r)
			if err != nil {
				t.Fatal(err)
			}
			content = string(data)
		}
		if wanted, ok := want[f.Path]; ok && content == wanted {
			delete(want, f.Path)
		}
	}
	if len(want) > 0 {
		t.Errorf("not as they were: %q", want)
	}
}

// run runs a script on a root directory, with a systemctl that records its calls.
func run(t *testing.T, root, script string) (string, error) {
	t.Helper()
	return runIn(t, root, "/usr/bin:/bin:/usr/sbin:/sbin", script)
}

func runIn(t *testing.T, root, path, script string) (string, error) {
	t.Helper()
	bin := t.TempDir()
	if err := os.WriteFile(bin+"/systemctl", []byte("#!/bin/sh\nprintf '%s\\n' \"systemctl $*\"\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), "/bin/sh")
	cmd.Stdin = strings.NewReader(script)
	cmd.Env = []string{"BERTH_ROOT=" + root, "PATH=" + bin + ":" + path, "LANG=C"}
	var both bytes.Buffer
	cmd.Stdout, cmd.Stderr = &both, &both
	err := cmd.Run()
	return both.String(), err
}

func writeRoot(t *testing.T, osRelease string) string {
	t.Helper()
	root := t.TempDir()
	if err := os.Mkdir(root+"/etc", 0o755); err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{
		"/etc/os-release": osRelease, "/etc/fstab": "/dev/sda1 / ext4 defaults 0 1\n/swapfile none swap sw 0 0\n",
	} {
		if err := os.WriteFile(root+name, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return root
}

func tree(t *testing.T, root string) map[string]string {
	t.Helper()
	all := map[string]string{}
	err := filepath.Walk(root, func(path string, info os.FileInfo, err error) error {
		if err != nil {
			return err
		}
		rel := strings.TrimPrefix(path, root)
		switch {
		case info.Mode()&os.ModeSymlink != 0:
			target, err := os.Readlink(path)
			all[rel] = "-> " + target
			return err
		case info.IsDir():
			all[rel] = info.Mode().String()
		default:
			data, err := os.ReadFile(path)
			all[rel] = info.Mode().String() + " " + info.ModTime().String() + "\n" + string(data)
			return err
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

const scriptNode = `runtime: {name: berth}
kernel: {swap: "off"}
files:
- {path: /etc/own, type: directory, mode: "0750"}
- {path: /etc/own/file, content: "it's $HOME ` + "`x`" + ` $(y) \\\nEND\n", mode: "0640"}
- {path: /etc/own/tail, content: "no newline \u00fc"}
- {path: /etc/own/once, content: "ours\n", ifNotExists: true}
- {path: /etc/own/link, type: symlink, target: "a b"}
`

// TestScriptMakesARootAndIsIdempotent runs the script twice. The first run creates everything, and
// the second run writes nothing.
func TestScriptMakesARootAndIsIdempotent(t *testing.T) {
	in := input(t, "debian 12", scriptNode, nil)
	out, err := Script(in)
	if err != nil {
		t.Fatal(err)
	}
	root := writeRoot(t, "ID=debian\nVERSION_ID=\"12\"\n")
	said, err := run(t, root, string(out.Text))
	if err != nil {
		t.Fatalf("%v\n%s", err, said)
	}
	if !strings.Contains(said, "systemctl --root "+root+" enable -q berth.service") {
		t.Errorf("berth.service was not enabled:\n%s", said)
	}
	first := tree(t, root)
	wanted, err := Dir(in)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range wanted.Tree {
		got, there := first[e.Path]
		switch {
		case strings.Contains(e.Path, ".wants"): // written by systemctl
		case !there:
			t.Errorf("%s is not there", e.Path)
		case e.Type == "symlink" && got != "-> "+e.Target, e.Type == "file" && !strings.HasSuffix(got, "\n"+string(e.Content)):
			t.Errorf("%s is %q", e.Path, got)
		}
	}
	for name, mode := range map[string]os.FileMode{"/etc/own": 0o750, "/etc/own/file": 0o640, "/etc/berth/node.yaml": 0o600} {
		if info, err := os.Stat(root + name); err != nil || info.Mode().Perm() != mode {
			t.Errorf("%s: %v, %v; want %v", name, info.Mode(), err, mode)
		}
	}
	if !strings.Contains(first["/etc/fstab"], "# off by berth node: /swapfile") {
		t.Errorf("fstab: %s", first["/etc/fstab"])
	}
	if said, err := run(t, root, string(out.Text)); err != nil {
		t.Fatalf("%v\n%s", err, said)
	}
	if diff := cmp.Diff(first, tree(t, root)); diff != "" {
		t.Errorf("the second run changed something:\n%s", diff)
	}
}

// TestScriptRefusesAnotherMachine: the script refuses another machine and changes nothing on it.
func TestScriptRefusesAnotherMachine(t *testing.T) {
	out, err := Script(input(t, "debian 12", scriptNode, nil))
	if err != nil {
		t.Fatal(err)
	}
	for _, release := range []string{"ID=ubuntu\nVERSION_ID=\"24.04\"\n", "ID=debian\nVERSION_ID=\"13\"\n", "ID=debian\nVERSION_ID=\"120\"\n"} {
		root := writeRoot(t, release)
		before := tree(t, root)
		said, err := run(t, root, string(out.Text))
		if err == nil || !strings.Contains(said, "this is for debian 12") {
			t.Errorf("%s: %v\n%s", release, err, said)
		}
		if diff := cmp.Diff(before, tree(t, root)); diff != "" {
			t.Errorf("%s: changed:\n%s", release, diff)
		}
	}
}

// TestScriptCutShortDoesNothing: a script whose download was truncated changes nothing.
func TestScriptCutShortDoesNothing(t *testing.T) {
	out, err := Script(input(t, "debian 12", scriptNode, nil))
	if err != nil {
		t.Fatal(err)
	}
	for _, part := range []int{2, 3, 4} {
		root := writeRoot(t, "ID=debian\nVERSION_ID=\"12\"\n")
		before := tree(t, root)
		if said, err := run(t, root, string(out.Text[:len(out.Text)*(part-1)/part])); strings.Contains(said, "file /etc") {
			t.Errorf("%v\n%s", err, said)
		}
		if diff := cmp.Diff(before, tree(t, root)); diff != "" {
			t.Errorf("changed:\n%s", diff)
		}
	}
}
