package local

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berthrun/berth/internal/cluster/clustertest"
	"github.com/berthrun/berth/internal/cluster/plan"
	"github.com/berthrun/berth/internal/errs"
)

func TestLockFile(t *testing.T) {
	dir := t.TempDir()
	name := filepath.Join(dir, "a")
	take := func(how int) func() {
		t.Helper()
		release, err := lockFile(name, how)
		if err != nil {
			t.Fatal(err)
		}
		return release
	}
	refused := func(how int) {
		t.Helper()
		if _, err := lockFile(name, how); !errors.Is(err, unix.EWOULDBLOCK) {
			t.Errorf("%v, want it held", err)
		}
	}
	release := take(unix.LOCK_EX)
	refused(unix.LOCK_EX)
	refused(unix.LOCK_SH)
	other, err := lockFile(filepath.Join(dir, "b"), unix.LOCK_EX)
	if err != nil {
		t.Fatal(err)
	}
	release()
	one, two := take(unix.LOCK_SH), take(unix.LOCK_SH)
	refused(unix.LOCK_EX)
	one()
	refused(unix.LOCK_EX)
	two()
	take(unix.LOCK_EX)()
	other()
	if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
		t.Errorf("left: %v, %v", left, err)
	}
}

// TestLockIsOneOnly: many callers take and release the lock, and the file is created and removed
// each time. Only one caller holds the lock at a time.
func TestLockIsOneOnly(t *testing.T) {
	name := filepath.Join(t.TempDir(), "a")
	var inside, had atomic.Int32
	var group sync.WaitGroup
	for range 8 {
		group.Go(func() {
			for range 200 {
				release, err := lockFile(name, unix.LOCK_EX)
				if errors.Is(err, unix.EWOULDBLOCK) {
					continue
				}
				if err != nil {
					t.Error(err)
					return
				}
				had.Add(1)
				if inside.Add(1) != 1 {
					t.Error("two have it")
				}
				inside.Add(-1)
				release()
			}
		})
	}
	group.Wait()
	if had.Load() == 0 {
		t.Error("nobody had it")
	}
}

// TestLockIsOfTheName: a process opens the lock file, and then the holder removes the file. The
// process does not get the lock, because a third process could create the file again and lock it.
func TestLockIsOfTheName(t *testing.T) {
	name := filepath.Join(t.TempDir(), "a")
	file, err := os.Create(name)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	// An open of a file with a lease finds the file and then waits until the lease ends.
	if _, err := unix.FcntlInt(file.Fd(), unix.F_SETLEASE, unix.F_WRLCK); err != nil {
		t.Fatalf("the file system has no leases: %v", err)
	}
	late := make(chan error, 1)
	go func() {
		_, err := lockFile(name, unix.LOCK_EX)
		late <- err
	}()
	for {
		lease, err := unix.FcntlInt(file.Fd(), unix.F_GETLEASE, 0)
		if err != nil {
			t.Fatal(err)
		}
		if lease != unix.F_WRLCK {
			break // a process opens the file
		}
		select {
		case err := <-late:
			t.Fatalf("the file was opened in spite of its lease: %v", err)
		case <-time.After(time.Millisecond):
		}
	}
	if err := os.Remove(name); err != nil {
		t.Fatal(err)
	}
	release, err := lockFile(name, unix.LOCK_EX)
	if err != nil {
		t.Fatal(err)
	}
	defer release()
	if _, err := unix.FcntlInt(file.Fd(), unix.F_SETLEASE, unix.F_UNLCK); err != nil {
		t.Fatal(err)
	}
	if err := <-late; !errors.Is(err, unix.EWOULDBLOCK) {
		t.Errorf("%v, want it held", err)
	}
}

// TestLocksLeaveNothing: the directory goes with the last lock in it, also while others take theirs.
func TestLocksLeaveNothing(t *testing.T) {
	run, home := t.TempDir(), t.TempDir()
	dir, err := lockDir(os.Getuid(), run, home)
	if err != nil {
		t.Fatal(err)
	}
	var all sync.WaitGroup
	for holder := range 8 {
		all.Go(func() {
			for range 200 {
				release, err := lockUser(os.Getuid(), run, home, strconv.Itoa(holder), unix.LOCK_EX)
				if err != nil {
					t.Error(err)
					return
				}
				release()
			}
		})
	}
	all.Wait()
	if _, err := os.Lstat(dir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("%s stays: %v", dir, err)
	}
}

// TestLockDir: no other user can create a file in the lock directory, so no other user can hold a
// lock.
func TestLockDir(t *testing.T) {
	uid := os.Getuid()
	run, home := t.TempDir(), t.TempDir()
	own := filepath.Join(run, "user", strconv.Itoa(uid))
	if uid == 0 {
		own = run
	}
	want := filepath.Join(own, "berth-cluster")
	if uid != 0 {
		if got, err := lockDir(uid, run, home); err != nil || got != filepath.Join(home, ".cache", "berth", "clusters") {
			t.Errorf("without a directory for the session: %s, %v", got, err)
		}
		if err := os.MkdirAll(own, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	got, err := lockDir(uid, run, home)
	if err != nil || got != want {
		t.Fatalf("%s, %v, want %s", got, err, want)
	}
	if info, err := os.Lstat(got); err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("%v, %v", info, err)
	}
	for name, squat := range map[string]func() error{
		"others may write": func() error { return errors.Join(os.Mkdir(want, 0o700), os.Chmod(want, 0o777)) },
		"a link":           func() error { return os.Symlink(t.TempDir(), want) },
	} {
		if err := os.RemoveAll(want); err != nil {
			t.Fatal(err)
		}
		if err := squat(); err != nil {
			t.Fatal(err)
		}
		if got, err := lockDir(uid, run, home); !errors.Is(err, errs.State) {
			t.Errorf("%s: %s, %v", name, got, err)
		}
	}
	if _, err := lockDir(uid+1, t.TempDir(), ""); uid+1 != 0 && !errors.Is(err, errs.State) {
		t.Errorf("a user without any place: %v", err)
	}
}

// TestLockIsInItsDirectory: the lock is a file in a directory that this user owns. Other users
// could lock a file anywhere else.
func TestLockIsInItsDirectory(t *testing.T) {
	home := clustertest.InstallPodman(t)
	engine, err := Open(t.Context(), Options{})
	if err != nil {
		t.Fatal(err)
	}
	before := locks(t, home)
	release, err := Lock(engine, plan.RegistryGroup)
	if err != nil {
		t.Fatal(err)
	}
	defer release()
	if !slices.ContainsFunc(locks(t, home), func(name string) bool { return !slices.Contains(before, name) }) {
		t.Error("the lock is not in the directory of locks")
	}
}

// TestCreationLock: several processes may create clusters at the same time. One that removes what
// clusters share does it while no other process creates one.
func TestCreationLock(t *testing.T) {
	clustertest.InstallPodman(t)
	engine, err := Open(t.Context(), Options{})
	if err != nil {
		t.Fatal(err)
	}
	one, err1 := shareCreation(t.Context(), engine)
	two, err2 := shareCreation(t.Context(), engine)
	if err := errors.Join(err1, err2); err != nil {
		t.Fatal(err)
	}
	for _, release := range []func(){one, two} {
		if _, err := ownCreation(engine); !errors.Is(err, errs.State) {
			t.Errorf("others create clusters: %v", err)
		}
		release()
	}
	release, err := ownCreation(engine)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	if _, err := shareCreation(ctx, engine); !errors.Is(err, errs.State) {
		t.Errorf("another removes: %v", err)
	}
	release()
	if release, err = shareCreation(t.Context(), engine); err != nil {
		t.Fatal(err)
	}
	release()
}

// locks returns the names of the lock files that are held now, including those of other berth
// processes.
func locks(t *testing.T, home string) (names []string) {
	t.Helper()
	dir, err := lockDir(os.Getuid(), "/run", home)
	if err != nil {
		t.Fatal(err)
	}
	files, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		names = append(names, file.Name())
	}
	return names
}
