package sysfile

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

func TestReadFile(t *testing.T) {
	dir := t.TempDir()
	in := func(name string) string { return filepath.Join(dir, name) }
	for _, err := range []error{
		os.WriteFile(in("file"), []byte("text"), 0o600), os.Symlink("file", in("link")), unix.Mkfifo(in("pipe"), 0o600), os.Symlink("pipe", in("piped")),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{"file", "link"} {
		if data, err := ReadFile(in(name), 4); err != nil || string(data) != "text" {
			t.Errorf("%s: %q, %v", name, data, err)
		}
	}
	for name, want := range map[string]string{
		"pipe": "is not a regular file", "piped": "is not a regular file", "": "is a directory", "file/x": "not a directory", "file": "has more than 3 bytes",
	} {
		var fault *fs.PathError
		if _, err := ReadFile(in(name), 3); !errors.As(err, &fault) || fault.Path != in(name) || fault.Err.Error() != want {
			t.Errorf("%s: %v, want %s", name, err, want)
		}
	}
	if _, err := ReadFile(in("gone"), 3); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a file that is not there: %v", err)
	}
}
