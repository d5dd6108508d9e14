package sysfile

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
)

// Each way to replace a file makes and replaces it, also where a killed writer has left its part, and leaves nothing else.
func TestReplace(t *testing.T) {
	for name, replace := range map[string]func(string, []byte) error{
		"Replace": Replace, "ReplaceWhole": ReplaceWhole, "ReplaceSynced": ReplaceSynced, "Reserve.ReplaceWhole": (*Reserve)(nil).ReplaceWhole,
	} {
		dir := t.TempDir()
		file := filepath.Join(dir, "file")
		if err := os.WriteFile(filepath.Join(dir, TempPrefix+"file"), []byte("a longer part of a file"), 0o600); err != nil {
			t.Fatal(err)
		}
		for _, content := range []string{"first", ""} {
			if err := replace(file, []byte(content)); err != nil {
				t.Errorf("%s: %v", name, err)
			}
			info, statErr := os.Stat(file)
			if got, err := os.ReadFile(file); string(got) != content || errors.Join(err, statErr) != nil || info.Mode() != 0o600 {
				t.Errorf("%s: %q, %v, want %q", name, got, err, content)
			}
		}
		if left, err := os.ReadDir(dir); err != nil || len(left) != 1 {
			t.Errorf("%s leaves %v, %v", name, left, err)
		}
		if err := replace(filepath.Join(dir, "absent", "file"), nil); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("%s: without the directory: %v", name, err)
		}
	}
}
