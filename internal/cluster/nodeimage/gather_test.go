package nodeimage

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/berthrun/berth/internal/cluster/nodeimage/release"
	"github.com/berthrun/berth/internal/errs"
)

// static is a fake program of a component: the header of a static program for this machine.
func static() string {
	header := make([]byte, 64)
	copy(header, "\x7fELF\x02\x01\x01")
	binary.LittleEndian.PutUint16(header[16:], 2)
	binary.LittleEndian.PutUint16(header[18:], 62)
	binary.LittleEndian.PutUint32(header[20:], 1)
	binary.LittleEndian.PutUint16(header[52:], 64)
	binary.LittleEndian.PutUint16(header[54:], 56)
	binary.LittleEndian.PutUint16(header[58:], 64)
	return string(header)
}

// adm answers like kubeadm and the kubelet.
const adm = "#!/bin/sh\ncase \"$*\" in 'version -o short') echo v1.36.3 ;; --version) echo Kubernetes v1.36.3 ;; *) echo '" + listed + "' ;; esac\n"

func archive(t *testing.T, files map[string]string) string {
	t.Helper()
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	for name, text := range files {
		if err := w.WriteHeader(&tar.Header{Name: name, Size: int64(len(text)), Mode: 0o755}); err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write([]byte(text)); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return out.String()
}

// server are the programs of a release of Kubernetes.
func server() map[string]string {
	files := map[string]string{"kubeadm": adm, "kubelet": adm, "kubectl": adm}
	for _, name := range []string{"kube-apiserver", "kube-controller-manager", "kube-scheduler", "kube-proxy"} {
		files[name] = static()
	}
	return files
}

// TestGather: programs of Kubernetes come from a release, an archive, or a directory. etcd and
// CoreDNS come from the given sources, or from the releases that this Kubernetes requires.
func TestGather(t *testing.T) {
	files := map[string]string{
		"/v1.36.3/kubernetes-server-linux-" + runtime.GOARCH + ".tar.gz": archive(t, server()),
		"/v3.6.8/etcd-v3.6.8-linux-" + runtime.GOARCH + ".tar.gz":        archive(t, map[string]string{"etcd": static()}),
		"/v1.14.2/coredns_1.14.2_linux_" + runtime.GOARCH + ".tgz":       archive(t, map[string]string{"coredns": static()}),
		"/own": static(),
	}
	site := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		name, sum := strings.CutSuffix(r.URL.Path, ".sha256")
		text, found := files[name]
		switch {
		case !found:
			http.NotFound(w, r)
		case sum:
			fmt.Fprintf(w, "%x", sha256.Sum256([]byte(text)))
		default:
			fmt.Fprint(w, text)
		}
	}))
	t.Cleanup(site.Close)
	dir, whole, file := t.TempDir(), t.TempDir(), filepath.Join(t.TempDir(), "server.tar")
	for name, text := range server() {
		for _, to := range []string{dir, whole} {
			if err := os.WriteFile(filepath.Join(to, name), []byte(text), 0o755); err != nil {
				t.Fatal(err)
			}
		}
	}
	for name, text := range map[string]string{filepath.Join(whole, "etcd"): static(), filepath.Join(whole, "coredns"): static(), file: archive(t, server())} {
		if err := os.WriteFile(name, []byte(text), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	sites := release.Sites{Kubernetes: site.URL, Etcd: site.URL, CoreDNS: site.URL}
	for _, c := range []struct {
		Options
		kind error
		said string
	}{
		{Options: Options{Kubernetes: "v1.36.3"}},
		{Options: Options{Kubernetes: site.URL + "/v1.36.3/kubernetes-server-linux-" + runtime.GOARCH + ".tar.gz", CoreDNS: site.URL + "/own"}},
		{Options: Options{Kubernetes: file, Etcd: filepath.Join(whole, "etcd")}},
		{Options: Options{Kubernetes: whole}},
		{Options: Options{Kubernetes: dir, Etcd: Released, CoreDNS: Released}},
		{Options{Kubernetes: dir, Etcd: Released}, errs.NotFound, "has no coredns;"},
		{Options{Kubernetes: "v1.36.4"}, errs.NotFound, "v1.36.4"},
		{Options{Kubernetes: "kubernetes"}, errs.Invalid, "no such directory or archive"},
		{Options{Kubernetes: whole, Etcd: filepath.Join(dir, "kubeadm")}, errs.Invalid, "etcd is not a program"},
	} {
		c.Image, c.Sites, c.Work = "a:1", sites, t.TempDir()
		b := &builder{Options: c.Options}
		err := b.check()
		steps := []func(context.Context) error{b.programs}
		if b.fetched {
			steps = []func(context.Context) error{b.fetch, b.programs}
		}
		if len(b.separate()) > 0 {
			steps = append(steps, b.fetchOthers)
		}
		for _, do := range steps {
			if err == nil {
				err = do(t.Context())
			}
		}
		if !errors.Is(err, c.kind) || err != nil && !strings.Contains(err.Error(), c.said) {
			t.Errorf("%+v: %v, want %v, %q", c.Options, err, c.kind, c.said)
		}
		if err != nil {
			continue
		}
		if err := checkPrograms(b.Kubernetes, (&builder{}).expected()); err != nil || b.version != "v1.36.3" {
			t.Errorf("%+v: %v", c.Options, err)
		}
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) != len(server()) {
		t.Errorf("what was given has become %v, %v", left, err)
	}
}

// TestFullName: every engine knows the image by the full name that it was given.
func TestFullName(t *testing.T) {
	for name, want := range map[string]string{
		"localhost/berth/node:latest":         "localhost/berth/node:latest",
		"kindest/node:latest":                 "docker.io/kindest/node:latest",
		"mine":                                "docker.io/library/mine:latest",
		"registry.example:5000/a/b:1":         "registry.example:5000/a/b:1",
		"a/Upper":                             "",
		"":                                    "",
		"a@sha256:" + strings.Repeat("0", 64): "",
	} {
		got, err := fullName(name)
		if got != want || (err == nil) != (want != "") || err != nil && !errors.Is(err, errs.Invalid) {
			t.Errorf("%q: %q, %v", name, got, err)
		}
	}
}

// TestNoInternet: the error of a failed download names an offline alternative. The error for a
// wrong file does not.
func TestNoInternet(t *testing.T) {
	site := httptest.NewServer(http.NotFoundHandler())
	site.Close() // the server has stopped
	for _, place := range []string{"v1.36.3", "stable", site.URL + "/kubernetes-server-linux-amd64.tar.gz"} {
		b := &builder{Options: Options{Kubernetes: place, Image: "a", Work: t.TempDir(), Sites: release.Sites{Kubernetes: site.URL, Etcd: site.URL, CoreDNS: site.URL}}}
		if err := b.check(); err != nil {
			t.Fatal(err)
		}
		err := b.fetch(t.Context())
		if !errors.Is(err, errs.Unavailable) || !strings.Contains(err.Error(), "--kubernetes DIR") || !strings.Contains(err.Error(), "--releases URL") {
			t.Errorf("%s: %v", place, err)
		}
	}
	wrong := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "other") }))
	defer wrong.Close()
	b := &builder{Options: Options{Kubernetes: wrong.URL + "/k.tar.gz#sha256:" + strings.Repeat("0", 64), Image: "a", Work: t.TempDir()}}
	if err := b.check(); err != nil {
		t.Fatal(err)
	}
	if err := b.fetch(t.Context()); !errors.Is(err, errs.Invalid) || strings.Contains(err.Error(), "--releases") {
		t.Errorf("a wrong sum: %v", err)
	}
}
