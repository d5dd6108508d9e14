package server

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// digestOf reads a digest of a supported algorithm.
func digestOf(text string) (digest.Digest, error) {
	d, err := digest.Parse(text)
	if err != nil || d.Algorithm() != digest.SHA256 && d.Algorithm() != digest.SHA512 {
		return "", errDigest
	}
	return d, nil
}

// blob serves a blob. Every repository has it: they have no secrets from each other.
func (r *Registry) blob(w http.ResponseWriter, request *http.Request, _, rest string) error {
	if request.Method != http.MethodGet && request.Method != http.MethodHead {
		return errMethod
	}
	d, err := digestOf(rest)
	if err != nil {
		return err
	}
	w.Header().Set("Content-Type", "application/octet-stream")
	return r.send(w, request, d, errBlob)
}

// send sends content, or a part of it.
func (r *Registry) send(w http.ResponseWriter, request *http.Request, d digest.Digest, absent error) error {
	at, err := r.content.ReaderAt(request.Context(), ocispec.Descriptor{Digest: d})
	if errdefs.IsNotFound(err) {
		return absent
	}
	if err != nil {
		return err
	}
	defer at.Close()
	w.Header().Set("Docker-Content-Digest", d.String())
	w.Header().Set("ETag", `"`+d.String()+`"`)
	http.ServeContent(w, request, "", time.Time{}, io.NewSectionReader(at, 0, at.Size()))
	return nil
}

// upload handles uploads: a POST begins one, PATCHes add to it, a PUT ends it.
func (r *Registry) upload(w http.ResponseWriter, request *http.Request, name, id string) error {
	if id == "" {
		if request.Method != http.MethodPost {
			return errMethod
		}
		return r.begin(w, request, name)
	}
	status, err := r.content.Status(request.Context(), id)
	if errdefs.IsNotFound(err) {
		return errUpload
	}
	if err != nil {
		return err
	}
	switch request.Method {
	case http.MethodGet:
		r.progress(w, name, id, status.Offset, http.StatusNoContent)
		return nil
	case http.MethodPatch:
		size, err := r.add(request, id)
		if err == nil {
			r.progress(w, name, id, size, http.StatusAccepted)
		}
		return err
	case http.MethodPut:
		return r.end(w, request, name, id)
	case http.MethodDelete:
		if err := r.content.Abort(request.Context(), id); err != nil {
			return err
		}
		w.WriteHeader(http.StatusNoContent)
		return nil
	}
	return errMethod
}

// begin begins an upload. A request with the whole content also ends it. Content that exists need
// not be sent again.
func (r *Registry) begin(w http.ResponseWriter, request *http.Request, name string) error {
	query := request.URL.Query()
	if mount := query.Get("mount"); mount != "" {
		if d, err := digestOf(mount); err == nil {
			if _, err := r.content.Info(request.Context(), d); err == nil {
				r.stored(w, name, d)
				return nil
			}
		}
	}
	id := rand.Text()
	writer, err := r.content.Writer(request.Context(), content.WithRef(id))
	if err != nil {
		return err
	}
	if err := writer.Close(); err != nil {
		return err
	}
	if query.Get("digest") != "" {
		return r.end(w, request, name, id)
	}
	r.progress(w, name, id, 0, http.StatusAccepted)
	return nil
}

// progress reports the size of an upload so far.
func (r *Registry) progress(w http.ResponseWriter, name, id string, size int64, status int) {
	w.Header().Set("Location", "/v2/"+name+"/blobs/uploads/"+id)
	w.Header().Set("Docker-Upload-UUID", id)
	w.Header().Set("Range", fmt.Sprintf("0-%d", max(0, size-1)))
	w.WriteHeader(status)
}

// stored reports the location of a blob.
func (r *Registry) stored(w http.ResponseWriter, name string, d digest.Digest) {
	w.Header().Set("Location", "/v2/"+name+"/blobs/"+d.String())
	w.Header().Set("Docker-Content-Digest", d.String())
	w.WriteHeader(http.StatusCreated)
}

// add adds a part to an upload, and reports its size.
func (r *Registry) add(request *http.Request, id string) (int64, error) {
	writer, err := r.content.Writer(request.Context(), content.WithRef(id))
	if err != nil {
		return 0, err
	}
	err = appendTo(writer, request)
	status, failed := writer.Status()
	return status.Offset, errors.Join(err, failed, writer.Close())
}

// appendTo appends a request's body to an upload.
func appendTo(writer content.Writer, request *http.Request) error {
	status, err := writer.Status()
	if err != nil {
		return err
	}
	if said := request.Header.Get("Content-Range"); said != "" {
		start, _, _ := strings.Cut(said, "-")
		if start != fmt.Sprint(status.Offset) {
			return errRange
		}
	}
	_, err = io.Copy(writer, request.Body)
	return err
}

// end ends an upload with its last part, if it brings one. It discards content whose digest differs
// from the stated one.
func (r *Registry) end(w http.ResponseWriter, request *http.Request, name, id string) (err error) {
	d, err := digestOf(request.URL.Query().Get("digest"))
	if err != nil {
		return err
	}
	writer, err := r.content.Writer(request.Context(), content.WithRef(id), content.WithDescriptor(ocispec.Descriptor{Digest: d}))
	if errdefs.IsAlreadyExists(err) {
		_ = r.content.Abort(request.Context(), id) // the next start removes it
		r.stored(w, name, d)
		return nil
	}
	if err != nil {
		return err
	}
	defer writer.Close()
	if err := appendTo(writer, request); err != nil {
		return err
	}
	switch err := writer.Commit(request.Context(), 0, d); {
	case err == nil, errdefs.IsAlreadyExists(err):
	case errdefs.IsFailedPrecondition(err):
		abort, cancel := context.WithTimeout(context.WithoutCancel(request.Context()), endTime)
		defer cancel()
		return errors.Join(errDigest, r.content.Abort(abort, id))
	default:
		return err
	}
	r.stored(w, name, d)
	return nil
}
