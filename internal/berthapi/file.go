package berthapi

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc"

	"github.com/berthrun/berth/internal/apisocket"
	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/image"
	"github.com/berthrun/berth/internal/sys/sysfd"
	"github.com/berthrun/berth/internal/sys/sysproc"
)

// errSend says that an archive has to be sent: the daemon does not read it by itself.
var errSend = errors.New("the archive has to be sent")

// importFile has the daemon read a file from its start. errSend, and nothing was done,
// when it cannot.
func (c *Client) importFile(ctx context.Context, req ImportRequest, file *os.File, progress func(Progress)) ([]Image, error) {
	info, err := file.Stat()
	if err != nil {
		return nil, errSend
	}
	stat, ok := info.Sys().(*syscall.Stat_t)
	// An empty file is no archive, but it may be a lock of the daemon's, which goes when the
	// daemon closes any descriptor of it.
	if !ok || !info.Mode().IsRegular() || info.Size() == 0 {
		return nil, errSend
	}
	if offset, err := file.Seek(0, io.SeekCurrent); err != nil || offset != 0 {
		return nil, errSend
	}
	began := false
	var images []Image
	err = sysfd.With(file, func(fd int) (err error) {
		images, err = c.offer(ctx, FileImportRequest{req, fd, stat.Dev, stat.Ino}, func(p Progress) {
			began = true
			if progress != nil {
				progress(p)
			}
		})
		return err
	})
	switch {
	case err == nil:
		// As a reader is after it was sent.
		_, err = file.Seek(0, io.SeekEnd)
		return images, err
	case !began && (errors.Is(err, errs.Unsupported) || errors.Is(err, errs.State)):
		return nil, errSend
	}
	return nil, err
}

// offer asks for ImportFile.
func (c *Client) offer(ctx context.Context, req FileImportRequest, progress func(Progress)) ([]Image, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := c.ask(ctx, methodImportFile, &req)
	if err != nil {
		return nil, err
	}
	return follow(stream, progress)
}

func (s *Server) handleImportFile(_ any, stream grpc.ServerStream) error {
	var req FileImportRequest
	if err := receive(stream, &req); err != nil {
		return err
	}
	file, err := takeFile(stream.Context(), req)
	if err != nil {
		return fmt.Errorf("cannot read the client's file: %w: %w", err, errs.State)
	}
	return answer(stream, func(ctx context.Context, progress func(image.Progress)) ([]Image, error) {
		// The offset is the client's.
		archive := readAhead(ctx, struct {
			io.Reader
			io.Closer
		}{io.NewSectionReader(file, 0, math.MaxInt64), file})
		defer archive.Close()
		return s.load(ctx, archive, req.ImportRequest, progress)
	})
}

// takeFile takes what the client names by its descriptor. What it is, and whether the client
// may read it, is asked of what was taken: a number may mean another file at any time.
func takeFile(ctx context.Context, req FileImportRequest) (*os.File, error) {
	pid := apisocket.PeerPid(ctx)
	if pid == 0 {
		return nil, errors.New("the client is in another pid namespace")
	}
	file, err := sysproc.TakeFD(pid, req.Descriptor)
	if err != nil {
		return nil, err
	}
	if err := sysfd.With(file, func(fd int) error { return checkFile(fd, req) }); err != nil {
		return nil, errors.Join(err, file.Close())
	}
	return file, nil
}

func checkFile(fd int, req FileImportRequest) error {
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return fmt.Errorf("cannot stat descriptor %d: %w", req.Descriptor, err)
	}
	flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFL, 0)
	switch {
	case err != nil:
		return fmt.Errorf("cannot read the flags of descriptor %d: %w", req.Descriptor, err)
	case st.Dev != req.Device || st.Ino != req.Inode:
		return fmt.Errorf("descriptor %d is another file", req.Descriptor)
	case st.Mode&unix.S_IFMT != unix.S_IFREG:
		return fmt.Errorf("descriptor %d is no regular file", req.Descriptor)
	case flags&unix.O_PATH != 0, flags&unix.O_ACCMODE == unix.O_WRONLY:
		return fmt.Errorf("descriptor %d is not open for reading", req.Descriptor)
	}
	return nil
}

// readAhead reads in a goroutine of its own, which closes from: a file system that does not
// answer holds up neither who closes what is returned nor whose context ends.
func readAhead(ctx context.Context, from io.ReadCloser) io.ReadCloser {
	r, w := io.Pipe()
	stop := context.AfterFunc(ctx, func() { w.CloseWithError(context.Cause(ctx)) })
	go func() {
		defer from.Close()
		defer stop()
		_, err := io.CopyBuffer(w, from, make([]byte, chunkSize))
		w.CloseWithError(err)
	}()
	return r
}
