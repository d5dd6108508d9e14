package sysns

import (
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// SysctlDirs are open directories of /proc/sys, of the namespaces that the thread was in. The kernel looks
// through the directories of all network namespaces for each name below /proc/sys/net: with many pods, a path
// takes long, and a name in an open directory does not. The zero value is ready. It is for one thread.
type SysctlDirs struct{ open map[string]int }

// Close closes them.
func (d *SysctlDirs) Close() {
	for _, fd := range d.open {
		unix.Close(fd)
	}
	d.open = nil
}

// Read returns the value of a sysctl, by its file below /proc/sys.
func (d *SysctlDirs) Read(file string) (string, error) {
	f, err := d.file(file, unix.O_RDONLY)
	if err != nil {
		return "", err
	}
	defer f.Close()
	value := make([]byte, 256)
	n, err := f.Read(value)
	return strings.TrimSpace(string(value[:n])), err
}

// Write sets a sysctl. One that the kernel does not have is an error.
func (d *SysctlDirs) Write(file, value string) error {
	f, err := d.file(file, unix.O_WRONLY)
	if err != nil {
		return err
	}
	_, err = f.WriteString(value)
	if closeErr := f.Close(); err == nil {
		err = closeErr
	}
	return err
}

// file opens a file. It does not make one.
func (d *SysctlDirs) file(file string, flags int) (*os.File, error) {
	path := filepath.Join("/proc/sys", file)
	dir, err := d.dir(filepath.Dir(path))
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: path, Err: err}
	}
	fd, err := unix.Openat(dir, filepath.Base(path), flags|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: path, Err: err}
	}
	return os.NewFile(uintptr(fd), path), nil
}

func (d *SysctlDirs) dir(path string) (int, error) {
	if fd, open := d.open[path]; open {
		return fd, nil
	}
	fd, err := unix.Open(path, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1, err
	}
	if d.open == nil {
		d.open = map[string]int{}
	}
	d.open[path] = fd
	return fd, nil
}
