package sysfile_test

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/sys/sysfd"
	"github.com/berthrun/berth/internal/sys/sysfile"
)

func TestOpenBeneath(t *testing.T) {
	outside, inside := t.TempDir(), t.TempDir()
	for _, step := range []error{
		os.Mkdir(filepath.Join(inside, "sub"), 0o755),
		os.WriteFile(filepath.Join(inside, "sub", "file"), []byte("x"), 0o600),
		os.WriteFile(filepath.Join(outside, "file"), nil, 0o600),
		os.Symlink(outside, filepath.Join(inside, "link")),
		os.Symlink("sub", filepath.Join(inside, "inner")),
	} {
		if step != nil {
			t.Fatal(step)
		}
	}
	dir, err := os.Open(inside)
	if err != nil {
		t.Fatal(err)
	}
	defer dir.Close()
	f, err := sysfile.OpenBeneath(dir, "sub/file", os.O_RDONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for _, path := range []string{"../x", "/etc/passwd", "link/file", "inner/file", "link", "", "sub/../../x"} {
		if f, err := sysfile.OpenBeneath(dir, path, os.O_RDONLY, 0); !errors.Is(err, errs.Invalid) {
			t.Errorf("%q: %v, %v, want Invalid", path, f, err)
		}
	}
	if _, err := sysfile.OpenBeneath(dir, "absent", os.O_RDONLY, 0); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("absent: %v, want os.ErrNotExist", err)
	}

	st, err := sysfile.StatFile(f)
	if err != nil || st.Size != 1 || st.Links != 1 || !st.Regular {
		t.Errorf("StatFile = %+v, %v", st, err)
	}
	sub, err := os.Open(filepath.Join(inside, "sub"))
	if err != nil {
		t.Fatal(err)
	}
	defer sub.Close()
	if err := os.Rename(f.Name(), f.Name()+".old"); err != nil {
		t.Fatal(err)
	}
	if name, err := sysfile.FindFile(sub, st.ID); err != nil || name != "file.old" {
		t.Errorf("FindFile = %q, %v", name, err)
	}
	if name, err := sysfile.FindFile(dir, st.ID); !errors.Is(err, errs.NotFound) {
		t.Errorf("FindFile in another directory = %q, %v, want NotFound", name, err)
	}
}

func TestPollerReportsOnceForEachArming(t *testing.T) {
	poller, err := sysfd.NewPoller()
	if err != nil {
		t.Fatal(err)
	}
	defer poller.Close()
	reader, container, err := sysfd.OutputPipe(sysfd.Owner{})
	if err != nil {
		t.Fatal(err)
	}
	defer reader.Close()
	defer container.Close()
	const token = 1<<40 + 7
	if err := poller.Add(reader, token); err != nil {
		t.Fatal(err)
	}
	if _, err := container.WriteString("x"); err != nil {
		t.Fatal(err)
	}
	expect := func(want ...uint64) {
		t.Helper()
		got, err := poller.Wait(make([]uint64, 0, 4))
		if err != nil || len(got) != len(want) || (len(want) > 0 && got[0] != want[0]) {
			t.Fatalf("Wait = %v, %v, want %v", got, err, want)
		}
	}
	expect(token)
	// Still readable, but not armed: only Wake ends the next Wait.
	if err := poller.Wake(); err != nil {
		t.Fatal(err)
	}
	expect()
	if err := poller.Arm(reader, token); err != nil {
		t.Fatal(err)
	}
	expect(token)
}
