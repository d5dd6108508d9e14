package database

import (
	"bytes"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	"github.com/containerd/containerd/v2/core/content"
)

// TestTidyIngests: downloads that can be continued stay, within the bound. Everything else that a
// crash or a loss of power leaves goes, and stops nothing.
func TestTidyIngests(t *testing.T) {
	d := &DB{Paths: Paths{Root: t.TempDir()}}
	if err := d.tidyIngests(); err != nil {
		t.Fatalf("without a directory: %v", err)
	}
	top := filepath.Join(d.ContentDir(), "ingest")
	now := time.Now()
	ref := func(digit string) string { return downloadRef + "sha256:" + strings.Repeat(digit, 64) }
	leave := func(name, ref string, bytes int64, age time.Duration) {
		t.Helper()
		dir := filepath.Join(top, name)
		if err := os.MkdirAll(dir, 0o700); err != nil {
			t.Fatal(err)
		}
		for file, text := range map[string]string{"ref": ref, "data": ""} {
			if err := os.WriteFile(filepath.Join(dir, file), []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		data := filepath.Join(dir, "data")
		if err := os.Truncate(data, bytes); err != nil {
			t.Fatal(err)
		}
		if err := os.Chtimes(data, now.Add(-age), now.Add(-age)); err != nil {
			t.Fatal(err)
		}
	}
	leave("new", ref("a"), minDownload, time.Minute)
	leave("old", "k8s.io/7/"+ref("b"), maxDownloads-minDownload, time.Hour) // sparse, of an older version
	leave("oldest", ref("c"), minDownload, 2*time.Hour)
	leave("small", ref("d"), minDownload-1, 0)
	leave("import", "k8s.io/8/layer-sha256:"+strings.Repeat("a", 64), minDownload, 0)
	leave("no-ref", "", minDownload, 0)
	leave("bad-digest", downloadRef+"sha256:abc", minDownload, 0)
	if err := os.Mkdir(filepath.Join(top, "empty"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := d.tidyIngests(); err != nil {
		t.Fatal(err)
	}
	all, err := d.ingests()
	if err != nil {
		t.Fatal(err)
	}
	left := map[string]string{}
	for _, one := range all {
		left[one.dir] = one.ref
	}
	if want := map[string]string{d.ingestDir(ref("a")): ref("a"), d.ingestDir(ref("b")): ref("b")}; !maps.Equal(left, want) {
		t.Errorf("left %q, want %q", left, want)
	}
	if bytes, err := d.UnfinishedBytes(); err != nil || bytes > maxDownloads {
		t.Errorf("%d bytes, %v", bytes, err)
	}
}

// pieces records what is written at a time.
type pieces struct {
	content.Writer
	sizes []int
}

func (p *pieces) Write(data []byte) (int, error) {
	p.sizes = append(p.sizes, len(data))
	return len(data), nil
}

// TestDownloadsAreWrittenInPieces: the download keeps the bytes that come before an error. An error that wraps io.EOF is a failure.
func TestDownloadsAreWrittenInPieces(t *testing.T) {
	broken := fmt.Errorf("the registry went away: %w", io.EOF)
	data := bytes.NewReader(make([]byte, 2*pieceOfDownload+10))
	p := &pieces{}
	n, err := inPieces{p}.ReadFrom(iotest.HalfReader(io.MultiReader(data, iotest.ErrReader(broken))))
	if want := []int{pieceOfDownload, pieceOfDownload, 10}; n != 2*pieceOfDownload+10 || err != broken || !slices.Equal(p.sizes, want) { //nolint:errorlint // the same error
		t.Errorf("%d bytes in pieces of %d, %v, want %d", n, p.sizes, err, want)
	}
	p = &pieces{}
	if n, err := (inPieces{p}).ReadFrom(strings.NewReader("abc")); n != 3 || err != nil || p.sizes[0] != 3 {
		t.Errorf("%d bytes in pieces of %d, %v, want all of 3", n, p.sizes, err)
	}
}
