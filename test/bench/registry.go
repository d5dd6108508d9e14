package main

import (
	"crypto/rand"
	"fmt"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"time"

	"github.com/berthrun/berth/internal/image/imagetest"
)

// registry serves the images of a run on a loopback port, over plain http.
type registry struct {
	server  *http.Server
	address string
	blobs   map[string]imagetest.Blob
	tags    map[string]imagetest.Blob
}

func startRegistry(o options) (*registry, error) {
	r := &registry{blobs: map[string]imagetest.Blob{}, tags: map[string]imagetest.Blob{}}
	images := map[string]imagetest.Spec{
		"bench:1": {
			Files: []imagetest.File{{Path: "/bin/busybox", Source: "/bin/busybox", Mode: 0o755}, {Path: "/tmp", Dir: true, Mode: 0o1777}},
			Env:   []string{"PATH=/bin"}, Cmd: []string{"/bin/busybox", "sleep", "1000000"}, Compression: "gzip",
		},
		"pause:1": {
			Files: []imagetest.File{{Path: "/pause", Source: filepath.Join(o.bin, "pause"), Mode: 0o755}},
			Cmd:   []string{"/pause"}, Compression: "gzip",
		},
		"big:1": bigImage(o.pullMiB),
	}
	for tag, spec := range images {
		built, err := imagetest.Build(spec)
		if err != nil {
			return nil, err
		}
		for _, blob := range append([]imagetest.Blob{built.Manifest, built.Config}, built.Layers...) {
			r.blobs[blob.Digest.String()] = blob
		}
		r.tags[tag] = built.Manifest
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0") //nolint:noctx // bound for the whole run
	if err != nil {
		return nil, err
	}
	r.address = listener.Addr().String()
	r.server = &http.Server{Handler: r, ReadHeaderTimeout: time.Minute}
	go func() { _ = r.server.Serve(listener) }()
	return r, nil
}

// bigImage has six layers; half of each is random, half compresses well.
func bigImage(mib int) imagetest.Spec {
	spec := imagetest.Spec{Compression: "gzip"}
	const layers = 6
	for layer := range layers {
		var files imagetest.Layer
		for file := range mib * 4 / layers {
			content := make([]byte, 256<<10)
			if file%8 != 7 {
				_, _ = rand.Read(content) // never fails
			} else {
				copy(content, strings.Repeat("the quick brown fox jumps over the lazy dog\n", len(content)/44))
			}
			files = append(files, imagetest.File{Path: fmt.Sprintf("/layer%d/file%04d", layer, file), Content: content})
		}
		spec.Layers = append(spec.Layers, files)
	}
	return spec
}

func (r *registry) image(tag string) string { return r.address + "/" + tag }

func (r *registry) close() { _ = r.server.Close() }

// ServeHTTP answers the pull half of the distribution protocol.
func (r *registry) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	parts := strings.Split(strings.TrimPrefix(req.URL.Path, "/v2/"), "/")
	var blob imagetest.Blob
	var found bool
	switch {
	case req.URL.Path == "/v2/":
		return
	case len(parts) == 3 && parts[1] == "manifests":
		if blob, found = r.tags[parts[0]+":"+parts[2]]; !found {
			blob, found = r.blobs[parts[2]]
		}
	case len(parts) == 3 && parts[1] == "blobs":
		blob, found = r.blobs[parts[2]]
	}
	if !found {
		http.NotFound(w, req)
		return
	}
	w.Header().Set("Content-Type", blob.MediaType)
	w.Header().Set("Docker-Content-Digest", blob.Digest.String())
	w.Header().Set("Content-Length", fmt.Sprint(len(blob.Data)))
	if req.Method != http.MethodHead {
		_, _ = w.Write(blob.Data)
	}
}
