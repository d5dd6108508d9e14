package imagetest

import (
	"encoding/json"
	"fmt"
	"net/http"
	"regexp"
	"strconv"
	"strings"
	"sync"

	"github.com/opencontainers/go-digest"
	"github.com/opencontainers/image-spec/specs-go"
	imagespec "github.com/opencontainers/image-spec/specs-go/v1"
)

// Registry is a small read-only image registry: an http.Handler for a test's own
// server. It is safe for concurrent use.
type Registry struct {
	// User and Password, if set, are demanded: by the Basic scheme, or, with
	// Bearer, in exchange for Token at Realm.
	User, Password string
	Bearer         bool
	Token, Realm   string
	// Intercept, if set, sees each request first and may answer it by itself.
	Intercept func(w http.ResponseWriter, r *http.Request) (handled bool)

	mu        sync.Mutex
	blobs     map[digest.Digest]Blob
	manifests map[string]Blob
	requests  []string
	sent      map[digest.Digest]int64
}

// Push makes img available as repository:tag and by digest.
func (r *Registry) Push(repository, tag string, img *Image) {
	for _, blob := range append([]Blob{img.Config}, img.Layers...) {
		r.PushBlob(blob)
	}
	r.PushManifest(repository, tag, img.Manifest)
}

// PushIndex makes an index of images available, one for each platform.
func (r *Registry) PushIndex(repository, tag string, images map[string]*Image) Blob {
	index := imagespec.Index{Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: imagespec.MediaTypeImageIndex}
	for platform, img := range images {
		os, arch, _ := strings.Cut(platform, "/")
		r.Push(repository, "", img)
		desc := img.Manifest.Descriptor
		desc.Platform = &imagespec.Platform{OS: os, Architecture: arch}
		index.Manifests = append(index.Manifests, desc)
	}
	data, err := json.Marshal(index)
	if err != nil {
		panic(err)
	}
	blob := NewBlob(imagespec.MediaTypeImageIndex, data)
	r.PushManifest(repository, tag, blob)
	return blob
}

// PushBlob makes a blob available in all repositories.
func (r *Registry) PushBlob(blob Blob) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.blobs == nil {
		r.blobs = map[digest.Digest]Blob{}
	}
	r.blobs[blob.Digest] = blob
}

// PushManifest makes a manifest available by tag, if not "", and by digest.
func (r *Registry) PushManifest(repository, tag string, manifest Blob) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.manifests == nil {
		r.manifests = map[string]Blob{}
	}
	r.manifests[repository+" "+manifest.Digest.String()] = manifest
	if tag != "" {
		r.manifests[repository+" "+tag] = manifest
	}
}

// Requests lists the requests so far: method and path.
func (r *Registry) Requests() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return append([]string{}, r.requests...)
}

// Sent returns how many bytes of a blob were sent so far, in all answers together.
func (r *Registry) Sent(blob digest.Digest) int64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.sent[blob]
}

var pathPattern = regexp.MustCompile(`^/v2/(.+)/(manifests|blobs)/([^/]+)$`)

// ServeHTTP implements http.Handler.
func (r *Registry) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	r.mu.Lock()
	r.requests = append(r.requests, req.Method+" "+req.URL.Path)
	r.mu.Unlock()
	if r.Intercept != nil && r.Intercept(w, req) {
		return
	}
	if req.URL.Path == "/token" {
		r.serveToken(w, req)
		return
	}
	if !r.authorized(req) {
		challenge := `Basic realm="test"`
		if r.Bearer {
			challenge = `Bearer realm="` + r.Realm + `",service="test"`
		}
		w.Header().Set("WWW-Authenticate", challenge)
		w.WriteHeader(http.StatusUnauthorized)
		return
	}
	match := pathPattern.FindStringSubmatch(req.URL.Path)
	if match == nil {
		http.NotFound(w, req)
		return
	}
	r.mu.Lock()
	blob, ok := r.blobs[digest.Digest(match[3])]
	if match[2] == "manifests" {
		blob, ok = r.manifests[match[1]+" "+match[3]]
	}
	r.mu.Unlock()
	if !ok {
		http.NotFound(w, req)
		return
	}
	r.serveBlob(w, req, blob)
}

// serveBlob sends a blob, or a part of it if the request has a range ("bytes=N-", "bytes=N-M").
func (r *Registry) serveBlob(w http.ResponseWriter, req *http.Request, blob Blob) {
	data := blob.Data
	w.Header().Set("Content-Type", blob.MediaType)
	w.Header().Set("Docker-Content-Digest", blob.Digest.String())
	from, to, ranged := 0, len(data), false
	if text, ok := strings.CutPrefix(req.Header.Get("Range"), "bytes="); ok {
		first, last, _ := strings.Cut(text, "-")
		n, err := strconv.Atoi(first)
		if err != nil || n >= len(data) {
			w.WriteHeader(http.StatusRequestedRangeNotSatisfiable)
			return
		}
		if m, err := strconv.Atoi(last); err == nil {
			to = min(m+1, len(data))
		}
		from, ranged = n, true
		w.Header().Set("Content-Range", fmt.Sprintf("bytes %d-%d/%d", from, to-1, len(data)))
	}
	w.Header().Set("Content-Length", strconv.Itoa(to-from))
	if ranged {
		w.WriteHeader(http.StatusPartialContent)
	}
	if req.Method == http.MethodHead {
		return
	}
	// The client may go away in the middle of it.
	n, _ := w.Write(data[from:to])
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.sent == nil {
		r.sent = map[digest.Digest]int64{}
	}
	r.sent[blob.Digest] += int64(n)
}

func (r *Registry) authorized(req *http.Request) bool {
	if r.Bearer {
		return req.Header.Get("Authorization") == "Bearer "+r.Token
	}
	if r.User == "" {
		return true
	}
	user, password, ok := req.BasicAuth()
	return ok && user == r.User && password == r.Password
}

// serveToken answers both forms of request: with basic credentials, and with a form
// that has a password or a refresh token.
func (r *Registry) serveToken(w http.ResponseWriter, req *http.Request) {
	user, password, ok := req.BasicAuth()
	if req.Method == http.MethodPost {
		user, password = req.FormValue("username"), req.FormValue("password")
		if token := req.FormValue("refresh_token"); token != "" {
			user, password = r.User, token
		}
		ok = true
	}
	if !ok || user != r.User || password != r.Password {
		w.WriteHeader(http.StatusUnauthorized)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(map[string]string{"token": r.Token, "access_token": r.Token})
}
