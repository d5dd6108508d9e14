package sysfile_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/berthrun/berth/internal/sys/sysfile"
)

// deepTree creates nested directories with a file in the deepest one, as a program can that enters
// each directory.
func deepTree(t *testing.T, at string, depth int) {
	t.Helper()
	fd, err := unix.Open(at, unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	for range depth {
		var next int
		if err == nil {
			err = unix.Mkdirat(fd, "d", 0o700)
		}
		if err == nil {
			next, err = unix.Openat(fd, "d", unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		}
		if err != nil {
			t.Fatal(err)
		}
		unix.Close(fd)
		fd = next
	}
	defer unix.Close(fd)
	file, err := unix.Openat(fd, "file", unix.O_CREAT|unix.O_WRONLY|unix.O_CLOEXEC, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := unix.Write(file, make([]byte, 1<<20)); err != nil {
		t.Fatal(err)
	}
	unix.Close(file)
}

// limitFiles makes a test fail that opens many files at a time.
func limitFiles(t *testing.T, limit uint64) {
	t.Helper()
	var before unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &before); err != nil {
		t.Fatal(err)
	}
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: limit, Max: before.Max}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &before); err != nil {
			t.Error(err)
		}
	})
}

func TestDeepTrees(t *testing.T) {
	top := filepath.Join(t.TempDir(), "top")
	wide := filepath.Join(top, "wide")
	if err := os.MkdirAll(wide, 0o755); err != nil {
		t.Fatal(err)
	}
	for i := range 1000 {
		name := filepath.Join(wide, strconv.Itoa(i))
		if err := errors.Join(os.Mkdir(name, 0o755), os.Symlink("/etc", filepath.Join(name, "link"))); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Link(filepath.Join(wide, "1", "link"), filepath.Join(wide, "2", "again")); err != nil {
		t.Fatal(err)
	}
	const depth = 3000
	deepTree(t, top, depth)
	limitFiles(t, 256)
	used, err := sysfile.UsageOf(t.Context(), nil, top)
	if want := int64(1 + 1 + 2*1000 + depth + 1); err != nil || used.Inodes != want || used.Bytes < 1<<20 {
		t.Errorf("usage %+v, %v; want %d inodes", used, err, want)
	}
	if err := sysfile.RemoveTree(t.Context(), top); err != nil {
		t.Error(err)
	}
	if _, err := os.Lstat(top); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("it is still there: %v", err)
	}
	if _, err := os.Stat("/etc/passwd"); err != nil {
		t.Fatal("a link was followed")
	}
	if err := sysfile.RemoveTree(t.Context(), top); err != nil {
		t.Errorf("what is absent: %v", err)
	}
	if _, err := sysfile.UsageOf(t.Context(), nil, top); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("usage of what is absent: %v", err)
	}
}

// A removal stops with its context and leaves the rest. The next removal continues.
func TestRemovalEndsWithItsContext(t *testing.T) {
	top := filepath.Join(t.TempDir(), "top")
	if err := os.MkdirAll(filepath.Join(top, "below"), 0o755); err != nil {
		t.Fatal(err)
	}
	why := errors.New("the daemon stops")
	ended, cancel := context.WithCancelCause(t.Context())
	cancel(why)
	if err := sysfile.RemoveTree(ended, top); !errors.Is(err, why) {
		t.Errorf("a removal whose context has ended: %v", err)
	}
	if _, err := os.Stat(filepath.Join(top, "below")); err != nil {
		t.Errorf("it has removed what it should have left: %v", err)
	}
	if err := sysfile.RemoveTree(t.Context(), top); err != nil {
		t.Errorf("the next removal: %v", err)
	}
}

// A file that is removed during the walk does not affect the sum of the others.
func TestUsageOfATreeThatChanges(t *testing.T) {
	top := t.TempDir()
	if err := os.WriteFile(filepath.Join(top, "stays"), make([]byte, 1<<20), 0o600); err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	churned := make(chan struct{})
	go func() {
		defer close(churned)
		for i := 0; ctx.Err() == nil; i++ {
			dir := filepath.Join(top, "d"+strconv.Itoa(i%10))
			if os.Mkdir(dir, 0o700) == nil {
				_ = os.WriteFile(filepath.Join(dir, "f"), nil, 0o600)
			}
			_ = os.RemoveAll(dir)
		}
	}()
	for range 500 {
		if used, err := sysfile.UsageOf(ctx, nil, top); err != nil || used.Bytes < 1<<20 || used.Inodes < 2 {
			t.Errorf("usage %+v, %v", used, err)
			break
		}
	}
	stop()
	<-churned
	if _, err := sysfile.UsageOf(ctx, nil, top); !errors.Is(err, context.Canceled) {
		t.Errorf("usage for one who has left: %v", err)
	}
}
