package release

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"crypto/sha512"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/berthrun/berth/internal/errs"
)

// archive is a gzipped tar file of names and their content.
func archive(t *testing.T, files ...string) string {
	t.Helper()
	var out bytes.Buffer
	z := gzip.NewWriter(&out)
	w := tar.NewWriter(z)
	for i := 0; i < len(files); i += 2 {
		if err := w.WriteHeader(&tar.Header{Name: files[i], Size: int64(len(files[i+1])), Mode: 0o644, Typeflag: tar.TypeReg}); err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write([]byte(files[i+1])); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(w.Close(), z.Close()); err != nil {
		t.Fatal(err)
	}
	return out.String()
}

func sha2(text string) string { return fmt.Sprintf("%x", sha256.Sum256([]byte(text))) }

// site serves files, and counts the requests for each.
type site struct {
	*httptest.Server
	files map[string]string
	asked map[string]int
	// fails is the number of responses for a path that fail.
	fails map[string]int
}

func serve(t *testing.T, start func(http.Handler) *httptest.Server) *site {
	s := &site{files: map[string]string{}, asked: map[string]int{}, fails: map[string]int{}}
	s.Server = start(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.asked[r.URL.Path]++
		text, found := s.files[r.URL.Path]
		switch {
		case !found:
			http.NotFound(w, r)
		case strings.HasPrefix(text, "http"):
			http.Redirect(w, r, text, http.StatusFound)
		case s.fails[r.URL.Path] > 0:
			s.fails[r.URL.Path]--
			if s.fails[r.URL.Path] == 0 {
				w.Header().Set("Content-Length", "1000000") // the body is too short
				fmt.Fprint(w, text)
				return
			}
			w.WriteHeader(http.StatusBadGateway)
		default:
			fmt.Fprint(w, text)
		}
	}))
	t.Cleanup(s.Close)
	return s
}

func (s *site) fetcher(t *testing.T) *Fetcher {
	return &Fetcher{
		Sites: Sites{Kubernetes: s.URL, Etcd: s.URL + "/etcd", CoreDNS: s.URL + "/coredns"}, Arch: "riscv64", Work: t.TempDir(), Transport: s.Client().Transport,
		Pause: time.Millisecond,
	}
}

func read(t *testing.T, file string) string {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if info, err := os.Stat(file); err != nil || info.Mode().Perm() != 0o755 {
		t.Errorf("%s: %v, %v", file, info.Mode(), err)
	}
	return string(text)
}

// TestReleases: which checksum files each project publishes, and the names of its releases.
func TestReleases(t *testing.T) {
	s := serve(t, httptest.NewServer)
	server := archive(t, "kubernetes/LICENSES", "x", "kubernetes/server/bin/kubeadm", "adm", "kubernetes/server/bin/kube-proxy.tar", "image", "kubernetes/server/bin/kube-proxy", "proxy")
	const at = "/v1.36.3/kubernetes-server-linux-riscv64.tar.gz"
	s.files[at], s.files[at+".sha512"] = server, fmt.Sprintf("%x", sha512.Sum512([]byte(server)))
	s.files["/release/stable-1.36.txt"], s.files["/release/stable.txt"], s.files["/release/latest.txt"] = "v1.36.3\n", "v1.36.3", "<html>"
	const etcd, dns = "/etcd/v3.6.8/etcd-v3.6.8-linux-riscv64.tar.gz", "/coredns/v1.14.2/coredns_1.14.2_linux_riscv64.tgz"
	s.files[etcd] = archive(t, "etcd-v3.6.8-linux-riscv64/etcd", "etcd")
	s.files["/etcd/v3.6.8/SHA256SUMS"] = strings.Repeat("0", 64) + "  etcd-v3.6.8-darwin-amd64.zip\n" + sha2(s.files[etcd]) + "  etcd-v3.6.8-linux-riscv64.tar.gz\n"
	s.files[dns] = archive(t, "coredns", "dns")
	s.files[dns+".sha256"] = sha2(s.files[dns]) + "  release/coredns_1.14.2_linux_riscv64.tgz\n"
	f := s.fetcher(t)
	for _, release := range []string{"v1.36.3", "1.36.3", "v1.36", "1.36", "stable", "stable-1.36"} {
		if !IsRelease(release) || IsURL(release) {
			t.Errorf("%s is no release", release)
		}
		if got, err := f.Server(t.Context(), release); err != nil || got != s.URL+at {
			t.Errorf("%s: %s, %v", release, got, err)
		}
	}
	for release, want := range map[string]error{"latest": errs.Invalid, "stable-1.99": errs.NotFound} {
		if _, err := f.Server(t.Context(), release); !errors.Is(err, want) {
			t.Errorf("%s: %v", release, err)
		}
	}
	for _, place := range []string{"", "bin", "./v1.36.3/bin", "v1", "v1.36.3.tar.gz"} {
		if IsRelease(place) {
			t.Errorf("%q is a release", place)
		}
	}
	dir := t.TempDir()
	if err := f.Programs(t.Context(), s.URL+at, dir, "kube-proxy", "kubeadm"); err != nil || read(t, filepath.Join(dir, "kubeadm")) != "adm" || read(t, filepath.Join(dir, "kube-proxy")) != "proxy" {
		t.Error(err)
	}
	for name, made := range map[string]func() (string, error){
		"etcd": func() (string, error) { return f.Etcd("3.6.8-0") }, "coredns": func() (string, error) { return f.CoreDNS("v1.14.2") },
	} {
		place, err := made()
		if err == nil {
			err = f.Programs(t.Context(), place, dir, name)
		}
		if err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	if read(t, filepath.Join(dir, "etcd")) != "etcd" || read(t, filepath.Join(dir, "coredns")) != "dns" {
		t.Error("other programs than were meant")
	}
	for tag, ask := range map[string]func(string) (string, error){"latest": f.Etcd, "edge": f.CoreDNS} {
		if _, err := ask(tag); !errors.Is(err, errs.Unsupported) {
			t.Errorf("%s: %v", tag, err)
		}
	}
	if left, err := os.ReadDir(f.Work); err != nil || len(left) > 0 {
		t.Errorf("left: %v, %v", left, err)
	}
}

// TestBroken: a wrong file is refused, and nothing of it stays.
func TestBroken(t *testing.T) {
	s := serve(t, httptest.NewServer)
	good := archive(t, "bin/a", "text")
	for path, text := range map[string]string{
		"/good.tar.gz": good, "/good.tar.gz.sha256": sha2(good), "/alone.tar.gz": good, "/other.tar.gz": good + "x", "/other.tar.gz.sha256": sha2(good),
		"/odd.tar.gz": good, "/odd.tar.gz.sha256": "moved", "/text.tar.gz": "no archive, but long enough to be a header of something", "/program": "#!",
	} {
		s.files[path] = text
	}
	f := s.fetcher(t)
	sum := "#sha256:" + sha2(good)
	for _, c := range []struct {
		place, said string
		kind        error
		names       string
	}{
		{s.URL + "/good.tar.gz", "", nil, "a"},
		{s.URL + "/alone.tar.gz" + sum, "", nil, "a"},
		{s.URL + "/program#sha256:" + strings.ToUpper(sha2("#!")), "", nil, "a"},
		{s.URL + "/good.tar.gz", "has no b", errs.NotFound, "a b"},
		{s.URL + "/alone.tar.gz", "#sha256:", errs.NotFound, "a"},
		{s.URL + "/absent.tar.gz" + sum, "there is no such file", errs.NotFound, "a"},
		{s.URL + "/other.tar.gz", "should have " + sha2(good), errs.Invalid, "a"},
		{s.URL + "/odd.tar.gz", `"sha256:moved" is not a checksum`, errs.Invalid, "a"},
		{s.URL + "/good.tar.gz#md5:00", "is not a checksum", errs.Invalid, "a"},
		{s.URL + "/text.tar.gz#sha256:" + sha2(s.files["/text.tar.gz"]), "is not an archive", errs.Invalid, "a"},
		{s.URL + "/program#sha256:" + sha2("#!"), "is not an archive", errs.Invalid, "a b"},
		{"http://192.0.2.1/good.tar.gz", "want https", errs.Invalid, "a"},
		{"/nonexistent/a.tar.gz", "cannot read /nonexistent/a.tar.gz", os.ErrNotExist, "a"},
	} {
		dir := t.TempDir()
		err := f.Programs(t.Context(), c.place, dir, strings.Fields(c.names)...)
		if !errors.Is(err, c.kind) || err != nil && !strings.Contains(err.Error(), c.said) {
			t.Errorf("%s: %v, want %v, %q", c.place, err, c.kind, c.said)
		}
		if left, err := os.ReadDir(f.Work); err != nil || len(left) > 0 {
			t.Errorf("%s: left %v, %v", c.place, left, err)
		}
	}
}

// TestAgain: a request to a server that fails is retried. A truncated body counts as a failure. The
// retries are limited, and a missing file is not retried.
func TestAgain(t *testing.T) {
	s := serve(t, httptest.NewServer)
	s.files["/a"], s.files["/a.sha256"] = "text", sha2("text")
	s.fails["/a"] = 2
	f := s.fetcher(t)
	dir := t.TempDir()
	if err := f.Programs(t.Context(), s.URL+"/a", dir, "a"); err != nil || read(t, filepath.Join(dir, "a")) != "text" || s.asked["/a"] != 3 {
		t.Errorf("%v, asked %v", err, s.asked)
	}
	s.fails["/a"] = 9
	if err := f.Programs(t.Context(), s.URL+"/a", dir, "a"); !errors.Is(err, errs.Unavailable) || !strings.Contains(err.Error(), "502") || s.asked["/a"] != 6 {
		t.Errorf("%v, asked %v", err, s.asked)
	}
	if err := f.Programs(t.Context(), s.URL+"/b", dir, "b"); !errors.Is(err, errs.NotFound) || s.asked["/b.sha512"] != 1 {
		t.Errorf("%v, asked %v", err, s.asked)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := f.Programs(ctx, s.URL+"/a", dir, "a"); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}

// TestNoWayBack: a download over https does not follow a redirect to http.
func TestNoWayBack(t *testing.T) {
	plain, tls := serve(t, httptest.NewServer), serve(t, httptest.NewTLSServer)
	plain.files["/a"], plain.files["/a.sha256"] = "text", sha2("text")
	tls.files["/a.sha256"], tls.files["/a"], tls.files["/b"], tls.files["/b.sha256"] = sha2("text"), plain.URL+"/a", "text", sha2("text")
	tls.files["/to-b"], tls.files["/to-b.sha256"] = tls.URL+"/b", sha2("text")
	f := tls.fetcher(t)
	if err := f.Programs(t.Context(), tls.URL+"/a", t.TempDir(), "a"); !errors.Is(err, errs.Invalid) || !strings.Contains(err.Error(), "not https") || plain.asked["/a"] > 0 {
		t.Errorf("%v, asked %v", err, plain.asked)
	}
	if err := f.Programs(t.Context(), tls.URL+"/to-b", t.TempDir(), "a"); err != nil {
		t.Error(err)
	}
	f.Transport = nil
	if err := f.Programs(t.Context(), tls.URL+"/b", t.TempDir(), "b"); err == nil || errors.Is(err, errs.Unavailable) || !strings.Contains(err.Error(), "certificate") || tls.asked["/b"] != 1 {
		t.Errorf("a certificate of nobody: %v, asked %v", err, tls.asked)
	}
}

// FuzzSum: for any checksum file of a server, the result is a valid checksum.
func FuzzSum(f *testing.F) {
	f.Add(sha2("a"), "a.tgz")
	f.Add("00  a.tgz\n"+sha2("b")+" *release/b.tgz\n", "b.tgz")
	f.Add("<html>", "a")
	f.Fuzz(func(t *testing.T, text, name string) {
		got, err := readSum("sha256", listed(text, name), "a server")
		if err != nil {
			if !errors.Is(err, errs.Invalid) {
				t.Error(err)
			}
			return
		}
		if len(got.hex) != 64 || got.hash().Size() != sha256.Size || !strings.Contains(strings.ToLower(text), got.hex) {
			t.Errorf("%q of %q", got, text)
		}
	})
}
