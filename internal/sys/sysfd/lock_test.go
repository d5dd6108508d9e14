package sysfd

import (
	"os"
	"path/filepath"
	"testing"
)

func TestTransientLockRemovesItsFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "lock")
	for range 2 {
		lock, _, err := TryLockTransient(path)
		if err != nil || lock == nil {
			t.Fatalf("no lock: %v", err)
		}
		if _, err := os.Stat(path); err != nil {
			t.Errorf("while it is held: %v", err)
		}
		if err := lock.Remove(); err != nil {
			t.Error(err)
		}
		if _, err := os.Stat(path); !os.IsNotExist(err) {
			t.Errorf("the file is still there after Remove: %v", err)
		}
	}
}
