//go:build integration

package sysproc_test

import (
	"context"
	"os/exec"
	"runtime"
	"testing"
	"time"

	"github.com/berthrun/berth/internal/require"
	"github.com/berthrun/berth/internal/sys/sysproc"
)

// TestExitWatch: each end is noticed once, also of a process that had ended before, and the watch has no
// goroutine for a process.
func TestExitWatch(t *testing.T) {
	watch, err := sysproc.NewExitWatch()
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	over := make(chan error, 1)
	go func() { over <- watch.Run(ctx) }()

	const processes = 8
	before := runtime.NumGoroutine()
	ends := make(chan int, 2*processes)
	var commands []*exec.Cmd
	for i := range processes {
		command := exec.Command("sleep", "1000")
		if err := command.Start(); err != nil {
			t.Fatal(err)
		}
		commands = append(commands, command)
		pidfd, err := sysproc.OpenPidfd(command.Process.Pid)
		if err != nil {
			t.Fatal(err)
		}
		defer pidfd.Close()
		if i == 0 { // it is a zombie when it is added
			if err := command.Process.Kill(); err != nil {
				t.Fatal(err)
			}
			if err := sysproc.AwaitExit(t.Context(), pidfd); err != nil {
				t.Fatal(err)
			}
		}
		if err := watch.Add(pidfd, func() { ends <- i }); err != nil {
			t.Fatal(err)
		}
	}
	next := func() int {
		t.Helper()
		select {
		case i := <-ends:
			return i
		case <-time.After(require.Patience(10 * time.Second)):
			t.Fatal("an end was not noticed")
			return -1
		}
	}
	if i := next(); i != 0 {
		t.Errorf("process %d has ended, and the watch reports %d", 0, i)
	}
	if now := runtime.NumGoroutine(); now > before+1 {
		t.Errorf("%d goroutines with %d processes, were %d", now, processes, before)
	}
	for i := processes - 1; i > 0; i-- {
		if err := commands[i].Process.Kill(); err != nil {
			t.Fatal(err)
		}
		if got := next(); got != i {
			t.Errorf("process %d has ended, and the watch reports %d", i, got)
		}
	}
	for _, command := range commands {
		_ = command.Wait() // killed
	}
	stop()
	if err := <-over; err != nil {
		t.Error(err)
	}
	if err := watch.Close(); err != nil {
		t.Error(err)
	}
	if len(ends) > 0 {
		t.Errorf("process %d has ended twice", <-ends)
	}
}
