package database

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// TestHeldBy: an operator learns which process has the store, or how to find it.
func TestHeldBy(t *testing.T) {
	path := filepath.Join(t.TempDir(), "lock")
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if said := HeldBy(path); !strings.Contains(said, "another process has "+path) || !strings.Contains(said, "fuser "+path) {
		t.Errorf("nobody has it: %s", said)
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX); err != nil {
		t.Fatal(err)
	}
	if said := HeldBy(path); !strings.HasPrefix(said, fmt.Sprintf("process %d (%s", os.Getpid(), os.Args[0])) || !strings.Contains(said, ") has "+path+": ") {
		t.Errorf("this process has it: %s", said)
	}
}
