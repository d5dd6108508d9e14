package sysns

import (
	"runtime"
	"sync"
	"testing"

	"golang.org/x/sys/unix"
)

func TestNeverTheFirstThread(t *testing.T) {
	var wg sync.WaitGroup
	for range 500 {
		wg.Add(1)
		GoOnThread(func() {
			defer wg.Done()
			defer runtime.UnlockOSThread()
			if unix.Gettid() == unix.Getpid() {
				t.Error("ran on the process's first thread")
			}
		})
		runtime.Gosched()
	}
	wg.Wait()
}
