package sysquota

import (
	"errors"
	"os"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Calls of the kernel that package unix does not have, and their argument; see linux/fs.h.
const (
	fsGetXattr = 0x801c581f // FS_IOC_FSGETXATTR
	fsSetXattr = 0x401c5820 // FS_IOC_FSSETXATTR
	// inherits is FS_XFLAG_PROJINHERIT.
	inherits = 0x200
)

type fsxattr struct {
	flags, extentSize, extents, project, cowExtentSize uint32
	_                                                  [8]byte
}

// Project is what a directory has.
type Project struct {
	// ID is 0 for a directory that belongs to no project.
	ID uint32
	// Inherited is true if new files in the directory get its project, and new directories this property, too. Then no
	// file of another project can be moved into it.
	Inherited bool
}

// ProjectOf returns the project of a directory: none on a file system without projects.
func ProjectOf(dir string) (Project, error) {
	f, err := openDirectory(dir)
	if err != nil {
		return Project{}, err
	}
	defer f.Close()
	return projectOf(f)
}

func projectOf(f *os.File) (Project, error) {
	var attr fsxattr
	err := ioctl(f, fsGetXattr, &attr)
	if errors.Is(err, unix.ENOTTY) || errors.Is(err, unix.EOPNOTSUPP) {
		return Project{}, nil
	}
	return Project{ID: attr.project, Inherited: attr.flags&inherits != 0}, err
}

// SetProject gives a project to an empty directory, and to all that is created in it from then on.
func SetProject(dir string, id uint32) error {
	f, err := openDirectory(dir)
	if err != nil {
		return err
	}
	defer f.Close()
	var attr fsxattr
	if err := ioctl(f, fsGetXattr, &attr); err != nil {
		return err
	}
	attr.project, attr.flags = id, attr.flags|inherits
	return ioctl(f, fsSetXattr, &attr)
}

func openDirectory(dir string) (*os.File, error) {
	return os.OpenFile(dir, unix.O_DIRECTORY|unix.O_NOFOLLOW, 0)
}

func ioctl(f *os.File, request uintptr, attr *fsxattr) error {
	_, _, errno := unix.Syscall(unix.SYS_IOCTL, f.Fd(), request, uintptr(unsafe.Pointer(attr)))
	if errno != 0 {
		return &os.PathError{Op: "project of", Path: f.Name(), Err: errno}
	}
	return nil
}
