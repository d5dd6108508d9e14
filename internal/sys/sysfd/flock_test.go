package sysfd

import (
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

func TestFlockHolder(t *testing.T) {
	path := filepath.Join(t.TempDir(), "lock")
	if pid := FlockHolder(path); pid != 0 {
		t.Errorf("a file that is not there: %d", pid)
	}
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if pid := FlockHolder(path); pid != 0 {
		t.Errorf("a file that is not locked: %d", pid)
	}
	if !hasOpen(os.Getpid(), path) || hasOpen(os.Getpid(), filepath.Dir(path)) {
		t.Error("the descriptors of this process")
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX); err != nil {
		t.Fatal(err)
	}
	if pid := FlockHolder(path); pid != os.Getpid() {
		t.Errorf("the file is locked by process %d, want %d", pid, os.Getpid())
	}
}
