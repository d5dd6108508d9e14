package hungfs

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"sync"
	"time"

	"github.com/berthrun/berth/internal/require"
	"github.com/hanwen/go-fuse/v2/fs"
	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"
)

// The process that serves the file system: the program of the test, with the arguments serverName,
// the directory to show, and the mount point.

const serverName = "hungfs"

// The test's commands, one word a line. Each gets an answer of one line: done, or the error.
const (
	wordHang      = "hang"
	wordHangOpens = "hang-opens"
	wordAnswer    = "answer"
	wordEnd       = "end"
	done          = "done"
)

// Every program that can mount can serve. So no test has to call it in a TestMain.
func init() { //nolint:gochecknoinits // see above
	if len(os.Args) == 3 && os.Args[0] == serverName {
		os.Exit(serve(os.Args[1], os.Args[2]))
	}
}

func serve(dir, at string) (code int) {
	signal.Ignore(unix.SIGPIPE) // the death of the test must not end the process before it has unmounted
	d, err := mount(dir, at)
	if err != nil {
		fmt.Println(err)
		return 1
	}
	fmt.Println(done)
	for words := bufio.NewScanner(os.Stdin); words.Scan(); {
		switch words.Text() {
		case wordHang:
			d.hang(false)
		case wordHangOpens:
			d.hang(true)
		case wordAnswer:
			d.answer()
		case wordEnd:
			d.answer()
			if err := unmount(at); err != nil {
				_ = unix.Unmount(at, unix.MNT_DETACH)
				fmt.Println(err)
				return 0
			}
			fmt.Println(done)
			return 0
		}
		fmt.Println(done)
	}
	// The test's process died.
	d.answer()
	_ = unix.Unmount(at, unix.MNT_DETACH)
	return 0
}

// disk is the file system.
type disk struct {
	fuse.RawFileSystem

	mu    sync.Mutex
	hung  chan struct{} // closed when it no longer hangs; nil while it does not hang
	opens bool          // only opens of files hang
}

func mount(dir, at string) (*disk, error) {
	root, err := fs.NewLoopbackRoot(dir)
	if err != nil {
		return nil, err
	}
	d := &disk{RawFileSystem: fs.NewNodeFS(root, &fs.Options{})}
	server, err := fuse.NewServer(d, at, &fuse.MountOptions{DirectMountStrict: true, AllowOther: true, FsName: sourceOf(at)})
	if err != nil {
		return nil, err
	}
	go server.Serve()
	return d, server.WaitMount()
}

// unmount waits until no process has an open file there. It does not wait for the end of the file
// system, as fuse.Server.Unmount does without bound: see the package comment.
func unmount(at string) error {
	for deadline := time.Now().Add(require.Patience(answerTimeout / 2)); ; time.Sleep(10 * time.Millisecond) { // no event reports it
		err := unix.Unmount(at, 0)
		if !errors.Is(err, unix.EBUSY) || time.Now().After(deadline) {
			return err
		}
	}
}

func (d *disk) hang(opens bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.opens = opens
	if d.hung == nil {
		d.hung = make(chan struct{})
	}
}

func (d *disk) answer() {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.hung != nil {
		close(d.hung)
		d.hung = nil
	}
}

// pass waits while the file system hangs.
func (d *disk) pass() { d.wait(false) }

func (d *disk) wait(open bool) {
	d.mu.Lock()
	hung := d.hung
	if d.opens && !open {
		hung = nil
	}
	d.mu.Unlock()
	if hung != nil {
		<-hung
	}
}

// The requests that wait: all that a log writer sends.

// Lookup waits while the file system hangs, as all the others do.
func (d *disk) Lookup(cancel <-chan struct{}, header *fuse.InHeader, name string, out *fuse.EntryOut) fuse.Status {
	d.pass()
	return d.RawFileSystem.Lookup(cancel, header, name, out)
}

// GetAttr is stat.
func (d *disk) GetAttr(cancel <-chan struct{}, in *fuse.GetAttrIn, out *fuse.AttrOut) fuse.Status {
	d.pass()
	return d.RawFileSystem.GetAttr(cancel, in, out)
}

// SetAttr is chmod, chown, truncate.
func (d *disk) SetAttr(cancel <-chan struct{}, in *fuse.SetAttrIn, out *fuse.AttrOut) fuse.Status {
	d.pass()
	return d.RawFileSystem.SetAttr(cancel, in, out)
}

// Mkdir makes a directory.
func (d *disk) Mkdir(cancel <-chan struct{}, in *fuse.MkdirIn, name string, out *fuse.EntryOut) fuse.Status {
	d.pass()
	return d.RawFileSystem.Mkdir(cancel, in, name, out)
}

// Create makes and opens a file.
func (d *disk) Create(cancel <-chan struct{}, in *fuse.CreateIn, name string, out *fuse.CreateOut) fuse.Status {
	d.pass()
	return d.RawFileSystem.Create(cancel, in, name, out)
}

// Open opens a file.
func (d *disk) Open(cancel <-chan struct{}, in *fuse.OpenIn, out *fuse.OpenOut) fuse.Status {
	d.wait(true)
	return d.RawFileSystem.Open(cancel, in, out)
}

// OpenDir opens a directory.
func (d *disk) OpenDir(cancel <-chan struct{}, in *fuse.OpenIn, out *fuse.OpenOut) fuse.Status {
	d.pass()
	return d.RawFileSystem.OpenDir(cancel, in, out)
}

// Write writes.
func (d *disk) Write(cancel <-chan struct{}, in *fuse.WriteIn, data []byte) (uint32, fuse.Status) {
	d.pass()
	return d.RawFileSystem.Write(cancel, in, data)
}

// Unlink removes a file.
func (d *disk) Unlink(cancel <-chan struct{}, header *fuse.InHeader, name string) fuse.Status {
	d.pass()
	return d.RawFileSystem.Unlink(cancel, header, name)
}

// Flush is close.
func (d *disk) Flush(cancel <-chan struct{}, in *fuse.FlushIn) fuse.Status {
	d.pass()
	return d.RawFileSystem.Flush(cancel, in)
}

// Fsync syncs a file.
func (d *disk) Fsync(cancel <-chan struct{}, in *fuse.FsyncIn) fuse.Status {
	d.pass()
	return d.RawFileSystem.Fsync(cancel, in)
}
