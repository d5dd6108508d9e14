package endings

import (
	"os"
	"sync"

	"github.com/berthrun/berth/internal/sys/sysproc"
)

// Witness has the kernel's view of a container's process, for an exit code that the engine has lost.
// The kernel keeps the code for who has a pidfd, from Linux 6.15; on an older one Code is always nil.
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
		return // it has ended, or there are no descriptors left: the engine knows the code
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
