package systemd

import (
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// Filler is the file of Fill.
const Filler = "/var/filler"

// Fill leaves this many bytes free on the machine's disk, by a file.
func (m *Machine) Fill(free int64) {
	m.t.Helper()
	at := filepath.Join(m.Root, Filler)
	m.Empty()
	var disk unix.Statfs_t
	if err := unix.Statfs(m.Root, &disk); err != nil {
		m.t.Fatalf("cannot ask for the machine's disk: %v", err)
	}
	file, err := os.Create(at)
	if err != nil {
		m.t.Fatal(err)
	}
	defer file.Close()
	if size := int64(disk.Bavail)*disk.Bsize - free; size > 0 {
		if err := unix.Fallocate(int(file.Fd()), 0, 0, size); err != nil {
			m.t.Fatalf("cannot fill the machine's disk: %v", err)
		}
	}
}

// Empty undoes Fill.
func (m *Machine) Empty() {
	m.t.Helper()
	if err := os.Remove(filepath.Join(m.Root, Filler)); err != nil && !os.IsNotExist(err) {
		m.t.Fatal(err)
	}
}
