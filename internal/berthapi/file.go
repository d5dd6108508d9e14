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
	"github.com/berthrun/berth/internal/berthapi/berthpb"
	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/image"
	"github.com/berthrun/berth/internal/sys/sysfd"
	"github.com/berthrun/berth/internal/sys/sysproc"
)

// errMustSend reports that the daemon cannot read the file, and has done nothing.
var errMustSend = errors.New("the client must send the archive")

// importFile lets the daemon read a file from its start. It returns errMustSend if the daemon
// cannot.
func (c *Client) importFile(ctx context.Context, req ImportRequest, file *os.File, progress func(Progress)) ([]Image, error) {
	info, err := file.Stat()
	if err != nil {
		return nil, errMustSend
	}
	stat, ok := info.Sys().(*syscall.Stat_t)
	// An empty file is no archive, but it may be a lock of the daemon. The daemon would lose
	// the lock when it closes any descriptor of the file.
	if !ok || !info.Mode().IsRegular() || info.Size() == 0 {
		return nil, errMustSend
	}
	if offset, err := file.Seek(0, io.SeekCurrent); err != nil || offset != 0 {
		return nil, errMustSend
	}
	began := false
	var images []Image
	err = sysfd.With(file, func(fd int) (err error) {
		images, err = c.callImportFile(ctx, FileImportRequest{req, fd, stat.Dev, stat.Ino}, func(p Progress) {
			began = true
			if progress != nil {
				progress(p)
			}
		})
		return err
	})
	switch {
	case err == nil:
		// The client leaves a file that it sends at its end, too.
		_, err = file.Seek(0, io.SeekEnd)
		return images, err
	case !began && (errors.Is(err, errs.Unsupported) || errors.Is(err, errs.State)):
		return nil, errMustSend
	}
	return nil, err
}

// callImportFile calls ImportFile.
func (c *Client) callImportFile(ctx context.Context, req FileImportRequest, progress func(Progress)) ([]Image, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := c.api.ImportFile(ctx, &berthpb.ImportFileRequest{
		Options: importToProto(req.ImportRequest), Fd: int32(req.Descriptor), Device: req.Device, Inode: req.Inode,
	})
	if err != nil {
		return nil, err
	}
	return receiveImages(stream, progress)
}

// ImportFile implements berthpb.BerthServer.
func (h *handlers) ImportFile(req *berthpb.ImportFileRequest, stream grpc.ServerStreamingServer[berthpb.ImageUpdate]) error {
	file, err := duplicateClientFile(stream.Context(), req)
	if err != nil {
		return fmt.Errorf("cannot read the client's file: %w: %w", err, errs.State)
	}
	return withProgress(stream, func(ctx context.Context, progress func(image.Progress)) ([]image.Image, error) {
		// The client shares the file's offset, so the daemon must not move it.
		archive := readAhead(ctx, struct {
			io.Reader
			io.Closer
		}{io.NewSectionReader(file, 0, math.MaxInt64), file})
		defer archive.Close()
		return h.importArchive(ctx, archive, req.GetOptions(), progress)
	})
}

// duplicateClientFile duplicates the client's descriptor and checks the duplicate: the number
// may refer to another file in the client at any time.
func duplicateClientFile(ctx context.Context, req *berthpb.ImportFileRequest) (*os.File, error) {
	pid := apisocket.PeerPid(ctx)
	if pid == 0 {
		return nil, errors.New("the client is in another pid namespace")
	}
	file, err := sysproc.TakeFD(pid, int(req.GetFd()))
	if err != nil {
		return nil, err
	}
	if err := sysfd.With(file, func(fd int) error { return checkFile(fd, req) }); err != nil {
		return nil, errors.Join(err, file.Close())
	}
	return file, nil
}

// checkFile reports an error unless the descriptor is the file of the request, a regular one,
// and the client has it open for reading.
func checkFile(fd int, req *berthpb.ImportFileRequest) error {
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return fmt.Errorf("cannot stat descriptor %d: %w", req.GetFd(), err)
	}
	flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFL, 0)
	switch {
	case err != nil:
		return fmt.Errorf("cannot read the flags of descriptor %d: %w", req.GetFd(), err)
	case st.Dev != req.GetDevice() || st.Ino != req.GetInode():
		return fmt.Errorf("descriptor %d is another file", req.GetFd())
	case st.Mode&unix.S_IFMT != unix.S_IFREG:
		return fmt.Errorf("descriptor %d is no regular file", req.GetFd())
	case flags&unix.O_PATH != 0, flags&unix.O_ACCMODE == unix.O_WRONLY:
		return fmt.Errorf("descriptor %d is not open for reading", req.GetFd())
	}
	return nil
}

// readAhead reads from in a goroutine, which closes it. If the file system does not answer, the
// reader's Close and the end of ctx still return at once.
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
