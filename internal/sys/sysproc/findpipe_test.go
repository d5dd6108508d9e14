package sysproc_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/sys/sysfd"
	"github.com/berthrun/berth/internal/sys/sysproc"
)

// outputPipe creates a pipe like a container's output.
func outputPipe(t *testing.T) (reader, container *os.File, id uint64) {
	t.Helper()
	reader, container, err := sysfd.OutputPipe(sysfd.Owner{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { reader.Close(); container.Close() })
	if id, err = sysfd.PipeID(reader); err != nil {
		t.Fatal(err)
	}
	return reader, container, id
}

func TestFindPipe(t *testing.T) {
	_, container, id := outputPipe(t)
	if _, err := container.WriteString("last words"); err != nil {
		t.Fatal(err)
	}
	again, err := sysproc.FindPipe(os.Getpid(), id, os.O_RDONLY)
	if err != nil {
		t.Fatal(err)
	}
	defer again.Close()
	buf := make([]byte, 64)
	if n, err := again.Read(buf); err != nil || string(buf[:n]) != "last words" {
		t.Fatalf("read %q, %v", buf[:n], err)
	}
	if _, err := sysproc.FindPipe(os.Getpid(), 1, os.O_RDONLY); !errors.Is(err, errs.NotFound) {
		t.Errorf("unknown pipe: %v, want NotFound", err)
	}
}

// TestReadsPipe: a writer of a pipe, and a process that holds it with O_PATH, do not read it.
func TestReadsPipe(t *testing.T) {
	reader, container, id := outputPipe(t)
	held, err := os.OpenFile(fmt.Sprintf("/proc/self/fd/%d", reader.Fd()), unix.O_PATH, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer held.Close()
	if err := sysproc.ReadsPipe(os.Getpid(), id); err != nil {
		t.Errorf("with a reader: %v", err)
	}
	for _, f := range []*os.File{reader, container} { // a container has its output open for reading, too
		if err := f.Close(); err != nil {
			t.Fatal(err)
		}
	}
	if err := sysproc.ReadsPipe(os.Getpid(), id); !errors.Is(err, errs.NotFound) {
		t.Errorf("with O_PATH alone: %v, want NotFound", err)
	}
	if err := sysproc.ReadsPipe(os.Getpid(), 1); !errors.Is(err, errs.NotFound) {
		t.Errorf("another pipe: %v, want NotFound", err)
	}
}

// A process that replaces its descriptors during the search cannot make the search open other
// files. Here it offers a FIFO, and inotify reports each open of it.
func TestFindPipeOpensNothingElse(t *testing.T) {
	reader, container, id := outputPipe(t)
	path := filepath.Join(t.TempDir(), "bait")
	if err := unix.Mkfifo(path, 0o600); err != nil {
		t.Fatal(err)
	}
	bait, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer bait.Close()
	watch, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(watch)
	if _, err := unix.InotifyAddWatch(watch, path, unix.IN_OPEN); err != nil {
		t.Fatal(err)
	}
	// Descriptors are searched in the order of their names: 100 comes before 900.
	pipe, err := unix.FcntlInt(container.Fd(), unix.F_DUPFD_CLOEXEC, 900)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(pipe)
	swapped, err := unix.FcntlInt(container.Fd(), unix.F_DUPFD_CLOEXEC, 100)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(swapped)
	container.Close()
	reader.Close()
	fifo := int(bait.Fd())
	ctx, stop := context.WithTimeout(t.Context(), 2*time.Second)
	defer stop()
	var swapping sync.WaitGroup
	swapping.Go(func() {
		for ctx.Err() == nil {
			for _, fd := range []int{fifo, pipe} {
				if err := unix.Dup3(fd, swapped, unix.O_CLOEXEC); err != nil {
					t.Error(err)
					return
				}
			}
		}
	})
	for ctx.Err() == nil {
		if f, err := sysproc.FindPipe(os.Getpid(), id, os.O_RDONLY); err == nil {
			if got, err := sysfd.PipeID(f); err != nil || got != id {
				t.Errorf("found pipe %d, %v, want %d", got, err, id)
			}
			f.Close()
		}
		if n, err := unix.Read(watch, make([]byte, 4096)); err == nil && n > 0 {
			t.Error("a FIFO was opened in place of the pipe")
			break
		}
	}
	stop()
	swapping.Wait()
}

// A process with very many descriptors does not cost memory for all of them at once.
func TestFindPipeAmongMany(t *testing.T) {
	_, container, id := outputPipe(t)
	const many = 16_000 // a list of all would take more than a mebibyte
	null, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	defer null.Close()
	for range many {
		fd, err := unix.FcntlInt(null.Fd(), unix.F_DUPFD_CLOEXEC, 1000)
		if err != nil {
			t.Fatal(err)
		}
		defer unix.Close(fd)
	}
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	f, err := sysproc.FindPipe(os.Getpid(), id, os.O_RDONLY)
	runtime.ReadMemStats(&after)
	if err != nil {
		t.Fatal(err)
	}
	f.Close()
	if took := after.TotalAlloc - before.TotalAlloc; took > 256<<10 {
		t.Errorf("a pipe at descriptor %d, before %d others, took %d bytes", container.Fd(), many, took)
	}
}
