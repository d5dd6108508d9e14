// Package hungfs is a file system that can hang, as one behind a dead server does:
// what is asked of it then waits, and no signal ends the wait.
package hungfs

import (
	"sync"
	"testing"

	"github.com/berthrun/berth/internal/require"
	"github.com/hanwen/go-fuse/v2/fs"
	"github.com/hanwen/go-fuse/v2/fuse"
)

// FS is one such file system.
type FS struct {
	fuse.RawFileSystem

	mu   sync.Mutex
	hung chan struct{} // closed when it hangs no more; nil while it does not
}

// Mount shows the directory at dir at another place until the test ends.
func Mount(t testing.TB, dir, at string) *FS {
	t.Helper()
	require.FUSE(t)
	root, err := fs.NewLoopbackRoot(dir)
	if err != nil {
		t.Fatal(err)
	}
	f := &FS{RawFileSystem: fs.NewNodeFS(root, &fs.Options{})}
	server, err := fuse.NewServer(f, at, &fuse.MountOptions{DirectMountStrict: true, AllowOther: true, FsName: "hungfs"})
	if err != nil {
		t.Fatalf("mount a FUSE file system at %s: %v", at, err)
	}
	go server.Serve()
	if err := server.WaitMount(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		f.Answer()
		if err := server.Unmount(); err != nil {
			t.Errorf("unmount %s: %v", at, err)
		}
	})
	return f
}

// Hang makes everything wait from now on, until Answer.
func (f *FS) Hang() {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.hung == nil {
		f.hung = make(chan struct{})
	}
}

// Answer lets go on what waits.
func (f *FS) Answer() {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.hung != nil {
		close(f.hung)
		f.hung = nil
	}
}

func (f *FS) pass() {
	f.mu.Lock()
	hung := f.hung
	f.mu.Unlock()
	if hung != nil {
		<-hung
	}
}

// The requests that wait: all that a writer of logs sends.

// Lookup waits while the file system hangs, as all the others do.
func (f *FS) Lookup(cancel <-chan struct{}, header *fuse.InHeader, name string, out *fuse.EntryOut) fuse.Status {
	f.pass()
	return f.RawFileSystem.Lookup(cancel, header, name, out)
}

// GetAttr is stat.
func (f *FS) GetAttr(cancel <-chan struct{}, in *fuse.GetAttrIn, out *fuse.AttrOut) fuse.Status {
	f.pass()
	return f.RawFileSystem.GetAttr(cancel, in, out)
}

// SetAttr is chmod, chown, truncate.
func (f *FS) SetAttr(cancel <-chan struct{}, in *fuse.SetAttrIn, out *fuse.AttrOut) fuse.Status {
	f.pass()
	return f.RawFileSystem.SetAttr(cancel, in, out)
}

// Mkdir makes a directory.
func (f *FS) Mkdir(cancel <-chan struct{}, in *fuse.MkdirIn, name string, out *fuse.EntryOut) fuse.Status {
	f.pass()
	return f.RawFileSystem.Mkdir(cancel, in, name, out)
}

// Create makes and opens a file.
func (f *FS) Create(cancel <-chan struct{}, in *fuse.CreateIn, name string, out *fuse.CreateOut) fuse.Status {
	f.pass()
	return f.RawFileSystem.Create(cancel, in, name, out)
}

// Open opens a file.
func (f *FS) Open(cancel <-chan struct{}, in *fuse.OpenIn, out *fuse.OpenOut) fuse.Status {
	f.pass()
	return f.RawFileSystem.Open(cancel, in, out)
}

// OpenDir opens a directory.
func (f *FS) OpenDir(cancel <-chan struct{}, in *fuse.OpenIn, out *fuse.OpenOut) fuse.Status {
	f.pass()
	return f.RawFileSystem.OpenDir(cancel, in, out)
}

// Write writes.
func (f *FS) Write(cancel <-chan struct{}, in *fuse.WriteIn, data []byte) (uint32, fuse.Status) {
	f.pass()
	return f.RawFileSystem.Write(cancel, in, data)
}

// Unlink removes a file.
func (f *FS) Unlink(cancel <-chan struct{}, header *fuse.InHeader, name string) fuse.Status {
	f.pass()
	return f.RawFileSystem.Unlink(cancel, header, name)
}

// Flush is close.
func (f *FS) Flush(cancel <-chan struct{}, in *fuse.FlushIn) fuse.Status {
	f.pass()
	return f.RawFileSystem.Flush(cancel, in)
}

// Fsync syncs a file.
func (f *FS) Fsync(cancel <-chan struct{}, in *fuse.FsyncIn) fuse.Status {
	f.pass()
	return f.RawFileSystem.Fsync(cancel, in)
}
