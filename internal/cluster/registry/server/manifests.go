package server

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// largestManifest is the limit of registries, in bytes.
const largestManifest = 4 << 20

// The directories of a repository. No part of a name begins with an underscore.
const (
	manifestsDir = "_manifests"
	tagsDir      = "_tags"
)

// manifest serves a manifest, by tag or digest.
func (r *Registry) manifest(w http.ResponseWriter, request *http.Request, name, reference string) error {
	if !isTag(reference) {
		if _, err := digestOf(reference); err != nil {
			return errManifest
		}
	}
	switch request.Method {
	case http.MethodGet, http.MethodHead:
		d, mediaType, err := r.resolve(name, reference)
		if err != nil {
			return err
		}
		w.Header().Set("Content-Type", mediaType)
		return r.send(w, request, d, errManifest)
	case http.MethodPut:
		return r.putManifest(w, request, name, reference)
	case http.MethodDelete:
		if err := r.deleteManifest(name, reference); err != nil {
			return err
		}
		w.WriteHeader(http.StatusAccepted)
		return nil
	}
	return errMethod
}

// resolve finds the manifest that a reference means in a repository.
func (r *Registry) resolve(name, reference string) (digest.Digest, string, error) {
	if isTag(reference) {
		text, err := r.repositories.ReadFile(path.Join(name, tagsDir, reference))
		if errors.Is(err, fs.ErrNotExist) {
			return "", "", errManifest
		}
		if err != nil {
			return "", "", err
		}
		reference = string(text)
	}
	d, err := digestOf(reference)
	if err != nil {
		return "", "", err
	}
	mediaType, err := r.repositories.ReadFile(manifestFile(name, d))
	if errors.Is(err, fs.ErrNotExist) {
		return "", "", errManifest
	}
	return d, string(mediaType), err
}

func manifestFile(name string, d digest.Digest) string {
	return path.Join(name, manifestsDir, d.Algorithm().String(), d.Encoded())
}

// parts are what manifests and indexes refer to.
type parts struct {
	MediaType string               `json:"mediaType"`
	Config    *ocispec.Descriptor  `json:"config"`
	Layers    []ocispec.Descriptor `json:"layers"`
	Manifests []ocispec.Descriptor `json:"manifests"`
}

// putManifest stores a manifest whose parts exist.
func (r *Registry) putManifest(w http.ResponseWriter, request *http.Request, name, reference string) error {
	text, err := io.ReadAll(io.LimitReader(request.Body, largestManifest+1))
	if err != nil {
		return err
	}
	if len(text) > largestManifest {
		return fault{http.StatusRequestEntityTooLarge, "MANIFEST_INVALID", fmt.Sprintf("a manifest has at most %d bytes", largestManifest)}
	}
	var p parts
	if err := json.Unmarshal(text, &p); err != nil {
		return fault{http.StatusBadRequest, "MANIFEST_INVALID", "the manifest is not JSON: " + err.Error()}
	}
	d := digest.FromBytes(text)
	if !isTag(reference) {
		if said := digest.Digest(reference); said.Algorithm().FromBytes(text) != said {
			return errDigest
		} else {
			d = said
		}
	}
	if err := r.checkParts(request.Context(), name, p); err != nil {
		return err
	}
	desc := ocispec.Descriptor{Digest: d, Size: int64(len(text))}
	if err := content.WriteBlob(request.Context(), r.content, "manifest-"+d.String(), bytes.NewReader(text), desc); err != nil {
		return err
	}
	mediaType, _, _ := strings.Cut(request.Header.Get("Content-Type"), ";")
	mediaType = cmp.Or(strings.TrimSpace(mediaType), p.MediaType, ocispec.MediaTypeImageManifest)
	if err := r.write(manifestFile(name, d), mediaType); err != nil {
		return err
	}
	if isTag(reference) {
		if err := r.write(path.Join(name, tagsDir, reference), d.String()); err != nil {
			return err
		}
	}
	w.Header().Set("Location", "/v2/"+name+"/manifests/"+d.String())
	w.Header().Set("Docker-Content-Digest", d.String())
	w.WriteHeader(http.StatusCreated)
	return nil
}

// checkParts refuses an incomplete manifest: otherwise a pull would fail in the middle. Layers with
// URLs of their own are not stored here.
func (r *Registry) checkParts(ctx context.Context, name string, p parts) error {
	wanted := p.Layers
	if p.Config != nil {
		wanted = append([]ocispec.Descriptor{*p.Config}, wanted...)
	}
	for _, part := range wanted {
		if len(part.URLs) > 0 {
			continue
		}
		_, err := r.content.Info(ctx, part.Digest)
		if errdefs.IsNotFound(err) || errdefs.IsInvalidArgument(err) {
			return fault{http.StatusNotFound, "MANIFEST_BLOB_UNKNOWN", "the manifest's blob " + part.Digest.String() + " was not pushed"}
		}
		if err != nil {
			return err
		}
	}
	for _, part := range p.Manifests {
		if _, _, err := r.resolve(name, part.Digest.String()); err != nil {
			return fault{http.StatusNotFound, "MANIFEST_BLOB_UNKNOWN", "the index's manifest " + part.Digest.String() + " was not pushed"}
		}
	}
	return nil
}

// write replaces a small file atomically.
func (r *Registry) write(name, text string) error {
	if err := r.repositories.MkdirAll(path.Dir(name), 0o755); err != nil {
		return err
	}
	// No tag and no digest ends with this suffix.
	temp := name + "~"
	if err := r.repositories.WriteFile(temp, []byte(text), 0o644); err != nil {
		return err
	}
	return r.repositories.Rename(temp, name)
}

// deleteManifest removes a tag, or a manifest with its tags. Content stays: other manifests may
// need it.
func (r *Registry) deleteManifest(name, reference string) error {
	d, _, err := r.resolve(name, reference)
	if err != nil {
		return err
	}
	if isTag(reference) {
		return r.repositories.Remove(path.Join(name, tagsDir, reference))
	}
	tags, err := r.tagsOf(name)
	if err != nil {
		return err
	}
	for _, tag := range tags {
		if of, _, err := r.resolve(name, tag); err == nil && of == d {
			if err := r.repositories.Remove(path.Join(name, tagsDir, tag)); err != nil {
				return err
			}
		}
	}
	return r.repositories.Remove(manifestFile(name, d))
}

// tags lists the tags of a repository.
func (r *Registry) tags(w http.ResponseWriter, request *http.Request, name, rest string) error {
	if rest != "list" {
		return errUnknownPath
	}
	if request.Method != http.MethodGet {
		return errMethod
	}
	tags, err := r.tagsOf(name)
	if err != nil {
		return err
	}
	return answerJSON(w, map[string]any{"name": name, "tags": page(w, request, tags)})
}

func (r *Registry) tagsOf(name string) ([]string, error) {
	if _, err := r.repositories.Stat(path.Join(name, manifestsDir)); err != nil {
		return nil, errRepository
	}
	entries, err := fs.ReadDir(r.repositories.FS(), path.Join(name, tagsDir))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	tags := []string{} // none is an empty list to programs, too
	for _, entry := range entries {
		if isTag(entry.Name()) {
			tags = append(tags, entry.Name())
		}
	}
	return tags, nil
}

// catalog lists the names of repositories.
func (r *Registry) catalog(w http.ResponseWriter, request *http.Request) error {
	names := []string{}
	err := fs.WalkDir(r.repositories.FS(), ".", func(at string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case entry.Name() == manifestsDir:
			names = append(names, path.Dir(at))
			return fs.SkipDir
		case entry.Name() == tagsDir:
			return fs.SkipDir
		}
		return nil
	})
	if err != nil {
		return err
	}
	slices.Sort(names)
	return answerJSON(w, map[string]any{"repositories": page(w, request, names)})
}

// page is the requested part of a list: n entries after the last one. A header says that there are
// more.
func page(w http.ResponseWriter, request *http.Request, all []string) []string {
	query := request.URL.Query()
	if after := query.Get("last"); after != "" {
		i, found := slices.BinarySearch(all, after)
		if found {
			i++
		}
		all = all[i:]
	}
	n, err := strconv.Atoi(query.Get("n"))
	if err != nil || n < 0 || n >= len(all) {
		return all
	}
	if n > 0 {
		query.Set("last", all[n-1])
		w.Header().Set("Link", fmt.Sprintf("<%s?%s>; rel=\"next\"", request.URL.Path, query.Encode()))
	}
	return all[:n]
}
