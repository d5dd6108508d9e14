package pause

import (
	"archive/tar"
	"bytes"
	"debug/elf"
	"encoding/json"
	"errors"
	"io"
	"path"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/distribution/reference"
	"github.com/opencontainers/go-digest"
	imagespec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/berthrun/berth/internal/engine/docker/labels"
	"github.com/berthrun/berth/internal/errs"
)

// TestReferenceChangesWithContent: whoever changes a digest here changes the tag of Reference, too.
func TestReferenceChangesWithContent(t *testing.T) {
	for architecture, want := range map[string]digest.Digest{
		"amd64": "sha256:084bc1d16d1ab03cbfe3bfec71dc1be32cdd6dd4d4a8be36a5d15b28785577fa",
		"arm64": "sha256:3c904ef3c4b7e16f5fa3db4e02788f25b07220ad9547acbff5645bd4c7623a4c",
	} {
		for range 2 {
			img, err := build(architecture)
			if err != nil {
				t.Fatal(err)
			}
			if got := img.descriptor.Digest; got != want || Reference != "berth.invalid/pause:1" {
				t.Errorf("%s: the manifest of %s is %s, want %s", architecture, Reference, got, want)
			}
		}
	}
	if _, err := build("riscv64"); !errors.Is(err, errs.Unsupported) {
		t.Errorf("riscv64: %v, want Unsupported", err)
	}
}

func TestReferenceIsFamiliar(t *testing.T) {
	named, err := reference.ParseNormalizedNamed(Reference)
	if err != nil {
		t.Fatal(err)
	}
	if got := named.String(); got != Reference || !strings.HasSuffix(reference.Domain(named), ".invalid") {
		t.Errorf("engines call %s %s", Reference, got)
	}
}

func TestArchive(t *testing.T) {
	data, err := Archive()
	if err != nil {
		t.Fatal(err)
	}
	again, err := Archive()
	if err != nil || !bytes.Equal(data, again) {
		t.Errorf("the archive has other bytes the second time, %v", err)
	}
	files := untar(t, data)
	for name, content := range files {
		if algorithm, hash, isBlob := strings.Cut(strings.TrimPrefix(name, "blobs/"), "/"); isBlob {
			if got := digest.FromBytes(content); got.String() != algorithm+":"+hash {
				t.Errorf("the digest of %s is %s", name, got)
			}
		}
	}

	var docker []struct {
		Config           string
		RepoTags, Layers []string
	}
	decode(t, files["manifest.json"], &docker)
	if len(docker) != 1 || !slices.Equal(docker[0].RepoTags, []string{Reference}) || len(docker[0].Layers) != 1 {
		t.Fatalf("manifest.json: %+v", docker)
	}
	checkImage(t, files[docker[0].Config], files[docker[0].Layers[0]])

	var index imagespec.Index
	decode(t, files["index.json"], &index)
	if len(index.Manifests) != 1 {
		t.Fatalf("index.json: %+v", index)
	}
	found := index.Manifests[0]
	if found.Annotations["io.containerd.image.name"] != Reference || found.Platform.Architecture != runtime.GOARCH {
		t.Errorf("index.json: %+v", found)
	}
	var manifest imagespec.Manifest
	decode(t, blobOf(t, files, found), &manifest)
	checkImage(t, blobOf(t, files, manifest.Config), blobOf(t, files, manifest.Layers[0]))
}

func checkImage(t *testing.T, configuration, layer []byte) {
	t.Helper()
	var config imagespec.Image
	decode(t, configuration, &config)
	if config.OS != "linux" || config.Architecture != runtime.GOARCH {
		t.Errorf("the platform is %+v", config.Platform)
	}
	if !slices.Equal(config.RootFS.DiffIDs, []digest.Digest{digest.FromBytes(layer)}) {
		t.Errorf("the configuration has other layers: %v", config.RootFS)
	}
	if c := config.Config; !slices.Equal(c.Entrypoint, []string{"/pause"}) || c.User != "65535:65535" ||
		c.StopSignal != "SIGTERM" || c.Labels[labels.Image] != "pause" {
		t.Errorf("the settings are %+v", c)
	}
	files := untar(t, layer)
	want, err := program(runtime.GOARCH)
	if err != nil || len(files) != 1 || !bytes.Equal(files["pause"], want) {
		t.Errorf("the layer has other files: %d, %v", len(files), err)
	}
}

func blobOf(t *testing.T, files map[string][]byte, of imagespec.Descriptor) []byte {
	t.Helper()
	content := files[path.Join("blobs/sha256", of.Digest.Encoded())]
	if int64(len(content)) != of.Size {
		t.Errorf("%s has %d bytes, not %d", of.MediaType, len(content), of.Size)
	}
	return content
}

func untar(t *testing.T, data []byte) map[string][]byte {
	t.Helper()
	files := map[string][]byte{}
	for r := tar.NewReader(bytes.NewReader(data)); ; {
		header, err := r.Next()
		if errors.Is(err, io.EOF) {
			return files
		}
		if err != nil {
			t.Fatal(err)
		}
		if files[header.Name], err = io.ReadAll(r); err != nil {
			t.Fatal(err)
		}
		if header.Mode&0o222 != 0 || header.Uid != 0 || header.Gid != 0 || header.ModTime.Unix() != 0 {
			t.Errorf("%s: %+v", header.Name, header)
		}
	}
}

func decode(t *testing.T, data []byte, into any) {
	t.Helper()
	if err := json.Unmarshal(data, into); err != nil {
		t.Fatalf("%v in %q", err, data)
	}
}

func TestProgramIsStaticELF(t *testing.T) {
	for architecture, machine := range map[string]elf.Machine{"amd64": elf.EM_X86_64, "arm64": elf.EM_AARCH64} {
		data, err := program(architecture)
		if err != nil {
			t.Fatal(err)
		}
		f, err := elf.NewFile(bytes.NewReader(data))
		if err != nil {
			t.Fatalf("%s: %v", architecture, err)
		}
		if f.Machine != machine || f.Type != elf.ET_EXEC || len(f.Progs) != 2 || len(data) > 1024 {
			t.Errorf("%s: %d bytes, %+v", architecture, len(data), f.FileHeader)
		}
		text, stack := f.Progs[0], f.Progs[1]
		if text.Type != elf.PT_LOAD || text.Flags != elf.PF_R|elf.PF_X || text.Filesz != uint64(len(data)) {
			t.Errorf("%s: %+v", architecture, text.ProgHeader)
		}
		if stack.Type != elf.PT_GNU_STACK || stack.Flags != elf.PF_R|elf.PF_W {
			t.Errorf("%s: %+v", architecture, stack.ProgHeader)
		}
		code := data[f.Entry-text.Vaddr:]
		if want := map[string][]instruction{"amd64": amd64(), "arm64": arm64()}[architecture]; !bytes.Equal(code, assemble(want)) {
			t.Errorf("%s: the entry %#x is not the first instruction", architecture, f.Entry)
		}
	}
}
