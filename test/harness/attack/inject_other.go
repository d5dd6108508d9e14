//go:build !amd64

package attack

import "golang.org/x/sys/unix"

// trace attaches to the process. Which registers a system call has is known for amd64
// only.
func (r *Report) trace(pid int) {
	if err := unix.PtraceSeize(pid); err != nil {
		r.note("attach", err)
		return
	}
	r.Attached = true
	r.note("detach", unix.PtraceInterrupt(pid))
}
