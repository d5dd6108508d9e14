package bill

import (
	"archive/tar"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	imagespec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/image/imagetest"
)

// archiveOf writes an archive of images and opens it.
func archiveOf(t *testing.T, specs ...imagetest.Spec) *os.File {
	t.Helper()
	var data bytes.Buffer
	if err := imagetest.OCIArchive(&data, specs...); err != nil {
		t.Fatal(err)
	}
	return fileOf(t, data.Bytes())
}

func fileOf(t *testing.T, data []byte) *os.File {
	t.Helper()
	name := filepath.Join(t.TempDir(), "archive.tar")
	if err := os.WriteFile(name, data, 0o600); err != nil {
		t.Fatal(err)
	}
	file, err := os.Open(name)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { file.Close() })
	return file
}

func file(name, text string) imagetest.File {
	return imagetest.File{Path: name, Content: []byte(text)}
}

const debian = `Package: libc6
Status: install ok installed
Architecture: amd64
Version: 2.36-9+deb12u4
Description: GNU C Library
 Version: no field

Package: removed
Status: deinstall ok config-files
Architecture: amd64
Version: 1

Package: zlib1g
Status: install ok installed
Architecture: amd64
Version: 1:1.2.13
`

func listed(img *Image) string {
	var all []string
	for _, p := range img.Packages {
		all = append(all, strings.Join([]string{p.Type, p.Name, p.Version, p.Architecture}, " "))
	}
	return strings.Join(all, ", ")
}

// TestPackages: of dpkg, of images without dpkg that keep its files, and of apk; a higher layer replaces and hides files.
func TestPackages(t *testing.T) {
	for name, c := range map[string]struct {
		layers []imagetest.Layer
		want   string
	}{
		"dpkg":        {[]imagetest.Layer{{file("var/lib/dpkg/status", debian)}}, "deb libc6 2.36-9+deb12u4 amd64, deb zlib1g 1:1.2.13 amd64"},
		"no dpkg":     {[]imagetest.Layer{{file("var/lib/dpkg/status.d/tzdata", "Package: tzdata\nVersion: 1\nArchitecture: all\n"), file("var/lib/dpkg/status.d/tzdata.md5sums", "Package: x")}}, "deb tzdata 1 all"},
		"apk":         {[]imagetest.Layer{{file("lib/apk/db/installed", "C:Q1\nP:musl\nV:1.2.5-r0\nA:x86_64\n\nP:busybox\nV:1.36\nA:x86_64\n")}}, "apk busybox 1.36 x86_64, apk musl 1.2.5-r0 x86_64"},
		"replaced":    {[]imagetest.Layer{{file("var/lib/dpkg/status", debian)}, {file("var/lib/dpkg/status", "Package: a\nVersion: 2\n")}}, "deb a 2 "},
		"removed":     {[]imagetest.Layer{{file("var/lib/dpkg/status", debian)}, {imagetest.Whiteout("var/lib/dpkg/status")}}, ""},
		"above":       {[]imagetest.Layer{{file("var/lib/dpkg/status", debian)}, {imagetest.Whiteout("var/lib")}}, ""},
		"opaque":      {[]imagetest.Layer{{file("var/lib/dpkg/status", debian)}, {imagetest.Opaque("var/lib"), file("lib/apk/db/installed", "P:a\nV:1\n")}}, "apk a 1 "},
		"none":        {[]imagetest.Layer{{file("app", "x")}}, ""},
		"nonsense":    {[]imagetest.Layer{{file("var/lib/dpkg/status", "\x00\xff:\n:::\n\nPackage: a\x1b[2J\xff\nVersion:\n")}}, "deb a[2J?  "},
		"a long line": {[]imagetest.Layer{{file("var/lib/dpkg/status", "Package: "+strings.Repeat("a", 2*maxLine))}}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			images, err := Read(archiveOf(t, imagetest.Spec{Name: "r.example/a:1", Layers: c.layers, Compression: "gzip"}))
			if err != nil || len(images) != 1 || images[0].Fault != nil {
				t.Fatalf("%+v, %v", images, err)
			}
			if got := listed(&images[0]); got != c.want {
				t.Errorf("%q, want %q", got, c.want)
			}
		})
	}
}

// TestDocument: what SPDX demands is there, ids are unique, and relationships lead to them. The same images give the same
// document.
func TestDocument(t *testing.T) {
	base := imagetest.Layer{file("var/lib/dpkg/status", debian), file("etc/os-release", "NAME=x\nID=debian\nVERSION_ID=\"12\"\n")}
	specs := []imagetest.Spec{
		{Name: "r.example/team/a:1", Layers: []imagetest.Layer{base, {file("a", "1")}}},
		{Name: "r.example/team/b:1", Layers: []imagetest.Layer{base, base, {file("b", "2")}}, Compression: "zstd"},
		{Name: "r.example/team/c:1", Layers: []imagetest.Layer{base, base, {file("b", "2")}}, Compression: "zstd"},
	}
	var texts []string
	for range 2 {
		images, err := Read(archiveOf(t, specs...))
		if err != nil || len(images) != 2 {
			t.Fatalf("%d images, %v", len(images), err)
		}
		data, err := json.Marshal(Document("images.tar", images[0].Digest, "berth-1", images))
		if err != nil {
			t.Fatal(err)
		}
		texts = append(texts, string(data))
	}
	if texts[0] != texts[1] {
		t.Error("the documents differ")
	}
	var d document
	if err := json.Unmarshal([]byte(texts[0]), &d); err != nil {
		t.Fatal(err)
	}
	if d.SPDXVersion != "SPDX-2.3" || d.DataLicense != "CC0-1.0" || d.Namespace == "" || d.Creation.Created == "" || len(d.Creation.Creators) != 1 {
		t.Errorf("%+v", d)
	}
	ids := map[string]bool{d.SPDXID: true}
	purls := map[string]bool{}
	for _, p := range d.Packages {
		if ids[p.SPDXID] || p.Name == "" || p.Download == "" {
			t.Errorf("%+v", p)
		}
		ids[p.SPDXID] = true
		for _, ref := range p.Refs {
			purls[ref.Locator] = true
		}
	}
	if want := "pkg:deb/debian/zlib1g@1:1.2.13?arch=amd64&distro=debian-12"; !purls[want] {
		t.Errorf("%v, want %s", purls, want)
	}
	seen := map[relationship]bool{}
	for _, r := range d.Relationships {
		if !ids[r.From] || !ids[r.To] || seen[r] {
			t.Errorf("%+v", r)
		}
		seen[r] = true
	}
	// Two images with two packages each and two layers each.
	if len(d.Packages) != 2+2+4 || len(d.Relationships) != 2+4+4 {
		t.Errorf("%d packages, %d relationships", len(d.Packages), len(d.Relationships))
	}
}

// TestHostileArchives are refused, or have a fault, and are not read without bound.
func TestHostileArchives(t *testing.T) {
	for name, data := range map[string][]byte{"nothing": nil, "garbage": bytes.Repeat([]byte("garbage"), 1000)} {
		if _, err := Read(fileOf(t, data)); !errors.Is(err, errs.Invalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
	images, err := Read(archiveOf(t, imagetest.Spec{Name: "r.example/a:1", Compression: "gzip", Layers: []imagetest.Layer{{file("var/lib/dpkg/status", strings.Repeat("\n", maxDatabase+1))}}}))
	if err != nil || len(images) != 1 || !errors.Is(images[0].Fault, errs.Invalid) {
		t.Fatalf("a large database: %+v, %v", images, err)
	}
	data, err := json.Marshal(Document("a", images[0].Digest, "berth", images))
	if err != nil || !bytes.Contains(data, []byte("packages could not be read")) {
		t.Errorf("%s, %v", data, err)
	}
	// A layer that hides many files keeps none of their names.
	layer := imagetest.Layer{imagetest.Whiteout("var/lib/dpkg")}
	for n := range 1000 {
		layer = append(layer, imagetest.Whiteout(fmt.Sprintf("usr/share/%d", n)))
	}
	plain, err := imagetest.Tar(layer)
	if err != nil {
		t.Fatal(err)
	}
	found, err := readLayer(bytes.NewReader(plain))
	if err != nil || !slices.Equal(found.hidden, []string{"var/lib/dpkg"}) {
		t.Errorf("%+v, %v", found, err)
	}
}

// FuzzRead: any archive is read without a panic, and errors blame it.
// TestArtifact: an OCI artifact has files and neither packages nor a platform, whatever its config is.
func TestArtifact(t *testing.T) {
	a, err := imagetest.Artifact(imagetest.ArtifactSpec{ConfigType: "application/vnd.example.config", Files: []imagetest.ArtifactFile{{Title: "model.bin", Content: "weights"}}})
	if err != nil {
		t.Fatal(err)
	}
	index, err := json.Marshal(imagespec.Index{Manifests: []imagespec.Descriptor{a.Manifest.Descriptor}})
	if err != nil {
		t.Fatal(err)
	}
	var data bytes.Buffer
	w := tar.NewWriter(&data)
	for name, content := range map[string][]byte{
		imagespec.ImageIndexFile:                                  index,
		"blobs/sha256/" + a.Manifest.Digest.Encoded():             a.Manifest.Data,
		"blobs/sha256/" + a.Config.Digest.Encoded():               []byte("not JSON"),
		"blobs/sha256/" + a.Layers[0].Descriptor.Digest.Encoded(): []byte("weights"),
	} {
		if err := w.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: name, Size: int64(len(content))}); err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write(content); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	images, err := Read(fileOf(t, data.Bytes()))
	if err != nil || len(images) != 1 || images[0].Fault != nil {
		t.Fatalf("%+v, %v", images, err)
	}
	text, err := json.Marshal(Document("a.tar", a.Manifest.Digest, "berth-1", images))
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{`"comment":"OCI artifact application/vnd.example.config; names: "`, `"primaryPackagePurpose":"OTHER"`, `"primaryPackagePurpose":"FILE"`} {
		if !strings.Contains(string(text), want) {
			t.Errorf("%s is missing in %s", want, text)
		}
	}
}

func FuzzRead(f *testing.F) {
	var data bytes.Buffer
	if err := imagetest.OCIArchive(&data, imagetest.Spec{Name: "a:1", Files: []imagetest.File{{Path: "etc/os-release", Content: []byte("ID=x")}}}); err != nil {
		f.Fatal(err)
	}
	f.Add(data.Bytes())
	f.Add([]byte(nil))
	f.Fuzz(func(t *testing.T, data []byte) {
		images, err := Read(fileOf(t, data))
		if err != nil {
			if !errors.Is(err, errs.Invalid) {
				t.Errorf("%v blames nobody", err)
			}
			return
		}
		if _, err := json.Marshal(Document("a", "sha256:"+"00", "berth", images)); err != nil {
			t.Error(err)
		}
	})
}
