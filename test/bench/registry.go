package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/opencontainers/go-digest"
	imagespec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/berthrun/berth/internal/image/imagetest"
)

// registry serves the images of a run on a loopback port, over plain http. It is a process of its own, so that its CPU
// time counts for no runtime. It bounds no client.
type registry struct {
	dir     blobDir
	address string
	process *exec.Cmd
	stdin   io.Closer
}

// startRegistry starts a registry with the images for pods.
func startRegistry(ctx context.Context, o options) (*registry, error) {
	r := &registry{dir: blobDir(filepath.Join(o.work, "registry"))}
	if err := r.dir.create(); err != nil {
		return nil, err
	}
	images := map[string]imagetest.Spec{
		"bench:1": {
			Files: []imagetest.File{{Path: "/bin/busybox", Source: "/bin/busybox", Mode: 0o755}, {Path: "/tmp", Dir: true, Mode: 0o1777}},
			Env:   []string{"PATH=/bin"}, Cmd: []string{"/bin/busybox", "sleep", "1000000"}, Compression: "gzip",
		},
		"pause:1": {
			Files: []imagetest.File{{Path: "/pause", Source: filepath.Join(o.bin, "pause"), Mode: 0o755}},
			Cmd:   []string{"/pause"}, Compression: "gzip",
		},
	}
	for tag, spec := range images {
		built, err := imagetest.Build(spec)
		if err != nil {
			return nil, err
		}
		for _, blob := range append([]imagetest.Blob{built.Manifest, built.Config}, built.Layers...) {
			if err := r.dir.put(blob); err != nil {
				return nil, err
			}
		}
		if err := r.dir.tag(tag, built.Manifest.Descriptor); err != nil {
			return nil, err
		}
	}
	return r, r.start(ctx)
}

// start starts the process. It ends with its standard input, and so with the bench.
func (r *registry) start(ctx context.Context) error {
	r.process = exec.CommandContext(ctx, "/proc/self/exe", "-serve-registry", string(r.dir))
	r.process.Stderr = os.Stderr
	stdin, err := r.process.StdinPipe()
	if err != nil {
		return err
	}
	r.stdin = stdin
	stdout, err := r.process.StdoutPipe()
	if err != nil {
		return err
	}
	if err := r.process.Start(); err != nil {
		return err
	}
	line, err := bufio.NewReader(stdout).ReadString('\n')
	if err != nil {
		return errors.Join(fmt.Errorf("the process of the registry did not say its address: %w", err), r.close())
	}
	r.address = strings.TrimSpace(line)
	return nil
}

func (r *registry) image(tag string) string { return r.address + "/" + tag }

func (r *registry) close() error {
	return errors.Join(r.stdin.Close(), r.process.Wait())
}

// warm reads the blobs of manifests, so that the page cache has them: the disk below the registry is not what is measured.
func (r *registry) warm(tags []string) error {
	for _, tag := range tags {
		manifest, err := r.dir.manifest(tag)
		if err != nil {
			return err
		}
		for _, layer := range manifest.Layers {
			if err := readAll(r.dir.blob(layer.Digest)); err != nil {
				return err
			}
		}
	}
	return nil
}

func readAll(file string) error {
	f, err := os.Open(file)
	if err != nil {
		return err
	}
	defer f.Close()
	_, err = io.Copy(struct{ io.Writer }{io.Discard}, f)
	return err
}

// blobDir is the directory with what a registry serves: blobs/HEX, and tags/NAME:TAG, each with a descriptor.
type blobDir string

func (d blobDir) create() error {
	return errors.Join(os.MkdirAll(filepath.Join(string(d), "blobs"), 0o755), os.MkdirAll(filepath.Join(string(d), "tags"), 0o755))
}

func (d blobDir) blob(dgst digest.Digest) string {
	return filepath.Join(string(d), "blobs", dgst.Encoded())
}

func (d blobDir) put(blob imagetest.Blob) error {
	return os.WriteFile(d.blob(blob.Digest), blob.Data, 0o600)
}

func (d blobDir) tag(tag string, manifest imagespec.Descriptor) error {
	data, err := json.Marshal(manifest)
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(string(d), "tags", tag), data, 0o600)
}

func (d blobDir) manifest(tag string) (manifest imagespec.Manifest, err error) {
	var desc imagespec.Descriptor
	if err := readJSON(filepath.Join(string(d), "tags", tag), &desc); err != nil {
		return manifest, err
	}
	return manifest, readJSON(d.blob(desc.Digest), &manifest)
}

func readJSON(file string, into any) error {
	data, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	return json.Unmarshal(data, into)
}

// serveRegistry is the process of a registry. It prints its address, and ends with its standard input.
func serveRegistry(dir string) error {
	listener, err := net.Listen("tcp", "127.0.0.1:0") //nolint:noctx // bound until the end
	if err != nil {
		return err
	}
	fmt.Println(listener.Addr())
	server := &http.Server{Handler: blobDir(dir), ReadHeaderTimeout: time.Minute}
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		_ = server.Close()
	}()
	if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

// ServeHTTP answers the pull half of the distribution protocol, with ranges.
func (d blobDir) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	parts := strings.Split(strings.TrimPrefix(req.URL.Path, "/v2/"), "/")
	desc := imagespec.Descriptor{MediaType: "application/octet-stream"}
	switch {
	case req.URL.Path == "/v2/":
		return
	case len(parts) == 3 && parts[1] == "manifests":
		if readJSON(filepath.Join(string(d), "tags", filepath.Base(parts[0]+":"+parts[2])), &desc) != nil {
			desc.MediaType, desc.Digest = imagespec.MediaTypeImageManifest, digest.Digest(parts[2])
		}
	case len(parts) == 3 && parts[1] == "blobs":
		desc.Digest = digest.Digest(parts[2])
	}
	if desc.Digest.Validate() != nil {
		http.NotFound(w, req)
		return
	}
	f, err := os.Open(d.blob(desc.Digest))
	if err != nil {
		http.NotFound(w, req)
		return
	}
	defer f.Close()
	w.Header().Set("Content-Type", desc.MediaType)
	w.Header().Set("Docker-Content-Digest", desc.Digest.String())
	http.ServeContent(w, req, "", time.Time{}, f)
}
