package sysns

import (
	"runtime"

	"golang.org/x/sys/unix"
)

// GoOnThread runs fn on a goroutine locked to a thread of its own, whose
// namespaces fn may change; fn unlocks it when they are as before, else the thread
// ends. It is never the process's first thread: /proc/self shows that one's
// namespaces as the process's, and it cannot end.
func GoOnThread(fn func()) {
	go func() {
		runtime.LockOSThread()
		if unix.Gettid() != unix.Getpid() {
			fn()
			return
		}
		defer runtime.UnlockOSThread()
		// While this goroutine waits on the first thread, no other runs there.
		done := make(chan struct{})
		go func() {
			defer close(done)
			runtime.LockOSThread()
			fn()
		}()
		<-done
	}()
}
