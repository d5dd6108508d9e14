package server

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"testing"

	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/containerd/v2/core/remotes"
	"github.com/containerd/containerd/v2/core/remotes/docker"
	"github.com/opencontainers/go-digest"
	"github.com/opencontainers/image-spec/specs-go"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// serve serves the registry of a directory.
func serve(t *testing.T, dir string) *httptest.Server {
	t.Helper()
	return serveTo(t, dir, func(netip.Addr) bool { return true })
}

// serveTo serves a registry that accepts images from some addresses only.
func serveTo(t *testing.T, dir string, mayWrite func(netip.Addr) bool) *httptest.Server {
	t.Helper()
	r, err := Open(t.Context(), dir, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	r.mayWrite = mayWrite
	server := httptest.NewServer(r)
	t.Cleanup(func() {
		server.Close()
		r.Close()
	})
	return server
}

// call makes a request, and returns the answer with its body read.
func call(t *testing.T, method, url, body string, header ...string) (*http.Response, string) {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), method, url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; i < len(header); i += 2 {
		request.Header.Set(header[i], header[i+1])
	}
	answer, err := http.DefaultClient.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	if err != nil {
		t.Fatal(err)
	}
	return answer, string(text)
}

// want makes a request and requires a status and, for an error, its code.
func want(t *testing.T, status int, code, method, url, body string, header ...string) *http.Response {
	t.Helper()
	answer, text := call(t, method, url, body, header...)
	if answer.StatusCode != status || !strings.Contains(text, code) {
		t.Errorf("%s %s: %s %s; want %d %s", method, url, answer.Status, text, status, code)
	}
	return answer
}

// image returns a small image: its blobs by digest, and their order.
func image(text string) (desc ocispec.Descriptor, all map[string][]byte, order []ocispec.Descriptor) {
	all = map[string][]byte{}
	add := func(mediaType string, content []byte) ocispec.Descriptor {
		d := ocispec.Descriptor{MediaType: mediaType, Digest: digest.FromBytes(content), Size: int64(len(content))}
		all[d.Digest.String()] = content
		order = append(order, d)
		return d
	}
	config := add(ocispec.MediaTypeImageConfig, []byte(`{"architecture":"amd64","os":"linux"}`))
	layer := add(ocispec.MediaTypeImageLayer, bytes.Repeat([]byte(text), 100_000))
	manifest, _ := json.Marshal(ocispec.Manifest{ // JSON can encode every field
		Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: ocispec.MediaTypeImageManifest, Config: config, Layers: []ocispec.Descriptor{layer},
	})
	return add(ocispec.MediaTypeImageManifest, manifest), all, order
}

// TestPushAndPull: containerd's client, which nodes use, pushes and pulls images. After a restart
// the registry still has every name.
func TestPushAndPull(t *testing.T) {
	dir := t.TempDir()
	first := serve(t, dir)
	desc, parts, order := image("layer ")
	host := strings.TrimPrefix(first.URL, "http://")
	for _, name := range []string{"/app:1", "/team/app:2", "/app:1"} {
		resolver := docker.NewResolver(docker.ResolverOptions{}) // it caches pushes
		pusher, err := resolver.Pusher(t.Context(), host+name)
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range order {
			push(t, pusher, d, parts[d.Digest.String()])
		}
	}
	first.Close()
	second := serve(t, dir)
	host = strings.TrimPrefix(second.URL, "http://")
	resolver := docker.NewResolver(docker.ResolverOptions{})
	for _, name := range []string{"/app:1", "/team/app:2", "/team/app@" + desc.Digest.String()} {
		at, got, err := resolver.Resolve(t.Context(), host+name)
		if err != nil || got.Digest != desc.Digest || got.MediaType != desc.MediaType || got.Size != desc.Size {
			t.Fatalf("%s: %+v, %v", name, got, err)
		}
		fetcher, err := resolver.Fetcher(t.Context(), at)
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range order {
			body, err := fetcher.Fetch(t.Context(), d)
			if err != nil {
				t.Fatalf("%s of %s: %v", d.MediaType, name, err)
			}
			text, err := io.ReadAll(body)
			body.Close()
			if err != nil || !bytes.Equal(text, parts[d.Digest.String()]) {
				t.Errorf("%s of %s: %d bytes, %v", d.MediaType, name, len(text), err)
			}
		}
	}
	for path, list := range map[string]string{
		"/v2/_catalog": `{"repositories":["app","team/app"]}`, "/v2/team/app/tags/list": `{"name":"team/app","tags":["2"]}`,
		"/v2/_catalog?n=1&last=app": `{"repositories":["team/app"]}`,
	} {
		if _, text := call(t, http.MethodGet, second.URL+path, ""); strings.TrimSpace(text) != list {
			t.Errorf("%s: %s", path, text)
		}
	}
	if answer, _ := call(t, http.MethodGet, second.URL+"/v2/_catalog?n=1", ""); !strings.Contains(answer.Header.Get("Link"), "last=app") {
		t.Errorf("the rest of the catalog is at %q", answer.Header.Get("Link"))
	}
}

func push(t *testing.T, pusher remotes.Pusher, d ocispec.Descriptor, text []byte) {
	t.Helper()
	w, err := pusher.Push(t.Context(), d)
	if err != nil {
		if strings.Contains(err.Error(), "already exists") {
			return
		}
		t.Fatal(err)
	}
	defer w.Close()
	if err := content.Copy(t.Context(), w, bytes.NewReader(text), d.Size, d.Digest); err != nil {
		t.Fatalf("%s: %v", d.MediaType, err)
	}
}

// TestUploads: uploads in parts, with the errors that clients depend on.
func TestUploads(t *testing.T) {
	server := serve(t, t.TempDir())
	uploads := server.URL + "/v2/a/b/blobs/uploads/"
	d := digest.FromString("onetwo")
	begin := func() string {
		return server.URL + want(t, http.StatusAccepted, "", http.MethodPost, uploads, "").Header.Get("Location")
	}
	at := begin()
	if answer := want(t, http.StatusAccepted, "", http.MethodPatch, at, "one", "Content-Range", "0-2"); answer.Header.Get("Range") != "0-2" {
		t.Errorf("there is %q", answer.Header.Get("Range"))
	}
	want(t, http.StatusRequestedRangeNotSatisfiable, "BLOB_UPLOAD_INVALID", http.MethodPatch, at, "two", "Content-Range", "9-11")
	want(t, http.StatusAccepted, "", http.MethodPatch, at, "two", "Content-Range", "3-5")
	if answer := want(t, http.StatusNoContent, "", http.MethodGet, at, ""); answer.Header.Get("Range") != "0-5" {
		t.Errorf("there is %q", answer.Header.Get("Range"))
	}
	want(t, http.StatusCreated, "", http.MethodPut, at+"?digest="+d.String(), "")
	want(t, http.StatusNotFound, "BLOB_UPLOAD_UNKNOWN", http.MethodPatch, at, "")
	if _, text := call(t, http.MethodGet, server.URL+"/v2/other/blobs/"+d.String(), ""); text != "onetwo" {
		t.Errorf("the blob is %q", text)
	}
	if answer, text := call(t, http.MethodGet, server.URL+"/v2/a/b/blobs/"+d.String(), "", "Range", "bytes=3-"); answer.StatusCode != http.StatusPartialContent || text != "two" {
		t.Errorf("a part of it: %s %q", answer.Status, text)
	}
	// A single upload, and one of an existing blob.
	want(t, http.StatusCreated, "", http.MethodPost, uploads+"?digest="+digest.FromString("x").String(), "x")
	want(t, http.StatusCreated, "", http.MethodPost, uploads+"?digest="+digest.FromString("x").String(), "x")
	want(t, http.StatusCreated, "", http.MethodPost, uploads+"?mount="+d.String()+"&from=other", "")
	want(t, http.StatusAccepted, "", http.MethodPost, uploads+"?mount="+digest.FromString("absent").String()+"&from=other", "")
	want(t, http.StatusCreated, "", http.MethodPut, begin()+"?digest="+d.String(), "onetwo")
	// Content that does not match its digest is not stored.
	at = begin()
	want(t, http.StatusBadRequest, "DIGEST_INVALID", http.MethodPut, at+"?digest="+digest.FromString("y").String(), "z")
	want(t, http.StatusNotFound, "BLOB_UNKNOWN", http.MethodGet, server.URL+"/v2/a/b/blobs/"+digest.FromString("y").String(), "")
	want(t, http.StatusBadRequest, "DIGEST_INVALID", http.MethodPut, begin()+"?digest=sha256:1", "z")
	at = begin()
	want(t, http.StatusNoContent, "", http.MethodDelete, at, "")
	want(t, http.StatusNotFound, "BLOB_UPLOAD_UNKNOWN", http.MethodGet, at, "")
}

func TestManifests(t *testing.T) {
	server := serve(t, t.TempDir())
	at := server.URL + "/v2/app/manifests/"
	absent := fmt.Sprintf(`{"mediaType":%q,"layers":[{"digest":%q}]}`, ocispec.MediaTypeImageManifest, digest.FromString("absent"))
	want(t, http.StatusNotFound, "MANIFEST_BLOB_UNKNOWN", http.MethodPut, at+"1", absent)
	want(t, http.StatusNotFound, "MANIFEST_BLOB_UNKNOWN", http.MethodPut, at+"1", fmt.Sprintf(`{"manifests":[{"digest":%q}]}`, digest.FromString("absent")))
	want(t, http.StatusBadRequest, "MANIFEST_INVALID", http.MethodPut, at+"1", "no manifest")
	want(t, http.StatusRequestEntityTooLarge, "MANIFEST_INVALID", http.MethodPut, at+"1", strings.Repeat(" ", largestManifest+1))
	want(t, http.StatusBadRequest, "DIGEST_INVALID", http.MethodPut, at+digest.FromString("other").String(), "{}")
	for _, body := range []string{"{}", `{"a":1}`, "{}"} {
		want(t, http.StatusCreated, "", http.MethodPut, at+"1", body, "Content-Type", "application/x.test; charset=utf-8")
	}
	want(t, http.StatusCreated, "", http.MethodPut, at+"2", "{}")
	answer := want(t, http.StatusOK, "{}", http.MethodGet, at+"1", "")
	d := digest.FromString("{}").String()
	if answer.Header.Get("Content-Type") != "application/x.test" && answer.Header.Get("Docker-Content-Digest") != d {
		t.Errorf("headers %v", answer.Header)
	}
	// An index of existing manifests.
	want(t, http.StatusCreated, "", http.MethodPut, at+"both", fmt.Sprintf(`{"manifests":[{"digest":%q}]}`, d))
	want(t, http.StatusOK, "", http.MethodHead, at+"both", "")
	want(t, http.StatusAccepted, "", http.MethodDelete, at+"1", "")
	want(t, http.StatusNotFound, "MANIFEST_UNKNOWN", http.MethodGet, at+"1", "")
	want(t, http.StatusAccepted, "", http.MethodDelete, at+d, "")
	want(t, http.StatusNotFound, "MANIFEST_UNKNOWN", http.MethodGet, at+"2", "")
	want(t, http.StatusNotFound, "MANIFEST_UNKNOWN", http.MethodDelete, at+"2", "")
}

// TestPaths: only valid names lead to files, and a directory is never listed.
func TestPaths(t *testing.T) {
	server := serve(t, t.TempDir())
	d := digest.FromString("x").String()
	for _, c := range []struct {
		status             int
		code, method, path string
	}{
		{http.StatusOK, "{}", http.MethodGet, "/v2/"},
		{http.StatusOK, "{}", http.MethodGet, "/v2"},
		{http.StatusNotFound, "UNSUPPORTED", http.MethodGet, "/"},
		{http.StatusNotFound, "UNSUPPORTED", http.MethodGet, "/v2/app/other/x"},
		{http.StatusNotFound, "NAME_UNKNOWN", http.MethodGet, "/v2/app/tags/list"},
		{http.StatusBadRequest, "NAME_INVALID", http.MethodGet, "/v2/App/tags/list"},
		{http.StatusBadRequest, "NAME_INVALID", http.MethodPut, "/v2/%2e%2e/manifests/1"},
		{http.StatusBadRequest, "NAME_INVALID", http.MethodPut, "/v2/a/_tags/manifests/1"},
		{http.StatusBadRequest, "NAME_INVALID", http.MethodPut, "/v2/" + strings.Repeat("a", 300) + "/manifests/1"},
		{http.StatusNotFound, "MANIFEST_UNKNOWN", http.MethodPut, "/v2/a/manifests/..%2f..%2fx"},
		{http.StatusNotFound, "MANIFEST_UNKNOWN", http.MethodPut, "/v2/a/manifests/1~"},
		{http.StatusNotFound, "BLOB_UPLOAD_UNKNOWN", http.MethodPatch, "/v2/a/blobs/uploads/..%2fx"},
		{http.StatusBadRequest, "DIGEST_INVALID", http.MethodGet, "/v2/a/blobs/sha256:..%2f"},
		{http.StatusMethodNotAllowed, "UNSUPPORTED", http.MethodDelete, "/v2/a/blobs/" + d},
		{http.StatusMethodNotAllowed, "UNSUPPORTED", http.MethodGet, "/v2/a/blobs/uploads/"},
		{http.StatusAccepted, "", http.MethodPost, "/v2/a/blobs/uploads"},
		{http.StatusMethodNotAllowed, "UNSUPPORTED", http.MethodPost, "/v2/a/manifests/1"},
	} {
		want(t, c.status, c.code, c.method, server.URL+c.path, "{}")
	}
}

// TestServe: the server ends with its context, and the next server can use the directory.
func TestServe(t *testing.T) {
	dir := t.TempDir()
	for range 2 {
		ctx, cancel := context.WithCancel(t.Context())
		r, err := Open(ctx, dir, slog.New(slog.DiscardHandler))
		if err != nil {
			t.Fatal(err)
		}
		var lc net.ListenConfig
		listener, err := lc.Listen(ctx, "tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		ended := make(chan error, 1)
		go func() { ended <- r.Serve(ctx, listener) }()
		want(t, http.StatusAccepted, "", http.MethodPost, "http://"+listener.Addr().String()+"/v2/a/blobs/uploads/", "")
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
		if err := r.Close(); err != nil {
			t.Error(err)
		}
	}
	r, err := Open(t.Context(), dir, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	if left, err := r.content.ListStatuses(t.Context()); err != nil || len(left) > 0 {
		t.Errorf("uploads of processes that are gone: %v, %v", left, err)
	}
}
