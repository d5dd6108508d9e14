//go:build integration

package ociruntime

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
)

// TestProgramIsReplaced starts inits and execs. During each start the file of this program and
// a broken one change places, as when an upgrade replaces the file.
func TestProgramIsReplaced(t *testing.T) {
	const starts = 60
	swap := swapper(t)
	b := newBench(t)
	t.Run("create", func(t *testing.T) {
		each := *b
		for i := range starts {
			t.Run("", func(t *testing.T) {
				each.t = t
				defer swap()()
				each.create(fmt.Sprint("c", i))
			})
		}
	})
	t.Run("exec", func(t *testing.T) {
		each := *b
		each.t = t
		_, s := each.create("execs")
		if err := b.r.Start(t.Context(), s); err != nil {
			t.Fatal(err)
		}
		for range starts {
			wait := swap()
			pid, err := b.r.Exec(t.Context(), &Exec{ContainerID: "execs", Process: &specs.Process{
				Args: []string{"/bin/busybox", "true"}, Cwd: "/",
			}})
			wait()
			if err != nil {
				t.Fatal(err)
			}
			var status syscall.WaitStatus
			if _, err := syscall.Wait4(pid, &status, 0, nil); err != nil || status.ExitStatus() != 0 {
				t.Fatalf("exec ended with %v, %v", status, err)
			}
		}
	})
}

// swapper returns a function that exchanges the file of this program with a broken one after
// a short random time. It returns a function that waits for it.
func swapper(t *testing.T) func() (wait func()) {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	broken := filepath.Join(filepath.Dir(self), "broken")
	if err := os.WriteFile(broken, []byte("#!/bin/sh\nexit 3\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	return func() func() {
		done := make(chan struct{})
		go func() {
			defer close(done)
			time.Sleep(rand.N(2 * time.Millisecond))
			if err := unix.Renameat2(unix.AT_FDCWD, self, unix.AT_FDCWD, broken, unix.RENAME_EXCHANGE); err != nil {
				t.Error(err)
			}
		}()
		return func() { <-done }
	}
}
