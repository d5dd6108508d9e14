package endings

import (
	"os"
	"sync"

	"github.com/berthrun/berth/internal/sys/sysproc"
)

// Witness has the kernel's view of a container's process, for an exit code that the engine has lost.
// Since Linux 6.15 the kernel keeps the exit code for each holder of a pidfd. On older kernels Code is
// always nil.
// The zero value watches nothing. All methods are safe for concurrent use.
type Witness struct {
	mu    sync.Mutex
	pidfd *os.File
}

// Watch begins to watch a process. belongs reports whether the pid is still that of the container's
// process, once a descriptor of it is open. A container of a pod runs once, so a second call has no
// effect.
func (w *Witness) Watch(pid int, belongs func() bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.pidfd != nil {
		return
	}
	pidfd, err := sysproc.OpenPidfd(pid)
	if err != nil {
		return // the process has ended, or no descriptor is free: only the engine knows the code
	}
	if ended, err := sysproc.PidfdEnded(pidfd); err != nil || ended || !belongs() {
		pidfd.Close()
		return
	}
	w.pidfd = pidfd
}

// Code returns the exit code that the kernel has of the process, nil if it has none.
func (w *Witness) Code() *int32 {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.pidfd == nil {
		return nil
	}
	status, known, err := sysproc.PidfdStatus(w.pidfd)
	if err != nil || !known {
		return nil
	}
	code := sysproc.ExitCode(status)
	return &code
}

// Close ends the watch.
func (w *Witness) Close() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.pidfd != nil {
		w.pidfd.Close()
		w.pidfd = nil
	}
}
