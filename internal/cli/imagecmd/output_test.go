package imagecmd

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/berthrun/berth/internal/errs"
)

// TestOutputReplacesRegularFilesOnly: an archive takes the place of an earlier one when it is complete, also behind a link, and
// of nothing else.
func TestOutputReplacesRegularFilesOnly(t *testing.T) {
	dir := t.TempDir()
	at := func(name string) string { return filepath.Join(dir, name) }
	write := func(name, text string) *outputFile {
		t.Helper()
		o, err := createOutput(at(name))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := o.WriteString(text); err != nil {
			t.Fatal(err)
		}
		return o
	}
	has := func(name, want string) {
		t.Helper()
		if data, err := os.ReadFile(at(name)); err != nil || string(data) != want {
			t.Errorf("%s has %q, %v, want %q", name, data, err, want)
		}
		if _, err := os.Lstat(at(name) + ".part"); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("a part of %s is left: %v", name, err)
		}
	}
	if err := errors.Join(os.WriteFile(at("private"), []byte("old"), 0o600), os.Symlink("private", at("link")), unix.Mkfifo(at("fifo"), 0o600)); err != nil {
		t.Fatal(err)
	}
	if err := write("new", "all").Commit(); err != nil {
		t.Error(err)
	}
	has("new", "all")
	if err := write("link", "a part").Discard(); err != nil {
		t.Error(err)
	}
	has("private", "old")
	if err := write("link", "all").Commit(); err != nil {
		t.Error(err)
	}
	has("private", "all")
	if fi, err := os.Lstat(at("link")); err != nil || fi.Mode()&os.ModeSymlink == 0 {
		t.Errorf("the link is %v, %v", fi, err)
	}
	if fi, err := os.Stat(at("private")); err != nil || fi.Mode() != 0o600 {
		t.Errorf("the file is %v, %v, want its mode of before", fi, err)
	}

	reader, err := os.OpenFile(at("fifo"), os.O_RDWR, 0) // so that no open waits
	if err != nil {
		t.Fatal(err)
	}
	defer reader.Close()
	o := write("fifo", "all")
	if err := o.Commit(); err != nil {
		t.Errorf("a pipe: %v", err)
	}
	got := make([]byte, 3)
	if _, err := reader.Read(got); err != nil || string(got) != "all" {
		t.Errorf("the pipe has %q, %v", got, err)
	}
	if fi, err := os.Lstat(at("fifo")); err != nil || fi.Mode()&os.ModeNamedPipe == 0 {
		t.Errorf("the pipe is %v, %v", fi, err)
	}
	if _, err := createOutput(dir); !errors.Is(err, errs.Invalid) {
		t.Errorf("a directory: %v", err)
	}
	b := &bundling{output: at("fifo")} // which has no daemon: it must not ask one
	if err := b.run(t.Context(), nil); !errors.Is(err, errs.Invalid) {
		t.Errorf("a bundle in a pipe: %v", err)
	}
}
