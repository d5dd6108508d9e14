//go:build integration

package sysproc_test

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/require"
	"github.com/berthrun/berth/internal/sys/sysfd"
	"github.com/berthrun/berth/internal/sys/sysproc"
)

func listenExits(t *testing.T) (events *sysproc.ExitEvents, await func(pid int) syscall.WaitStatus) {
	t.Helper()
	require.Root(t)
	events, err := sysproc.ListenExits()
	if errors.Is(err, errs.Unsupported) {
		require.ExitEvents(t, err)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { events.Close() })
	ctx, cancel := context.WithTimeout(context.Background(), require.Patience(10*time.Second))
	t.Cleanup(cancel)
	return events, func(pid int) syscall.WaitStatus {
		t.Helper()
		for {
			err := events.Wait(ctx)
			var event sysproc.ExitEvent
			if err == nil {
				event, err = events.Peek()
			}
			if err == nil {
				err = events.Drop()
			}
			if err != nil {
				t.Fatalf("the end of process %d: %v", pid, err)
			}
			if event.Pid == pid {
				return event.Status
			}
		}
	}
}

func TestExitEventsReportCodesOfAdoptedProcesses(t *testing.T) {
	_, await := listenExits(t)
	for script, want := range map[string]int32{"exit 41": 41, "exit 0": 0, "kill -9 $$": 137} {
		// The parent exits at once, so that another process reaps it.
		out, err := exec.Command("sh", "-c", "sh -c 'sleep 0.2; "+script+"' >/dev/null 2>&1 & echo $!").Output()
		if err != nil {
			t.Fatal(err)
		}
		pid, err := strconv.Atoi(strings.TrimSpace(string(out)))
		if err != nil {
			t.Fatal(err)
		}
		if got := sysproc.ExitCode(await(pid)); got != want {
			t.Errorf("%s: code %d, want %d", script, got, want)
		}
	}
}

// A process that continues with the file gets the exits that were not dropped, and those that
// happened meanwhile. Exits that already happened are reported without a wait.
func TestExitEventsWaitForASuccessor(t *testing.T) {
	first, await := listenExits(t)
	run := func(code string) (pid int, start uint64) {
		cmd := exec.Command("sh", "-c", "exit "+code)
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		proc, err := sysproc.ReadProc(cmd.Process.Pid)
		if err != nil {
			t.Fatal(err)
		}
		_ = cmd.Wait() // Wait returns its code as an error
		return cmd.Process.Pid, proc.Start
	}
	before, _ := run("1")
	peeked, _ := run("2")
	await(before)
	for {
		event, err := first.Peek()
		if err != nil {
			t.Fatal(err)
		}
		if event.Pid == peeked {
			break
		}
		if err := first.Drop(); err != nil {
			t.Fatal(err)
		}
	}
	held, err := sysfd.Duplicate(first.File())
	if err != nil {
		t.Fatal(err)
	}
	first.Close()
	later, start := run("3")
	second, err := sysproc.ResumeExits(held)
	if err != nil {
		t.Fatal(err)
	}
	defer second.Close()
	codes := map[int]int32{}
	for len(codes) < 2 {
		event, err := second.Peek()
		if err != nil {
			t.Fatalf("got %v, then: %v", codes, err)
		}
		if event.Pid == peeked || event.Pid == later {
			codes[event.Pid] = sysproc.ExitCode(event.Status)
		}
		if event.Pid == later && (!event.Of(start) || event.Of(start+10000)) {
			t.Errorf("an exit at %v is of a process that began at tick %d: %v, at %d: %v", event.At, start, event.Of(start), start+10000, event.Of(start+10000))
		}
		if err := second.Drop(); err != nil {
			t.Fatal(err)
		}
	}
	if codes[peeked] != 2 || codes[later] != 3 {
		t.Errorf("codes %v, want 2 of %d and 3 of %d", codes, peeked, later)
	}
}

// If a whole process exits, each of its threads reports the exit code of the process.
func TestExitEventsOfManyThreads(t *testing.T) {
	if os.Getenv("BERTH_TEST_THREADS") != "" {
		go os.Exit(5)
		select {}
	}
	_, await := listenExits(t)
	cmd := exec.Command("/proc/self/exe", "-test.run", t.Name())
	cmd.Env = []string{"BERTH_TEST_THREADS=1"}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	for threads := range 3 {
		if got := sysproc.ExitCode(await(cmd.Process.Pid)); got != 5 {
			t.Errorf("thread %d: code %d, want 5", threads, got)
		}
	}
	_ = cmd.Wait() // Wait returns its code as an error
}
