package server

import (
	"log/slog"
	"net/http"
	"net/netip"
	"testing"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// TestOnlyTheHostWrites: without this check a pod of a cluster could overwrite tags that others
// run. All clients except the host can only read.
func TestOnlyTheHostWrites(t *testing.T) {
	dir := t.TempDir()
	host := serve(t, dir)
	const content = `{"architecture":"amd64"}`
	blob := digest.FromString(content)
	want(t, http.StatusCreated, "", http.MethodPost, host.URL+"/v2/app/blobs/uploads/?digest="+blob.String(), content)
	const manifest = `{"schemaVersion":2,"mediaType":"` + ocispec.MediaTypeImageIndex + `","manifests":[]}`
	want(t, http.StatusCreated, "", http.MethodPut, host.URL+"/v2/app/manifests/1", manifest, "Content-Type", ocispec.MediaTypeImageIndex)

	pod := serveTo(t, dir, func(a netip.Addr) bool { return a == netip.MustParseAddr("192.0.2.1") })
	for _, write := range [][2]string{
		{http.MethodPut, "/v2/app/manifests/1"},
		{http.MethodPut, "/v2/app/manifests/2"},
		{http.MethodDelete, "/v2/app/manifests/" + digest.FromString(manifest).String()},
		{http.MethodDelete, "/v2/app/blobs/" + blob.String()},
		{http.MethodPost, "/v2/app/blobs/uploads/"},
		{http.MethodPost, "/v2/other/blobs/uploads/?mount=" + blob.String() + "&from=app"},
		{http.MethodPatch, "/v2/app/blobs/uploads/1"},
		{http.MethodPut, "/v2/app/blobs/uploads/1?digest=" + blob.String()},
		{http.MethodDelete, "/v2/app/blobs/uploads/1"},
	} {
		answer := want(t, http.StatusForbidden, "DENIED", write[0], pod.URL+write[1], manifest, "Content-Type", ocispec.MediaTypeImageIndex,
			"X-Forwarded-For", "192.0.2.1", "Forwarded", "for=192.0.2.1")
		if answer.Header.Get(WritersHeader) != "host" {
			t.Errorf("%s %s: the answer does not say who may write", write[0], write[1])
		}
	}
	want(t, http.StatusOK, manifest, http.MethodGet, pod.URL+"/v2/app/manifests/1", "")
	want(t, http.StatusOK, content, http.MethodGet, pod.URL+"/v2/app/blobs/"+blob.String(), "")
	want(t, http.StatusOK, "", http.MethodHead, pod.URL+"/v2/app/manifests/1", "")
	want(t, http.StatusNotFound, "", http.MethodGet, pod.URL+"/v2/app/manifests/2", "")
}

// TestFromHost: other containers on a container's network are not its host. The registry is opened
// as in its container.
func TestFromHost(t *testing.T) {
	r, err := Open(t.Context(), t.TempDir(), slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	for address, host := range map[string]bool{"127.0.0.1": true, "::1": true, "::ffff:127.0.0.1": true, "192.0.2.77": false, "2001:db8::77": false, "0.0.0.0": false} {
		if got := r.mayWrite(netip.MustParseAddr(address)); got != host {
			t.Errorf("%s: %v, want %v", address, got, host)
		}
	}
}
