package sysfd

import (
	"os"
	"testing"
)

// The count is that of the list of descriptors, without the descriptor that the list is read with.
func TestCountFDs(t *testing.T) {
	for _, more := range []int{0, 1, 300} {
		var files []*os.File
		for range more {
			f, err := NewMemfd("counted")
			if err != nil {
				t.Fatal(err)
			}
			files = append(files, f)
		}
		listed, err := os.ReadDir("/proc/self/fd")
		if err != nil {
			t.Fatal(err)
		}
		open, limit, err := CountFDs()
		if err != nil || limit <= 0 || open != len(listed)-1 && open != len(listed) {
			t.Errorf("counted %d of %d, listed %d: %v", open, limit, len(listed)-1, err)
		}
		for _, f := range files {
			f.Close()
		}
	}
}
