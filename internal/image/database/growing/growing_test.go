package growing

import (
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"testing"

	"github.com/containerd/containerd/v2/core/content"
	imagespec "github.com/opencontainers/image-spec/specs-go/v1"
)

// fileWriter is the writer of a store.
type fileWriter struct {
	content.Writer
	*os.File
}

func (w fileWriter) Write(p []byte) (int, error) { return w.File.Write(p) }

func (w fileWriter) Truncate(size int64) error { return w.File.Truncate(size) }

func (w fileWriter) Close() error { return w.File.Close() }

// download is a file that grows, and a pipe that its bytes are copied to.
type download struct {
	*File
	t      *testing.T
	to     *os.File
	w      content.Writer
	r      *os.File
	pipe   *os.File
	copied chan error
	read   int64
}

func newDownload(t *testing.T, size int64) *download {
	t.Helper()
	d := &download{File: New(size), t: t, copied: make(chan error, 1)}
	t.Cleanup(d.Close)
	var err error
	if d.to, err = os.Create(filepath.Join(t.TempDir(), "data")); err != nil {
		t.Fatal(err)
	}
	if d.r, d.pipe, err = Pipe(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { d.to.Close(); d.r.Close(); d.pipe.Close() })
	go func() { d.copied <- d.CopyTo(t.Context(), d.pipe, func(n int64) { d.read += n }) }()
	return d
}

// begin begins the download, of which the file has the first bytes.
func (d *download) begin(has int64) {
	d.t.Helper()
	d.Begin()
	data, err := os.Open(d.to.Name())
	if err != nil {
		d.t.Fatal(err)
	}
	d.w = d.Follow(fileWriter{File: d.to}, data, has)
}

func (d *download) write(text string) {
	d.t.Helper()
	if _, err := io.WriteString(d.w, text); err != nil {
		d.t.Fatal(err)
	}
}

func (d *download) want(text string) {
	d.t.Helper()
	got := make([]byte, len(text))
	if _, err := io.ReadFull(d.r, got); err != nil || string(got) != text {
		d.t.Errorf("read %q, %v, want %q", got, err, text)
	}
}

func TestBytesAreCopiedAsTheyCome(t *testing.T) {
	d := newDownload(t, 9)
	if _, err := d.to.WriteString("one"); err != nil { // an earlier download has left it
		t.Fatal(err)
	}
	d.begin(3)
	d.want("one")
	if !d.Begun(t.Context()) {
		t.Error("the download has not begun")
	}
	d.write("two")
	d.want("two")
	if d.Once() {
		t.Error("a download with two thirds of its bytes is complete")
	}
	d.write("six")
	d.End()
	d.want("six")
	if err := <-d.copied; err != nil || d.read != 9 {
		t.Errorf("%d bytes were copied, %v", d.read, err)
	}
	if !d.Once() {
		t.Error("the download has all bytes")
	}
	if d.Begun(t.Context()) {
		t.Error("a download with all bytes is to be read from the store")
	}
}

// TestMoreThanAPipeHolds: the copy waits for the reader of the pipe.
func TestMoreThanAPipeHolds(t *testing.T) {
	piece := make([]byte, pipeSize)
	for i := range piece {
		piece[i] = byte(i % 251)
	}
	d := newDownload(t, 3*pipeSize)
	d.begin(0)
	for range 3 {
		d.write(string(piece))
	}
	d.End()
	for range 3 {
		d.want(string(piece))
	}
	if err := <-d.copied; err != nil || d.read != 3*pipeSize {
		t.Errorf("%d bytes were copied, %v", d.read, err)
	}
}

func TestReadersEndWithTheDownload(t *testing.T) {
	for name, end := range map[string]func(*download){
		"end": func(d *download) { d.End() },
		"a second beginning": func(d *download) {
			d.begin(0)
			d.write("twosix")
		},
		"a truncation": func(d *download) {
			if err := d.w.Truncate(0); err != nil {
				d.t.Error(err)
			}
			d.write("twosix")
		},
		"a file that somebody has cut": func(d *download) {
			if err := d.to.Truncate(0); err != nil {
				d.t.Error(err)
			}
			d.add(1)
		},
		"the pipe is closed": func(d *download) {
			d.pipe.Close()
			d.write("two")
		},
		"close": func(d *download) { d.Close() },
	} {
		t.Run(name, func(t *testing.T) {
			d := newDownload(t, 9)
			d.begin(0)
			d.write("one")
			d.want("one")
			end(d)
			if err := <-d.copied; err == nil {
				t.Error("an incomplete download is read to its end")
			}
			if d.Once() {
				t.Error("an incomplete download is complete")
			}
		})
	}
}

// TestASecondDownloadIsNotThatWhichWasRead: also if it has all bytes.
func TestASecondDownloadIsNotThatWhichWasRead(t *testing.T) {
	d := newDownload(t, 3)
	d.begin(0)
	d.write("one")
	d.want("one")
	if err := <-d.copied; err != nil || !d.Once() {
		t.Fatalf("the first download: %v", err)
	}
	d.begin(0)
	if d.Once() {
		t.Error("a download that began twice is the one that was read")
	}
}

func TestWaitsEndWithTheContext(t *testing.T) {
	ctx, cancel := context.WithCancelCause(t.Context())
	gone := errors.New("the caller is gone")
	cancel(gone)
	f := New(9)
	defer f.Close()
	if f.Begun(ctx) {
		t.Error("a download that never began has begun")
	}
	if err := f.CopyTo(ctx, os.Stdout, func(int64) {}); !errors.Is(err, gone) {
		t.Errorf("%v", err)
	}
}

func TestOnlyLargeLayersAreRead(t *testing.T) {
	files, closeAll := Layers([]imagespec.Descriptor{{Size: MinSize - 1}, {Size: MinSize}, {Size: -1}})
	defer closeAll()
	if files[0] != nil || files[1] == nil || files[2] != nil {
		t.Errorf("%v", files)
	}
}
