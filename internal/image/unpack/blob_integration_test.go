//go:build integration

package unpack

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/berthrun/berth/internal/require"
)

// TestChildCannotChangeTheBlob: the file that a child gets reads as the blob from where it was, and takes no changes by those who
// may change the blob.
func TestChildCannotChangeTheBlob(t *testing.T) {
	require.Root(t)
	name := filepath.Join(t.TempDir(), "blob")
	if err := os.WriteFile(name, []byte("0123"), 0o600); err != nil {
		t.Fatal(err)
	}
	blob, err := os.Open(name)
	if err != nil {
		t.Fatal(err)
	}
	defer blob.Close()
	if _, err := blob.Seek(1, io.SeekStart); err != nil {
		t.Fatal(err)
	}
	given, err := readOnly(blob)
	if err != nil {
		t.Fatal(err)
	}
	fd := int(given.Fd())
	for what, err := range map[string]error{
		"mode": unix.Fchmod(fd, 0o777), "owner": unix.Fchown(fd, 1, 1), "attributes": unix.Fsetxattr(fd, "user.a", []byte("b"), 0),
		"times": unix.Futimes(fd, make([]unix.Timeval, 2)),
	} {
		if !errors.Is(err, unix.EROFS) {
			t.Errorf("a change of the blob's %s: %v", what, err)
		}
	}
	if data, err := io.ReadAll(given); err != nil || string(data) != "123" {
		t.Errorf("the child reads %q, %v", data, err)
	}
	if err := given.Close(); err != nil {
		t.Error(err)
	}
	if err := blob.Chmod(0o640); err != nil {
		t.Errorf("the daemon cannot change the blob: %v", err)
	}
	if mounts, err := os.ReadFile("/proc/self/mountinfo"); err != nil || strings.Contains(string(mounts), name) {
		t.Errorf("a mount is left: %s, %v", mounts, err)
	}
}
