// Package server is the program of the registry that clusters share. It serves images from a
// directory to any client, and accepts pushes from its host only: its images run in all clusters,
// and pods of each of them reach it.
//
// It speaks the distribution protocol of OCI, on containerd's content store: blobs are kept once,
// whatever repository they were pushed to. The reference registry would bring redis, Prometheus and
// OpenTelemetry's exporters into every berth.
//
//	content/                blobs, manifests among them, and uploads that are under way
//	repositories/NAME/_manifests/sha256/HEX   media type of a manifest
//	repositories/NAME/_tags/TAG               digest of the manifest that it is for
package server

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"time"

	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/containerd/v2/plugins/content/local"
)

// endTime is how long requests may go on when the context has ended.
const endTime = 3 * time.Second

// Registry serves one directory.
type Registry struct {
	content content.Store
	// repositories is the directory with a directory for each repository.
	repositories *os.Root
	// mayWrite reports whether an address may push: fromHost, except in tests.
	mayWrite func(netip.Addr) bool
	log      *slog.Logger
}

// Open opens the registry of a directory, and creates the directory if needed. It removes uploads
// of an earlier process. It accepts pushes from its host only.
func Open(ctx context.Context, dir string, log *slog.Logger) (*Registry, error) {
	repositories := filepath.Join(dir, "repositories")
	if err := os.MkdirAll(repositories, 0o755); err != nil {
		return nil, fmt.Errorf("cannot make the registry's directory: %w", err)
	}
	store, err := local.NewStore(filepath.Join(dir, "content"))
	if err != nil {
		return nil, fmt.Errorf("cannot open the registry's content: %w", err)
	}
	uploads, err := store.ListStatuses(ctx)
	if err != nil {
		return nil, fmt.Errorf("cannot list the registry's uploads: %w", err)
	}
	for _, upload := range uploads {
		if err := store.Abort(ctx, upload.Ref); err != nil {
			return nil, fmt.Errorf("cannot remove the upload %s: %w", upload.Ref, err)
		}
	}
	root, err := os.OpenRoot(repositories)
	if err != nil {
		return nil, fmt.Errorf("cannot open the registry's directory: %w", err)
	}
	return &Registry{store, root, fromHost, log}, nil
}

// Close releases the directory.
func (r *Registry) Close() error { return r.repositories.Close() }

// Serve serves until the context ends.
func (r *Registry) Serve(ctx context.Context, listener net.Listener) error {
	server := &http.Server{Handler: r, ReadHeaderTimeout: time.Minute}
	ended := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(ended)
		end, cancel := context.WithTimeout(context.WithoutCancel(ctx), endTime)
		defer cancel()
		if server.Shutdown(end) != nil {
			server.Close() // remaining requests are cut off
		}
	})
	err := server.Serve(listener)
	if !stop() {
		<-ended
	}
	if !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("the registry cannot go on: %w", err)
	}
	return nil
}

// fault is an error response, with a code of the protocol.
type fault struct {
	status        int
	code, message string
}

func (f fault) Error() string { return f.message }

// Faults of the protocol.
var (
	errName        = fault{http.StatusBadRequest, "NAME_INVALID", "this is not a name of a repository"}
	errUnknownPath = fault{http.StatusNotFound, "UNSUPPORTED", "there is nothing at this path"}
	errMethod      = fault{http.StatusMethodNotAllowed, "UNSUPPORTED", "this cannot be done here"}
	errDigest      = fault{http.StatusBadRequest, "DIGEST_INVALID", "the content does not have the digest that was said, or it is none"}
	errBlob        = fault{http.StatusNotFound, "BLOB_UNKNOWN", "there is no such blob"}
	errUpload      = fault{http.StatusNotFound, "BLOB_UPLOAD_UNKNOWN", "there is no such upload"}
	errRange       = fault{http.StatusRequestedRangeNotSatisfiable, "BLOB_UPLOAD_INVALID", "the part does not begin where the last one ended"}
	errManifest    = fault{http.StatusNotFound, "MANIFEST_UNKNOWN", "there is no such manifest"}
	errRepository  = fault{http.StatusNotFound, "NAME_UNKNOWN", "there is no such repository"}
)

// Names of repositories and of tags, as the protocol has them.
var (
	nameForm = regexp.MustCompile(`^[a-z0-9]+((\.|_|__|-+)[a-z0-9]+)*(/[a-z0-9]+((\.|_|__|-+)[a-z0-9]+)*)*$`)
	tagForm  = regexp.MustCompile(`^[A-Za-z0-9_][A-Za-z0-9._-]*$`)
)

// longestTag is not in tagForm: every process of berth would take a while to compile a bounded repetition.
const longestTag = 128

func isTag(text string) bool { return len(text) <= longestTag && tagForm.MatchString(text) }

// longestName is the limit of a repository's name, in bytes; the protocol requires no more.
const longestName = 255

// ServeHTTP handles one request.
func (r *Registry) ServeHTTP(w http.ResponseWriter, request *http.Request) {
	w.Header().Set("Docker-Distribution-Api-Version", "registry/2.0")
	w.Header().Set(WritersHeader, "host")
	err := r.allowed(request)
	if err == nil {
		err = r.route(w, request)
	}
	if err == nil {
		return
	}
	var f fault
	if !errors.As(err, &f) {
		if request.Context().Err() == nil {
			r.log.Error("cannot answer", "method", request.Method, "path", request.URL.Path, "error", err)
		}
		f = fault{http.StatusInternalServerError, "UNKNOWN", "the registry has failed; its log says why"}
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(f.status)
	if request.Method != http.MethodHead {
		_ = json.NewEncoder(w).Encode(map[string]any{"errors": []any{map[string]string{"code": f.code, "message": f.message}}})
	}
}

// route finds the handler. The name of a repository may contain slashes, so it ends before the last
// of the protocol's keywords.
func (r *Registry) route(w http.ResponseWriter, request *http.Request) error {
	path, found := strings.CutPrefix(request.URL.Path, "/v2")
	switch {
	case !found:
		return errUnknownPath
	case path == "" || path == "/":
		return answerJSON(w, struct{}{})
	case path == "/_catalog":
		return r.catalog(w, request)
	}
	for _, kind := range []struct {
		word string
		do   func(w http.ResponseWriter, request *http.Request, name, rest string) error
	}{
		{"/blobs/uploads/", r.upload},
		{"/blobs/", r.blob},
		{"/manifests/", r.manifest},
		{"/tags/", r.tags},
	} {
		i := strings.LastIndex(path, kind.word)
		if i < 0 && strings.HasSuffix(path, strings.TrimSuffix(kind.word, "/")) {
			path += "/" // some clients leave it out
			i = strings.LastIndex(path, kind.word)
		}
		if i < 1 {
			continue
		}
		name := path[1:i]
		if len(name) > longestName || !nameForm.MatchString(name) {
			return errName
		}
		return kind.do(w, request, name, path[i+len(kind.word):])
	}
	return errUnknownPath
}

func answerJSON(w http.ResponseWriter, value any) error {
	w.Header().Set("Content-Type", "application/json")
	return json.NewEncoder(w).Encode(value)
}
