package berthapi_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc"

	"github.com/berthrun/berth/internal/berthapi"
	"github.com/berthrun/berth/internal/criclient"
	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/image"
)

// calls registers the service without some of its methods, and records which methods are called.
type calls struct {
	grpc.ServiceRegistrar
	without string

	mu    *sync.Mutex
	names *[]string
}

func (c calls) RegisterService(desc *grpc.ServiceDesc, impl any) {
	changed := *desc // the generated one is shared by all tests
	desc = &changed
	desc.Streams = slices.DeleteFunc(slices.Clone(desc.Streams), func(s grpc.StreamDesc) bool { return s.StreamName == c.without })
	for i := range desc.Streams {
		name, handle := desc.Streams[i].StreamName, desc.Streams[i].Handler
		desc.Streams[i].Handler = func(srv any, stream grpc.ServerStream) error {
			c.mu.Lock()
			*c.names = append(*c.names, name)
			c.mu.Unlock()
			return handle(srv, stream)
		}
	}
	c.ServiceRegistrar.RegisterService(desc, impl)
}

// importer connects to a daemon that lacks one method. The daemon answers an import with the
// archive's size, and records the calls.
func importer(t *testing.T, without string, wrap func(net.Listener) net.Listener) (conn *criclient.Conn, called func() string) {
	t.Helper()
	images := &fakeImages{load: func(_ context.Context, r io.Reader, name string, pin bool, progress func(image.Progress)) ([]image.Image, error) {
		progress(image.Progress{Stage: "fetching"})
		n, err := io.Copy(io.Discard, r)
		if err != nil {
			return nil, err
		}
		return []image.Image{{ID: fmt.Sprint(name, pin), Size: n}}, nil
	}}
	api := &berthapi.Server{Images: images, Jobs: func() []berthapi.Job { return nil }}
	var mu sync.Mutex
	var names []string
	conn = connectBy(t, wrap, func(to grpc.ServiceRegistrar) { api.Register(calls{to, without, &mu, &names}) })
	return conn, func() string {
		mu.Lock()
		defer mu.Unlock()
		return strings.Join(names, " ")
	}
}

// archiveFile is a file of the given size.
func archiveFile(t *testing.T, size int64) *os.File {
	t.Helper()
	file, err := os.Create(filepath.Join(t.TempDir(), "archive"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { file.Close() })
	if err := file.Truncate(size); err != nil {
		t.Fatal(err)
	}
	return file
}

func TestTheDaemonReadsAFileThatTheClientHasOpen(t *testing.T) {
	conn, called := importer(t, "ImportImage", nil)
	archive := archiveFile(t, 3<<20+7)
	if err := os.Remove(archive.Name()); err != nil { // it cannot be opened by name
		t.Fatal(err)
	}
	images, err := conn.Berth.ImportImage(t.Context(), berthapi.ImportRequest{Name: "x:1", Pin: true}, archive, nil)
	if err != nil || len(images) != 1 || images[0].ID != "x:1true" || images[0].Size != 3<<20+7 || called() != "ImportFile" {
		t.Errorf("%v, %v; called %s", images, err, called())
	}
	// The offset is at the end of the file, as after a copy over the stream.
	if n, err := archive.Read(make([]byte, 1)); n != 0 || !errors.Is(err, io.EOF) {
		t.Errorf("the client's file is not at its end: %d, %v", n, err)
	}
}

// unseen hides the peer's credentials, as for a client in another PID namespace.
type unseen struct{ net.Listener }

func (l unseen) Accept() (net.Conn, error) {
	conn, err := l.Listener.Accept()
	return struct{ net.Conn }{conn}, err
}

func TestWhatTheDaemonCannotReadIsSent(t *testing.T) {
	hide := func(l net.Listener) net.Listener { return unseen{l} }
	for _, c := range []struct {
		name, without string
		wrap          func(net.Listener) net.Listener
		archive       func(t *testing.T) io.Reader
		size          int64
		calls         string
	}{
		{"a daemon without the method", "ImportFile", nil, func(t *testing.T) io.Reader { return archiveFile(t, 9) }, 9, "ImportImage"},
		{"a client of another pid namespace", "", hide, func(t *testing.T) io.Reader { return archiveFile(t, 9) }, 9, "ImportFile ImportImage"},
		{"a pipe", "", nil, func(t *testing.T) io.Reader {
			r, w, err := os.Pipe()
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { r.Close() })
			fmt.Fprint(w, "archive")
			w.Close()
			return r
		}, 7, "ImportImage"},
		{"the rest of a file", "", nil, func(t *testing.T) io.Reader {
			file := archiveFile(t, 9)
			if _, err := file.Seek(5, io.SeekStart); err != nil {
				t.Fatal(err)
			}
			return file
		}, 4, "ImportImage"},
		// Lock files are empty. If the daemon closes a descriptor of its own lock file, it loses
		// the lock.
		{"an empty file", "", nil, func(t *testing.T) io.Reader { return archiveFile(t, 0) }, 0, "ImportImage"},
	} {
		t.Run(c.name, func(t *testing.T) {
			conn, called := importer(t, c.without, c.wrap)
			images, err := conn.Berth.ImportImage(t.Context(), berthapi.ImportRequest{}, c.archive(t), nil)
			if err != nil || len(images) != 1 || images[0].Size != c.size || called() != c.calls {
				t.Errorf("%v, %v; called %s", images, err, called())
			}
		})
	}
}

// If an import fails, the client does not retry it by the other method.
func TestAnImportThatBeganIsNotRepeated(t *testing.T) {
	imports := 0
	images := &fakeImages{load: func(_ context.Context, _ io.Reader, _ string, _ bool, progress func(image.Progress)) ([]image.Image, error) {
		imports++
		progress(image.Progress{Stage: "fetching"})
		return nil, fmt.Errorf("layer 1 is of tomorrow: %w", errs.Unsupported)
	}}
	api := &berthapi.Server{Images: images, Jobs: func() []berthapi.Job { return nil }}
	_, err := connect(t, api.Register).Berth.ImportImage(t.Context(), berthapi.ImportRequest{}, archiveFile(t, 9), nil)
	if !errors.Is(err, errs.Unsupported) || !strings.Contains(err.Error(), "of tomorrow") || imports != 1 {
		t.Errorf("%d imports, %v", imports, err)
	}
}

// opened opens a path and returns the descriptor, until the test ends.
func opened(t *testing.T, path string, flags int) int {
	t.Helper()
	fd, err := unix.Open(path, flags|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Close(fd) })
	return fd
}

func TestTheDaemonTakesNoOtherDescriptor(t *testing.T) {
	path := archiveFile(t, 9).Name()
	fifo := filepath.Join(t.TempDir(), "fifo")
	if err := unix.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	conn, _ := importer(t, "", nil)
	honest := func(fd int) berthapi.FileImportRequest {
		var st unix.Stat_t
		if err := unix.Fstat(fd, &st); err != nil {
			t.Fatal(err)
		}
		return berthapi.FileImportRequest{Descriptor: fd, Device: st.Dev, Inode: st.Ino}
	}
	good := honest(opened(t, path, unix.O_RDONLY))
	if images, err := conn.Berth.CallImportFile(t.Context(), good); err != nil || len(images) != 1 || images[0].Size != 9 {
		t.Fatalf("%v, %v", images, err)
	}
	otherInode, otherDevice, none, negative := good, good, good, good
	otherInode.Inode++
	otherDevice.Device++
	none.Descriptor = 1 << 20
	negative.Descriptor = -1
	for name, c := range map[string]struct {
		req  berthapi.FileImportRequest
		want string
	}{
		"another inode":       {otherInode, "another file"},
		"another device":      {otherDevice, "another file"},
		"not open":            {none, "bad file descriptor"},
		"no number":           {negative, "bad file descriptor"},
		"open to write":       {honest(opened(t, path, unix.O_WRONLY)), "not open for reading"},
		"a path":              {honest(opened(t, path, unix.O_PATH)), "not open for reading"},
		"a path, to be fancy": {honest(opened(t, path, unix.O_PATH|unix.O_RDWR)), "not open for reading"},
		"a directory":         {honest(opened(t, filepath.Dir(path), unix.O_RDONLY)), "no regular file"},
		"a pipe":              {honest(opened(t, fifo, unix.O_RDONLY|unix.O_NONBLOCK)), "no regular file"},
		"a device":            {honest(opened(t, "/dev/null", unix.O_RDONLY)), "no regular file"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := conn.Berth.CallImportFile(t.Context(), c.req)
			if !errors.Is(err, errs.State) || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %v, want %q", err, c.want)
			}
		})
	}
}

func TestCancelEndsTheReadingOfAFile(t *testing.T) {
	reading, ended := make(chan struct{}), make(chan error, 1)
	images := &fakeImages{load: func(_ context.Context, r io.Reader, _ string, _ bool, _ func(image.Progress)) ([]image.Image, error) {
		if _, err := io.ReadFull(r, make([]byte, 1<<20)); err != nil {
			return nil, err
		}
		close(reading)
		_, err := io.Copy(io.Discard, r)
		ended <- err
		return nil, err
	}}
	api := &berthapi.Server{Images: images, Jobs: func() []berthapi.Job { return nil }}
	conn := connect(t, api.Register)
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		<-reading
		cancel()
	}()
	if _, err := conn.Berth.ImportImage(ctx, berthapi.ImportRequest{}, archiveFile(t, 1<<42), nil); !errors.Is(err, context.Canceled) {
		t.Errorf("the client got %v", err)
	}
	select {
	case err := <-ended:
		if !errors.Is(err, context.Canceled) {
			t.Errorf("the daemon got %v", err)
		}
	case <-time.After(20 * time.Second):
		t.Error("the daemon still reads")
	}
}

// A file system that does not answer does not block a client that has disconnected.
func TestReadingAheadEndsWithTheContext(t *testing.T) {
	r, w := io.Pipe()
	defer w.Close()
	ctx, cancel := context.WithCancel(t.Context())
	ahead := berthapi.ReadAhead(ctx, r)
	if _, err := w.Write([]byte("x")); err != nil {
		t.Fatal(err)
	}
	got := make([]byte, 1)
	if _, err := io.ReadFull(ahead, got); err != nil || !bytes.Equal(got, []byte("x")) {
		t.Errorf("%q, %v", got, err)
	}
	time.AfterFunc(10*time.Millisecond, cancel)
	if _, err := ahead.Read(got); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
	if err := ahead.Close(); err != nil {
		t.Error(err)
	}
}
