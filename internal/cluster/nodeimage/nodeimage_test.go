package nodeimage

import (
	"archive/tar"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/berthrun/berth/internal/errs"
)

const listed = `registry.k8s.io/kube-apiserver:v1.36.3
registry.k8s.io/kube-controller-manager:v1.36.3
registry.k8s.io/kube-scheduler:v1.36.3
registry.k8s.io/kube-proxy:v1.36.3
registry.k8s.io/coredns/coredns:v1.14.2
registry.k8s.io/pause:3.10.2
registry.k8s.io/etcd:3.6.8-0
`

func TestImagesOf(t *testing.T) {
	got, err := imagesOf(strings.Fields(listed))
	if err != nil || len(got) != 6 || got["coredns"] != "registry.k8s.io/coredns/coredns:v1.14.2" || got["etcd"] != "registry.k8s.io/etcd:3.6.8-0" {
		t.Errorf("%v, %v", got, err)
	}
	_, err = imagesOf([]string{"localhost:5000/etcd:1", "registry.k8s.io/kube-proxy"})
	if !errors.Is(err, errs.Unsupported) || !strings.Contains(err.Error(), "kube-apiserver, kube-controller-manager, kube-scheduler, kube-proxy, coredns") {
		t.Errorf("a list that lacks some: %v", err)
	}
}

func TestCheckPrograms(t *testing.T) {
	dir := t.TempDir()
	all := (&builder{}).expected()
	if err := checkPrograms(dir, all); !errors.Is(err, errs.NotFound) || !strings.Contains(err.Error(), "kubeadm, kubelet, kubectl, etcd,") {
		t.Errorf("an empty directory: %v", err)
	}
	names := programs()
	for _, c := range components() {
		names = append(names, c.name)
	}
	for _, name := range names {
		if err := os.WriteFile(filepath.Join(dir, name), []byte("#!/bin/sh\n"), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := checkPrograms(dir, all); !errors.Is(err, errs.Invalid) || !strings.Contains(err.Error(), "is not a program") {
		t.Errorf("scripts: %v", err)
	}
	sh, err := exec.LookPath("sh")
	if err != nil {
		t.Skip("there is no shell to take for a program with libraries")
	}
	if err := checkStatic(sh); err == nil || !strings.Contains(err.Error(), "CGO_ENABLED=0") {
		t.Errorf("a program that needs libraries: %v", err)
	}
}

// read returns the content of a tar file: file contents by name, and links with an arrow.
func read(t *testing.T, from io.Reader) (names []string, content map[string]string) {
	t.Helper()
	content = map[string]string{}
	for r := tar.NewReader(from); ; {
		header, err := r.Next()
		if errors.Is(err, io.EOF) {
			return names, content
		}
		if err != nil {
			t.Fatal(err)
		}
		text, err := io.ReadAll(r)
		if err != nil {
			t.Fatal(err)
		}
		names = append(names, fmt.Sprintf("%s %o", header.Name, header.Mode))
		content[header.Name] = string(text)
		if header.Linkname != "" {
			content[header.Name] = "-> " + header.Linkname
		}
	}
}

func TestLayer(t *testing.T) {
	from := filepath.Join(t.TempDir(), "program")
	if err := os.WriteFile(from, []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	err := writeLayer(&out, []entry{{path: "/usr/bin/a", from: from}, {path: "/usr/bin/b", link: "a"}, {path: "/c", from: from}})
	if err != nil {
		t.Fatal(err)
	}
	names, content := read(t, &out)
	if want := []string{"tmp/ 1777", "usr/ 755", "usr/bin/ 755", "usr/bin/a 755", "usr/bin/b 777", "c 755"}; !slices.Equal(names, want) {
		t.Errorf("%q, want %q", names, want)
	}
	if content["usr/bin/b"] != "-> a" || content["c"] != "x" {
		t.Errorf("%v", content)
	}
}

// TestArchive: the same content gives the same image at any time.
func TestArchive(t *testing.T) {
	layer := filepath.Join(t.TempDir(), "layer")
	if err := os.WriteFile(layer, []byte("no tar, which nobody looks at"), 0o600); err != nil {
		t.Fatal(err)
	}
	var made [2]bytes.Buffer
	for i := range made {
		if err := writeArchive(&made[i], []string{"registry.example/a:1", "kindest/node:latest"}, settings{Entrypoint: []string{"/a"}, Labels: map[string]string{"b": "c", "a": "d"}}, layer); err != nil {
			t.Fatal(err)
		}
	}
	if !bytes.Equal(made[0].Bytes(), made[1].Bytes()) {
		t.Error("two archives of one image differ")
	}
	_, content := read(t, &made[0])
	var manifest []struct {
		Config           string
		RepoTags, Layers []string
	}
	if err := json.Unmarshal([]byte(content["manifest.json"]), &manifest); err != nil || len(manifest) != 1 {
		t.Fatalf("%v: %s", err, content["manifest.json"])
	}
	if m := manifest[0]; content[m.Config] == "" || !slices.Equal(m.RepoTags, []string{"registry.example/a:1", "kindest/node:latest"}) || content[m.Layers[0]] == "" {
		t.Errorf("%+v of %v", m, content)
	}
	if !strings.Contains(content[manifest[0].Config], `"Entrypoint":["/a"]`) {
		t.Errorf("%s", content[manifest[0].Config])
	}
}

// TestClosure: libraries are found in the root file system, through links that are resolved inside
// of it. The error for a missing library names the file that needs it.
func TestClosure(t *testing.T) {
	sh, err := exec.LookPath("sh")
	if err != nil {
		t.Skip("there is no shell to look at")
	}
	rootfs := t.TempDir()
	program, err := os.ReadFile(sh)
	if err != nil {
		t.Fatal(err)
	}
	loader, wanted, err := needs("/", sh)
	if err != nil || loader == "" || len(wanted) == 0 {
		t.Skipf("%s needs nothing: %q, %q, %v", sh, loader, wanted, err)
	}
	write := func(name string, text []byte) {
		t.Helper()
		file := filepath.Join(rootfs, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(file), 0o755), os.WriteFile(file, text, 0o755)); err != nil {
			t.Fatal(err)
		}
	}
	write("/bin/sh", program)
	if _, err := closure(rootfs, []string{"/bin/sh"}); err == nil || !strings.Contains(err.Error(), "/bin/sh needs "+wanted[0]) {
		t.Errorf("without libraries: %v", err)
	}
	// A library and a loader without needs of their own are a valid replacement.
	static := filepath.Join(rootfs, "static")
	build := exec.CommandContext(t.Context(), "go", "build", "-o", static, "./testdata/nothing")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	text, err := os.ReadFile(static)
	if err != nil {
		t.Fatal(err)
	}
	want := []string{"/bin/sh"}
	for _, name := range wanted {
		write("/usr/lib/x86_64-linux-gnu/"+name, text)
		want = append(want, "/usr/lib/x86_64-linux-gnu/"+name)
	}
	write("/real/loader", text)
	if err := errors.Join(os.MkdirAll(filepath.Dir(filepath.Join(rootfs, loader)), 0o755), os.Symlink("/real/loader", filepath.Join(rootfs, loader))); err != nil {
		t.Fatal(err)
	}
	want = append(want, loader)
	slices.Sort(want)
	if got, err := closure(rootfs, []string{"/bin/sh"}); err != nil || !slices.Equal(got, want) {
		t.Errorf("%q, %v; want %q", got, err, want)
	}
	if err := checkStatic(static); err != nil {
		t.Error(err)
	}
}

// TestTrim: the image does not contain files that each node must have of its own.
func TestTrim(t *testing.T) {
	b := &builder{root: t.TempDir()}
	for _, name := range []string{"etc/machine-id", "var/cache/apt/archives/a.deb", "etc/systemd/system/getty.target", "usr/share/doc/a/b", "etc/hostname"} {
		if err := b.write(name, []byte("x")); err != nil {
			t.Fatal(err)
		}
	}
	if err := b.trim(); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]bool{"etc/machine-id": true, "var/cache/apt/archives": false, "usr/share/doc/a": false, "etc/hostname": false} {
		if _, err := os.Stat(filepath.Join(b.root, name)); (err == nil) != want {
			t.Errorf("%s: %v, want it there: %v", name, err, want)
		}
	}
	if to, err := os.Readlink(filepath.Join(b.root, "etc/systemd/system/getty.target")); err != nil || to != "/dev/null" {
		t.Errorf("a masked unit is %q, %v", to, err)
	}
}

// TestStopTime: systemd in a node kills remaining processes before the engine does. The shortest
// timeout is docker's, ten seconds, when its host shuts down.
func TestStopTime(t *testing.T) {
	text, err := embedded.ReadFile("files/system.conf")
	if err != nil {
		t.Fatal(err)
	}
	_, value, found := strings.Cut(string(text), "\nDefaultTimeoutStopSec=")
	value, _, _ = strings.Cut(value, "\n")
	seconds, err := time.ParseDuration(value)
	if !found || err != nil || seconds <= 0 || seconds >= 10*time.Second {
		t.Errorf("DefaultTimeoutStopSec=%s (%v): want less than 10s", value, err)
	}
	if drops()["system.conf"] != "etc/systemd/system.conf.d/20-node.conf" {
		t.Error("it is not installed where systemd reads it")
	}
}
