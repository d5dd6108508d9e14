package logpump

/*
#cgo LDFLAGS: -lpthread
#include <stdlib.h>
#include "detached.h"
*/
import "C"

import (
	"fmt"
	"os"
	"runtime"
	"syscall"
	"unsafe"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/sys/sysfile"
)

// A log file is never open for writing in the process's table of descriptors.
//
// A fork copies the table, and the child closes its copies at execve. Closing a file
// calls its file system (FUSE and NFS flush). A file system that hangs would delay every
// start of a container and of a command, not only those of the pod whose log it has. So
// the process holds a log by an O_PATH descriptor, whose close calls no file system, and
// a thread with its own table opens the file for each write. Go's scheduler would use
// such a thread for other goroutines, so it is a C thread.

// writeDetached is f.WriteAt for an O_PATH f.
func writeDetached(f *os.File, p []byte, offset int64) (int, error) {
	if len(p) == 0 {
		return 0, nil
	}
	var errno C.int
	n := C.berth_log_write(C.int(f.Fd()), unsafe.Pointer(unsafe.SliceData(p)), C.size_t(len(p)), C.int64_t(offset), &errno)
	runtime.KeepAlive(f)
	if errno != 0 {
		return int(n), &os.PathError{Op: "write", Path: f.Name(), Err: syscall.Errno(errno)}
	}
	return int(n), nil
}

// createDetached makes the file at path beneath dir. An error wraps os.ErrExist
// when there is one; see sysfile.OpenBeneath for the others.
func createDetached(dir *os.File, path string, perm os.FileMode) error {
	name := C.CString(path)
	defer C.free(unsafe.Pointer(name))
	errno := C.berth_log_create(C.int(dir.Fd()), name, C.uint(perm.Perm()))
	runtime.KeepAlive(dir)
	if syscall.Errno(errno) == syscall.EAGAIN {
		return fmt.Errorf("cannot make a log: no thread can be started for it: %w", errs.Exhausted)
	}
	if errno != 0 {
		return fmt.Errorf("cannot make a log: %w", sysfile.BeneathError(dir, path, syscall.Errno(errno)))
	}
	return nil
}
