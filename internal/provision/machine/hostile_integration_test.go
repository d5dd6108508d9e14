//go:build integration

package machine

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/provision"
	"github.com/berthrun/berth/internal/require"
)

const stranger = 65534

// TestHostileDirectory: links that a user creates in a directory of his own do not redirect root.
// Links of root do.
func TestHostileDirectory(t *testing.T) {
	require.Root(t)
	base := t.TempDir()
	his, roots := filepath.Join(base, "his"), filepath.Join(base, "roots")
	victim := filepath.Join(roots, "victim")
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(os.Mkdir(his, 0o755))
	must(os.Mkdir(roots, 0o755))
	must(os.Chown(his, stranger, stranger))
	must(os.WriteFile(victim, []byte("root's"), 0o600))
	must(os.Symlink(roots, filepath.Join(his, "dir")))
	must(os.Symlink(victim, filepath.Join(his, "file")))
	must(os.Link(victim, filepath.Join(his, "hard")))
	must(syscall.Mkfifo(filepath.Join(his, "fifo"), 0o600))
	for _, link := range []string{"dir", "file"} {
		must(os.Lchown(filepath.Join(his, link), stranger, stranger))
	}
	must(os.Symlink(roots, filepath.Join(base, "legit")))
	f := newFiles("/", nil, "")
	attr := provision.Attr{Mode: 0o666, UID: stranger, GID: stranger}
	for name, change := range map[string]func() error{
		"write over his directory link":  func() error { return f.Write(his+"/dir/new", strings.NewReader("x"), attr) },
		"chmod over his directory link":  func() error { return f.SetAttr(his+"/dir/victim", attr) },
		"remove over his directory link": func() error { return f.Remove(his + "/dir/victim") },
		"remove all over it":             func() error { return f.RemoveAll(his + "/dir/victim") },
		"append to his link":             func() error { return f.Append(his+"/file", []byte("x"), attr) },
		"reserve in his link":            func() error { return f.Reserve(his+"/file", 1<<20) },
		"chmod of a hard link":           func() error { return f.SetAttr(his+"/hard", attr) },
		"append to a fifo":               func() error { return f.Append(his+"/fifo", []byte("x"), attr) },
		"read of his link":               func() error { _, err := f.Open(his + "/file"); return err },
		"read of a fifo":                 func() error { _, err := f.Open(his + "/fifo"); return err },
	} {
		if err := change(); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
	must(f.SetAttr(his+"/file", attr)) // the owner of the link itself, not of its target
	must(f.Write(his+"/file", strings.NewReader("new"), attr))
	must(f.Write(his+"/fifo", strings.NewReader("new"), attr))
	data, err := os.ReadFile(victim)
	must(err)
	info, err := os.Stat(victim)
	must(err)
	if st := info.Sys().(*syscall.Stat_t); string(data) != "root's" || info.Mode().Perm() != 0o600 || st.Uid != 0 {
		t.Errorf("root's file is %q, %v, of %d", data, info.Mode(), st.Uid)
	}
	if err := f.Write(his+"/dir/new", strings.NewReader("x"), attr); !errors.Is(err, errs.State) {
		t.Errorf("got %v, want errs.State", err)
	}
	must(f.Write(base+"/legit/new", strings.NewReader("x"), attr))
	must(f.SetAttr(base+"/legit/new", provision.Attr{Mode: 0o640}))
	must(f.Remove(base + "/legit/new"))
}
