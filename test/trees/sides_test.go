//go:build integration && e2e

package trees

import (
	"bytes"
	"context"
	"encoding/json"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"testing"
	"time"

	"github.com/opencontainers/go-digest"
	"github.com/opencontainers/image-spec/specs-go"
	imagespec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/berthrun/berth/internal/image"
	"github.com/berthrun/berth/internal/image/helper/program"
	"github.com/berthrun/berth/internal/image/imagetest"
	"github.com/berthrun/berth/internal/image/local"
	"github.com/berthrun/berth/internal/require"
)

// helper is the unpack helper, built once for all tests.
var helper program.Command

func TestMain(m *testing.M) {
	os.Exit(imagetest.RunWithUnpackHelper(m, &helper))
}

// store opens a store of berth, whose root filesystems are overlays or copies.
func store(t *testing.T, snapshotter local.Snapshotter) *local.Images {
	t.Helper()
	require.Root(t)
	dir := t.TempDir()
	hosts := filepath.Join(dir, "hosts", "docker.io") // nothing is looked for in the internet
	must(t, os.MkdirAll(hosts, 0o755))
	must(t, os.WriteFile(filepath.Join(hosts, "hosts.toml"), []byte("server = \"http://127.0.0.1:1\"\n"), 0o644))
	s, err := local.Open(t.Context(), local.Config{
		Root: filepath.Join(dir, "root"), State: filepath.Join(dir, "state"), Snapshotter: snapshotter,
		PullRules:    local.PullRules{RegistryConfigDirs: []string{filepath.Dir(hosts)}},
		UnpackHelper: helper, CgroupParent: "/berth-trees-test", Log: slog.New(slog.DiscardHandler),
	})
	must(t, err)
	t.Cleanup(func() {
		ctx := context.Background()
		keys, err := s.Keys(ctx)
		must(t, err)
		for _, key := range keys {
			must(t, s.Release(ctx, key))
		}
		must(t, s.Close())
	})
	return s
}

// imported gives an archive to a store, and returns what a container of its image sees.
func imported(t *testing.T, s *local.Images, archive []byte) (string, error) {
	t.Helper()
	list, err := s.Import(t.Context(), bytes.NewReader(archive), "", true, nil)
	if err != nil {
		return "", err
	}
	return prepared(t, s, list[0].ID), nil
}

// prepared is the root filesystem of a container of an image.
func prepared(t *testing.T, s *local.Images, id string) string {
	t.Helper()
	m, err := s.Prepare(t.Context(), image.RootfsSpec{Key: "c" + digest.FromString(t.Name()+id).Encoded(), ImageID: id})
	must(t, err)
	return m.Path
}

// layout writes an OCI layout of an image with the name "t", and returns its directory.
func layout(t *testing.T, archive []byte) string {
	t.Helper()
	dir := t.TempDir()
	cmd := exec.CommandContext(t.Context(), "tar", "-x", "-C", dir)
	cmd.Stdin = bytes.NewReader(archive)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("tar: %v: %s", err, out)
	}
	return dir
}

// umoci unpacks the image of a layout that has the tag, and returns the tree, or what umoci says.
func umoci(t *testing.T, layout, tag string) (string, error) {
	t.Helper()
	to := filepath.Join(t.TempDir(), "rootfs")
	return to, command(t, require.Binary(t, "umoci"), "raw", "unpack", "--image", layout+":"+tag, to)
}

// extracted is what GNU tar makes of the layers in their order, for layers without deletions.
func extracted(t *testing.T, layers [][]byte) string {
	t.Helper()
	dir := t.TempDir()
	for _, layer := range layers {
		cmd := exec.CommandContext(t.Context(), "tar", "-x", "-p", "--numeric-owner", "--xattrs", "--xattrs-include=*", "-C", dir)
		cmd.Stdin = bytes.NewReader(layer)
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("tar: %v: %s", err, out)
		}
	}
	return dir
}

// imageOf makes an image of archives. compress makes the blob of a layer, with its media type; nil leaves them as they are.
func imageOf(t *testing.T, layers [][]byte, compress func(i int, layer []byte) imagetest.Blob) *imagetest.Image {
	t.Helper()
	img := &imagetest.Image{Name: "t"}
	manifest := imagespec.Manifest{Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: imagespec.MediaTypeImageManifest}
	for i, layer := range layers {
		blob := imagetest.NewBlob(imagespec.MediaTypeImageLayer, layer)
		if compress != nil {
			blob = compress(i, layer)
		}
		img.Layers, img.DiffIDs = append(img.Layers, blob), append(img.DiffIDs, digest.FromBytes(layer))
		manifest.Layers = append(manifest.Layers, blob.Descriptor)
	}
	config, err := json.Marshal(imagespec.Image{
		Platform: imagespec.Platform{OS: "linux", Architecture: runtime.GOARCH}, RootFS: imagespec.RootFS{Type: "layers", DiffIDs: img.DiffIDs},
	})
	must(t, err)
	img.Config = imagetest.NewBlob(imagespec.MediaTypeImageConfig, config)
	manifest.Config = img.Config.Descriptor
	document, err := json.Marshal(manifest)
	must(t, err)
	img.Manifest = imagetest.NewBlob(imagespec.MediaTypeImageManifest, document)
	return img
}

// archiveOf is an OCI layout as an archive.
func archiveOf(t *testing.T, images ...*imagetest.Image) []byte {
	t.Helper()
	var archive bytes.Buffer
	must(t, imagetest.OCIArchiveOf(&archive, images...))
	return archive.Bytes()
}

// command runs a program. Its output is in the error.
func command(t *testing.T, name string, args ...string) error {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), name, args...).CombinedOutput()
	if err != nil {
		return &commandError{err, string(out)}
	}
	return nil
}

type commandError struct {
	error
	output string
}

func (e *commandError) Error() string { return e.error.Error() + ": " + e.output }

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// began is before any file of the tests.
var began = time.Now().Add(-time.Second)
