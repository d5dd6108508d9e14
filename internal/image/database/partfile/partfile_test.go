package partfile

import (
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"testing"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
	imagespec "github.com/opencontainers/image-spec/specs-go/v1"
)

// download is a directory of a download of "abcdef".
type download struct {
	t         *testing.T
	dir, blob string
	desc      imagespec.Descriptor
	ended     int
}

func newDownload(t *testing.T) *download {
	dir := t.TempDir()
	return &download{t: t, dir: filepath.Join(dir, "ingest", "d"), blob: filepath.Join(dir, "blob"), desc: imagespec.Descriptor{Digest: digest.FromString("abcdef"), Size: 6}}
}

// open opens a writer and asserts where it begins.
func (d *download) open(offset int64) *Writer {
	d.t.Helper()
	w, err := Open(d.dir, "ref", d.desc, func(_ context.Context, data string) error { return os.Rename(data, d.blob) }, func() { d.ended++ })
	if err != nil {
		d.t.Fatal(err)
	}
	if status, err := w.Status(); err != nil || status.Offset != offset || status.Ref != "ref" {
		d.t.Errorf("the writer begins as %+v, %v, want offset %d", status, err, offset)
	}
	return w
}

func (d *download) write(w *Writer, text string) {
	d.t.Helper()
	if _, err := io.WriteString(w, text); err != nil {
		d.t.Fatal(err)
	}
}

func TestADownloadContinues(t *testing.T) {
	d := newDownload(t)
	w := d.open(0)
	d.write(w, "abc")
	if err := errors.Join(w.Close(), w.Close()); err != nil {
		t.Fatal(err)
	}
	w = d.open(3)
	d.write(w, "def")
	if err := errors.Join(w.Commit(t.Context(), 6, d.desc.Digest), w.Close()); err != nil {
		t.Fatal(err)
	}
	if data, err := os.ReadFile(d.blob); string(data) != "abcdef" || err != nil {
		t.Errorf("the blob is %q, %v", data, err)
	}
	if fi, err := os.Stat(d.blob); err != nil || fi.Mode() != 0o444 {
		t.Errorf("the blob is %v, %v, want a file that nobody writes", fi, err)
	}
	if _, err := os.Stat(d.dir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the directory of the download is left: %v", err)
	}
	if d.ended != 2 {
		t.Errorf("two writers have ended %d times", d.ended)
	}
	if err := w.Commit(t.Context(), 6, d.desc.Digest); !errdefs.IsFailedPrecondition(err) {
		t.Errorf("a second commit: %v", err)
	}
}

// TestWhatCannotBeContinued: what is not of the same blob is removed.
func TestWhatCannotBeContinued(t *testing.T) {
	for _, name := range []string{RefName, TotalName} {
		for _, change := range []func(string) error{os.Remove, func(file string) error { return os.WriteFile(file, []byte("7"), 0o600) }} {
			d := newDownload(t)
			w := d.open(0)
			d.write(w, "other bytes")
			if err := errors.Join(w.Close(), change(filepath.Join(d.dir, name))); err != nil {
				t.Fatal(err)
			}
			if err := d.open(0).Close(); err != nil {
				t.Error(err)
			}
		}
	}
}

func TestOnlyTheBlobIsCommitted(t *testing.T) {
	for text, again := range map[string]int64{"abc": 3, "abcdefg": 7, "abcxyz": 6} {
		d := newDownload(t)
		w := d.open(0)
		d.write(w, text)
		if err := w.Commit(t.Context(), 6, d.desc.Digest); !errdefs.IsFailedPrecondition(err) {
			t.Errorf("the commit of %q: %v", text, err)
		}
		if _, err := os.Stat(d.blob); err == nil || d.ended != 1 {
			t.Errorf("%q is the blob, or the writer has ended %d times", text, d.ended)
		}
		w = d.open(again)
		if err := w.Truncate(1); !errdefs.IsInvalidArgument(err) {
			t.Errorf("cut in its middle: %v", err)
		}
		if err := w.Truncate(0); err != nil {
			t.Fatal(err)
		}
		d.write(w, "abcdef")
		if err := w.Commit(t.Context(), 6, d.desc.Digest); err != nil {
			t.Errorf("after a truncation: %v", err)
		}
	}
}

// TestALinkIsNoDownload: a writer follows no link out of the store.
func TestALinkIsNoDownload(t *testing.T) {
	d := newDownload(t)
	if err := d.open(0).Close(); err != nil {
		t.Fatal(err)
	}
	outside, data := filepath.Join(t.TempDir(), "outside"), filepath.Join(d.dir, DataName)
	if err := errors.Join(os.WriteFile(outside, []byte("abc"), 0o600), os.Remove(data), os.Symlink(outside, data)); err != nil {
		t.Fatal(err)
	}
	if w, err := Open(d.dir, "ref", d.desc, nil, func() {}); err == nil {
		t.Error("a link is taken for a download", w.Close())
	}
}
