package assets_test

import (
	"archive/tar"
	"archive/zip"
	"bytes"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"
	"github.com/opencontainers/go-digest"
	"github.com/ulikunitz/xz"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/provision"
	"github.com/berthrun/berth/internal/provision/assets"
	"github.com/berthrun/berth/internal/provision/provisiontest"
)

func newStore() (*assets.Store, *provisiontest.Host) {
	h := provisiontest.New()
	return assets.New(h.Files(), "/var/lib/assets"), h
}

// tarball has a file, a link to it, and a link that leads out of the archive.
func tarball(t *testing.T) []byte {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, h := range []tar.Header{
		{Name: "./bin/", Typeflag: tar.TypeDir, Mode: 0o755},
		{Name: "./bin/rt", Typeflag: tar.TypeReg, Mode: 0o755, Size: 7},
		{Name: "bin/alias", Typeflag: tar.TypeSymlink, Linkname: "rt"},
		{Name: "bin/out", Typeflag: tar.TypeSymlink, Linkname: "../../../etc/passwd"},
		{Name: "../../evil", Typeflag: tar.TypeReg, Size: 0},
	} {
		if err := w.WriteHeader(&h); err != nil {
			t.Fatal(err)
		}
		if h.Size > 0 {
			io.WriteString(w, "runtime")
		}
	}
	w.Close()
	return b.Bytes()
}

func packed(t *testing.T, data []byte, pack func(io.Writer) (io.WriteCloser, error)) []byte {
	t.Helper()
	var b bytes.Buffer
	w, err := pack(&b)
	if err != nil {
		t.Fatal(err)
	}
	w.Write(data)
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func TestFormats(t *testing.T) {
	plain := tarball(t)
	var zipped bytes.Buffer
	z := zip.NewWriter(&zipped)
	f, err := z.Create("bin/rt")
	if err != nil {
		t.Fatal(err)
	}
	io.WriteString(f, "runtime")
	z.Close()
	for name, data := range map[string][]byte{
		"a.tar":     plain,
		"a.tar.gz":  packed(t, plain, func(w io.Writer) (io.WriteCloser, error) { return gzip.NewWriter(w), nil }),
		"a.tar.xz":  packed(t, plain, func(w io.Writer) (io.WriteCloser, error) { return xz.NewWriter(w) }),
		"a.tar.zst": packed(t, plain, func(w io.Writer) (io.WriteCloser, error) { return zstd.NewWriter(w) }),
		"a.zip":     zipped.Bytes(),
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), name)
			if err := os.WriteFile(path, data, 0o600); err != nil {
				t.Fatal(err)
			}
			s, _ := newStore()
			ref := provision.AssetRef{Name: "a", Sources: []string{path}, Digest: digest.FromBytes(data).String()}
			if _, err := s.Members(ref); !errors.Is(err, errs.NotFound) {
				t.Errorf("members before the fetch: %v, want NotFound", err)
			}
			list, err := s.Fetch(t.Context(), ref)
			if err != nil {
				t.Fatal(err)
			}
			want := []string{"bin/rt"}
			for _, m := range list {
				if strings.Contains(m.Path, "..") || strings.HasPrefix(m.Path, "/") || m.Path == "bin/out" {
					t.Errorf("member %q leads out of the archive", m.Path)
				}
				if m.Path == "bin/alias" {
					want = append(want, "bin/alias")
				}
			}
			if name != "a.zip" && len(want) != 2 {
				t.Errorf("the link is not a member: %+v", list)
			}
			got := map[string]string{}
			err = s.Read(t.Context(), ref, want, func(member string, content io.Reader) error {
				data, err := io.ReadAll(content)
				got[member] = string(data)
				return err
			})
			if err != nil {
				t.Fatal(err)
			}
			for _, member := range want {
				if got[member] != "runtime" {
					t.Errorf("%s has content %q", member, got[member])
				}
			}
		})
	}
}

// TestOneContentOfTwoNames: a file that was fetched before under another name is found under its
// own name.
func TestOneContentOfTwoNames(t *testing.T) {
	store, _ := newStore()
	dir := t.TempDir()
	for _, name := range []string{"first", "second"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte("tool"), 0o755); err != nil {
			t.Fatal(err)
		}
		ref := provision.AssetRef{Name: name, Sources: []string{filepath.Join(dir, name)}, Digest: digest.FromString("tool").String(), Format: "raw"}
		list, err := store.Fetch(t.Context(), ref)
		if err != nil || len(list) != 1 || list[0].Path != name {
			t.Fatalf("members of %s: %+v, %v", name, list, err)
		}
		var read string
		err = store.Read(t.Context(), ref, []string{name}, func(_ string, content io.Reader) error {
			data, err := io.ReadAll(content)
			read = string(data)
			return err
		})
		if err != nil || read != "tool" {
			t.Errorf("%s reads as %q, %v", name, read, err)
		}
	}
}

func TestMirrorsAndHashes(t *testing.T) {
	data := []byte("binary")
	good := digest.SHA512.FromBytes(data).String()
	asked := 0
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked++
		switch r.URL.Path {
		case "/good":
			w.Write(data)
		case "/bad":
			io.WriteString(w, "something else")
		case "/cut":
			w.Header().Set("Content-Length", "6")
			io.WriteString(w, "bin")
		case "/busy":
			w.WriteHeader(http.StatusServiceUnavailable)
		default:
			http.NotFound(w, r)
		}
	}))
	defer server.Close()
	for _, c := range []struct {
		name    string
		sources []string
		digest  string
		kind    error
		words   string
	}{
		{"first that works", []string{"/none", "/busy", "/bad", "/cut", "/good"}, good, nil, ""},
		{"bad hash", []string{"/bad"}, good, errs.Invalid, "/bad: "},
		{"busy", []string{"/busy"}, good, errs.Unavailable, "503"},
		{"cut", []string{"/cut"}, good, errs.Unavailable, "the connection broke"},
		{"none", []string{"/none"}, good, errs.NotFound, "404"},
		{"no digest", []string{"/good"}, "", errs.Invalid, "no digest"},
		{"weak digest", []string{"/good"}, "md5:00", errs.Invalid, "not sha256"},
	} {
		t.Run(c.name, func(t *testing.T) {
			s, h := newStore()
			ref := provision.AssetRef{Name: "a", Digest: c.digest, Format: "raw"}
			for _, source := range c.sources {
				ref.Sources = append(ref.Sources, server.URL+source)
			}
			_, err := s.Fetch(t.Context(), ref)
			if !errors.Is(err, c.kind) || err != nil && !strings.Contains(err.Error(), c.words) {
				t.Fatalf("error %v, want kind %v with %q", err, c.kind, c.words)
			}
			if err != nil {
				if tree := strings.Join(h.Tree(), "\n"); strings.Contains(tree, "something else") {
					t.Error("content with a bad hash was kept")
				}
				return
			}
			before := asked
			again := assets.New(h.Files(), "/var/lib/assets")
			if _, err := again.Fetch(t.Context(), ref); err != nil || asked != before {
				t.Errorf("a second fetch asked the server %d times, error %v; want the cache", asked-before, err)
			}
		})
	}
}

// TestEndlessSource: a server cannot fill the disk, whether or not it says how much it sends.
func TestEndlessSource(t *testing.T) {
	for _, length := range []string{"", "1000000000"} {
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			if length != "" {
				w.Header().Set("Content-Length", length)
			}
			for data := make([]byte, 32<<10); ; {
				if _, err := w.Write(data); err != nil {
					return
				}
			}
		}))
		s, h := newStore()
		h.Free = 1 << 20
		ref := provision.AssetRef{Name: "a", Sources: []string{server.URL + "/a.tar"}, Digest: digest.FromString("a").String()}
		if _, err := s.Fetch(t.Context(), ref); !errors.Is(err, errs.Exhausted) {
			t.Errorf("length %q: %v, want Exhausted", length, err)
		}
		server.Close()
	}
}

// crowded is a disk on which a file left takes what an asset needs.
type crowded struct {
	provision.Files
	left string
}

func (c crowded) Room(string) int64 {
	if provision.Exists(c.Files, c.left) {
		return 10
	}
	return 20
}

// TestLeftByAKilledDownload: what it left does not make the next download fail.
func TestLeftByAKilledDownload(t *testing.T) {
	const content = "binary" // of which there must fit two
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, content) }))
	defer server.Close()
	_, h := newStore()
	ref := provision.AssetRef{Name: "a", Sources: []string{server.URL}, Digest: digest.FromString(content).String(), Format: "raw"}
	files := crowded{h.Files(), "/var/lib/assets/" + strings.ReplaceAll(ref.Digest, ":", "-") + ".left"}
	if err := files.Mkdir("/var/lib/assets", provision.Attr{Mode: 0o700}); err != nil {
		t.Fatal(err)
	}
	if err := files.Write(files.left, strings.NewReader("bin"), provision.Attr{Mode: 0o600}); err != nil {
		t.Fatal(err)
	}
	if _, err := assets.New(files, "/var/lib/assets").Fetch(t.Context(), ref); err != nil {
		t.Error(err)
	}
}

// slowDisk reads what is written to one file, and then waits.
type slowDisk struct {
	provision.Files
	file          string
	read, proceed chan struct{}
}

func (s slowDisk) Write(p string, r io.Reader, attr provision.Attr) error {
	if p != s.file {
		return s.Files.Write(p, r, attr)
	}
	data, err := io.ReadAll(r)
	close(s.read)
	<-s.proceed
	return errors.Join(err, s.Files.Write(p, bytes.NewReader(data), attr))
}

// TestDownloadsTogether: two servers cannot fill the disk either. A download that does not fit beside others waits for them, one
// of unknown size for all.
func TestDownloadsTogether(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.HasPrefix(r.URL.Path, "/unknown") {
			http.NewResponseController(w).Flush() // the header has no length
		}
		io.WriteString(w, r.URL.Path)
	}))
	defer server.Close()
	ref := func(path string, length int) provision.AssetRef {
		path += strings.Repeat("a", length-len(path))
		return provision.AssetRef{Name: "a", Sources: []string{server.URL + path}, Digest: digest.FromString(path).String(), Format: "raw"}
	}
	for name, c := range map[string]struct {
		first, second provision.AssetRef
		waits         bool
	}{
		"both fit":     {ref("/a", 20), ref("/b", 22), false},
		"one fits":     {ref("/a", 20), ref("/b", 23), true},
		"unknown size": {ref("/a", 20), ref("/unknown", 10), true},
	} {
		t.Run(name, func(t *testing.T) {
			_, h := newStore()
			h.Free = 64
			disk := slowDisk{h.Files(), "/var/lib/assets/" + strings.ReplaceAll(c.first.Digest, ":", "-"), make(chan struct{}), make(chan struct{})}
			s := assets.New(disk, "/var/lib/assets")
			first, second := make(chan error, 1), make(chan error, 1)
			go func() {
				_, err := s.Fetch(t.Context(), c.first)
				first <- err
			}()
			<-disk.read
			waits := make(chan struct{})
			go func() {
				_, err := s.Fetch(provision.WithNotes(t.Context(), func(string) { close(waits) }), c.second)
				second <- err
			}()
			if c.waits {
				<-waits
				close(disk.proceed)
			}
			if err := <-second; err != nil {
				t.Errorf("the second: %v", err)
			}
			if !c.waits {
				close(disk.proceed)
			}
			if err := <-first; err != nil {
				t.Errorf("the first: %v", err)
			}
		})
	}
}
