package sysfile

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berthrun/berth/internal/errs"
)

// TestCopyTree: the copy has the content of the tree and the attributes of its files.
func TestCopyTree(t *testing.T) {
	from, to, outside := t.TempDir(), t.TempDir(), filepath.Join(t.TempDir(), "secret")
	in := func(name string) string { return filepath.Join(from, name) }
	big := bytes.Repeat([]byte("0123456789abcdef"), copyChunk/16)
	big = append(big, "end"...)
	old := time.Unix(1000000000, 123456789)
	if err := errors.Join(
		os.WriteFile(outside, []byte("the host's"), 0o600),
		os.WriteFile(in("plain"), []byte("text"), 0o640),
		os.WriteFile(in("big"), big, 0o600),
		os.WriteFile(in("suid"), nil, 0o700), os.Chmod(in("suid"), 0o755|os.ModeSetuid),
		os.Mkdir(in("d"), 0o700), os.WriteFile(in("d/in"), []byte("below"), 0o600), os.Chtimes(in("d/in"), old, old),
		os.Link(in("plain"), in("d/second")),
		os.Chmod(in("d"), 0o751|os.ModeSticky|os.ModeSetgid), os.Chtimes(in("d"), old, old),
		os.Symlink(outside, in("out")), os.Symlink("nowhere", in("d/loose")),
		unix.Mkfifo(in("fifo"), 0o622),
		os.Chmod(from, 0o711), os.Chtimes(from, old, old),
	); err != nil {
		t.Fatal(err)
	}
	withXattrs := unix.Lsetxattr(in("plain"), "user.note", []byte("x\x00y"), 0) == nil
	var last Copied
	if err := CopyTree(t.Context(), from, to, func(now Copied) { last = now }); err != nil {
		t.Fatal(err)
	}
	if want := (Copied{Files: 9, Bytes: int64(len(big) + len("textbelow"))}); last != want {
		t.Errorf("told %+v, want %+v", last, want)
	}
	if want, got := listing(t, from), listing(t, to); got != want {
		t.Errorf("the copy is\n%swant\n%s", got, want)
	}
	one, err1 := os.Stat(filepath.Join(to, "plain"))
	two, err2 := os.Stat(filepath.Join(to, "d/second"))
	if err1 != nil || err2 != nil || !os.SameFile(one, two) {
		t.Errorf("two names of one file became two files: %v, %v", err1, err2)
	}
	if original, err := os.Stat(in("plain")); err != nil || os.SameFile(one, original) {
		t.Errorf("the copy is the original: %v", err)
	}
	value := make([]byte, 16)
	if n, err := unix.Lgetxattr(filepath.Join(to, "d/second"), "user.note", value); withXattrs && string(value[:max(n, 0)]) != "x\x00y" {
		t.Errorf("attribute %q, %v", value[:max(n, 0)], err)
	}
	if data, err := os.ReadFile(filepath.Join(to, "big")); err != nil || !bytes.Equal(data, big) {
		t.Errorf("a large file has %d bytes, not all of them right: %v", len(data), err)
	}
}

// listing returns everything about the files in a tree that a copy must have.
func listing(t *testing.T, root string) string {
	t.Helper()
	var b strings.Builder
	err := filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		var st unix.Stat_t
		if err := unix.Lstat(path, &st); err != nil {
			return err
		}
		name, _ := filepath.Rel(root, path)
		link, _ := os.Readlink(path)
		size := st.Size
		if entry.IsDir() {
			size = 0
		}
		fmt.Fprintf(&b, "%s %o %d:%d %d bytes, %d.%d %s\n", name, st.Mode, st.Uid, st.Gid, size, st.Mtim.Sec, st.Mtim.Nsec, link)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return b.String()
}

func TestCopyTreeEndsWithItsContext(t *testing.T) {
	from, to := t.TempDir(), t.TempDir()
	for i := range 5 {
		if err := os.WriteFile(filepath.Join(from, fmt.Sprint(i)), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	gone := errors.New("nobody waits")
	err := CopyTree(ctx, from, to, func(now Copied) {
		if now.Files == 2 {
			cancel(gone)
		}
	})
	if left, _ := os.ReadDir(to); !errors.Is(err, gone) || len(left) != 2 {
		t.Errorf("%v, after %d files", err, len(left))
	}
}

func TestCopyTreeIsBounded(t *testing.T) {
	from, to := t.TempDir(), t.TempDir()
	dir, err := os.OpenRoot(from)
	if err != nil {
		t.Fatal(err)
	}
	for range maxTreeDepth + 1 {
		if err := dir.Mkdir("d", 0o755); err != nil {
			t.Fatal(err)
		}
		below, err := dir.OpenRoot("d")
		if err != nil {
			t.Fatal(err)
		}
		if err := dir.Close(); err != nil {
			t.Fatal(err)
		}
		dir = below
	}
	if err := dir.Close(); err != nil {
		t.Fatal(err)
	}
	if err := CopyTree(t.Context(), from, to, nil); !errors.Is(err, errs.Invalid) {
		t.Errorf("%v, want kind Invalid", err)
	}
	if err := CopyTree(t.Context(), filepath.Join(from, "absent"), to, nil); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("an absent tree: %v", err)
	}
}
