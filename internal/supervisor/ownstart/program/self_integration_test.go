//go:build integration && !berth_init

package program

import (
	"bytes"
	"fmt"
	"os"
	"testing"

	"github.com/berthrun/berth/internal/require"
)

// TestProgramCannotBeWritten through the handle, and is this one.
func TestProgramCannotBeWritten(t *testing.T) {
	require.Root(t)
	want, err := os.ReadFile("/proc/self/exe")
	if err != nil {
		t.Fatal(err)
	}
	handle, err := sealSelf(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	defer handle.Close()
	path := fmt.Sprint("/proc/self/fd/", handle.Fd())
	if got, err := os.ReadFile(path); err != nil || !bytes.Equal(got, want) {
		t.Errorf("it is another program, %d bytes of %d: %v", len(got), len(want), err)
	}
	for _, flags := range []int{os.O_WRONLY, os.O_RDWR, os.O_WRONLY | os.O_TRUNC} {
		if f, err := os.OpenFile(path, flags, 0); err == nil {
			_, err = f.Write([]byte{0})
			f.Close()
			if err == nil {
				t.Errorf("it was written with %#x", flags)
			}
		}
	}
}
