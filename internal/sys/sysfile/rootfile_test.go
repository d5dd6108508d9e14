package sysfile

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/berthrun/berth/internal/errs"
)

// A hostile root filesystem, whose files try to make the reader hang, read the host's files, or
// read endlessly.
func TestReadInHostileRoot(t *testing.T) {
	outside, root := t.TempDir(), t.TempDir()
	secret := filepath.Join(outside, "secret")
	if err := errors.Join(
		os.WriteFile(secret, []byte("the host's"), 0o600),
		os.Mkdir(filepath.Join(root, "etc"), 0o755),
		os.Mkdir(filepath.Join(root, "real"), 0o755),
		os.WriteFile(filepath.Join(root, "etc", "plain"), []byte("plain"), 0o600),
		os.WriteFile(filepath.Join(root, "real", "target"), []byte("linked"), 0o600),
		os.WriteFile(filepath.Join(root, "etc", "huge"), []byte(strings.Repeat("x", 100)), 0o600),
		os.Symlink("/real/target", filepath.Join(root, "etc", "absolute")),
		os.Symlink("../../../../real/target", filepath.Join(root, "etc", "upwards")),
		os.Symlink(secret, filepath.Join(root, "etc", "escape")),
		os.Symlink("loop", filepath.Join(root, "etc", "loop")),
		os.Symlink("/proc/self/fd/0", filepath.Join(root, "etc", "magic")),
		unix.Mkfifo(filepath.Join(root, "etc", "fifo"), 0o600),
	); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		path, want string
		kind       error
	}{
		{"etc/plain", "plain", nil},
		{"/etc/plain", "plain", nil},
		{"etc/absolute", "linked", nil},
		{"etc/upwards", "linked", nil},
		{"etc/huge", strings.Repeat("x", 10), nil},
		{"etc/escape", "", errs.NotFound},
		{"etc/magic", "", errs.NotFound},
		{"etc/absent", "", errs.NotFound},
		{"etc/plain/below", "", errs.NotFound},
		{"etc/fifo", "", errs.Invalid},
		{"etc", "", errs.Invalid},
	} {
		got, err := ReadInRoot(root, c.path, 10)
		if string(got) != c.want || !errors.Is(err, c.kind) {
			t.Errorf("%s: %q, %v; want %q, kind %v", c.path, got, err, c.want, c.kind)
		}
	}
	if _, err := ReadInRoot(root, "etc/loop", 10); err == nil {
		t.Error("a link to itself was read")
	}
	if _, err := ReadRegular("/dev/zero", 10); !errors.Is(err, errs.Invalid) {
		t.Errorf("a device: %v, want kind Invalid", err)
	}
}

// The path of a root filesystem may contain links, because it comes from the configuration.
func TestDirInLinkedRoot(t *testing.T) {
	at := t.TempDir()
	linked := filepath.Join(at, "linked")
	if err := errors.Join(
		os.MkdirAll(filepath.Join(at, "real", "a", "b"), 0o755),
		os.Symlink("/a/b", filepath.Join(at, "real", "within")),
		os.Symlink("real", linked),
	); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]string{"": linked, "a": linked + "/a", "within": linked + "/a/b", "/": linked, "..": linked} {
		if got, err := DirInRoot(linked, path); err != nil || got != want {
			t.Errorf("%q: %q, %v; want %q", path, got, err, want)
		}
	}
}
