package sysfile

import (
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

// A reserve has blocks of its own, and a file that is written with it is complete.
func TestReserve(t *testing.T) {
	dir := t.TempDir()
	kept, file := filepath.Join(dir, "reserve"), filepath.Join(dir, "file")
	r := KeepReserve(kept)
	var st unix.Stat_t
	if err := unix.Stat(kept, &st); err != nil || st.Size != reserveSize || st.Blocks*512 < reserveSize {
		t.Errorf("%d bytes in %d blocks, %v", st.Size, st.Blocks, err)
	}
	for _, write := range []func(string, []byte) error{Replace, r.Replace, r.Write, (*Reserve)(nil).Replace} {
		for _, text := range []string{"first", "second"} {
			if err := write(file, []byte(text)); err != nil {
				t.Fatal(err)
			}
			if got, err := os.ReadFile(file); string(got) != text || err != nil {
				t.Errorf("%q, %v", got, err)
			}
		}
		if err := os.Remove(file); err != nil {
			t.Fatal(err)
		}
	}
}

// If there is not enough space for the whole reserve, nothing of it stays, and the file does not
// change.
func TestReserveOfAFullDisk(t *testing.T) {
	r := &Reserve{path: filepath.Join(t.TempDir(), "absent", "reserve")}
	if r.hold(); r.held {
		t.Error("held in a directory that is not there")
	}
	file := filepath.Join(t.TempDir(), "file")
	if err := os.Mkdir(filepath.Join(filepath.Dir(file), TempPrefix+"file"), 0o700); err != nil { // a name conflict
		t.Fatal(err)
	}
	if err := r.Write(file, nil); err == nil {
		t.Error("no error")
	}
}
