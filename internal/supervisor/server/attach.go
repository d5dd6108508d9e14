package server

import (
	"context"
	"io"
	"os"

	"github.com/berthrun/berth/internal/supervisor"
	"github.com/berthrun/berth/internal/supervisor/server/containers"
	"github.com/berthrun/berth/internal/supervisor/wire"
	"github.com/berthrun/berth/internal/sys/sysfd"
)

// attach sends the client the container's output from now on. The client itself writes to the
// container's stdin.
func (ss *session) attach(ctx context.Context, req *wire.Request) (*wire.Reply, error) {
	var body supervisor.AttachCall
	if err := req.Decode(&body); err != nil {
		return nil, err
	}
	named, err := filesByName(req, body.Files)
	if err != nil {
		return nil, err
	}
	c, err := ss.server.containers.Find(body.ID)
	if err != nil {
		return nil, err
	}
	joined := body.Resume // at the supervisor before, if not at this one
	if body.Stdin {
		defer func() {
			// A client that is refused has not used the input, which another one may be using. When the supervisor
			// stops, the client goes on with the successor.
			if joined && ss.server.stopping.Err() == nil {
				c.StdinDone(ctx)
			}
		}()
	}
	a := &containers.Attachment{Input: body.Stdin, Resume: body.Resume}
	for name, to := range map[string]*io.Writer{supervisor.StreamStdout: &a.Stdout, supervisor.StreamStderr: &a.Stderr} {
		if named[name] == nil {
			continue
		}
		f, err := takePollable(req, named[name])
		if err != nil {
			return nil, err
		}
		defer f.Close()
		*to = f
	}
	a.Joined = func() error {
		err := signalJoined(named[supervisor.FileJoined])
		joined = joined || err == nil
		return err
	}
	return nil, c.Attach(ctx, a)
}

// signalJoined notifies the client that the output is joined.
func signalJoined(joined *os.File) error {
	if joined == nil {
		return nil
	}
	_, err := joined.Write([]byte{1})
	return err
}

// takePollable takes a pipe out of a request, and makes it non-blocking: a slow reader must not
// block a thread.
func takePollable(req *wire.Request, f *os.File) (*os.File, error) {
	keepFile(req, f)
	return sysfd.Pollable(f)
}

// stdinDone notes that the client's input has ended.
func (ss *session) stdinDone(ctx context.Context, req *wire.Request) (*wire.Reply, error) {
	c, err := ss.container(req)
	if err != nil {
		return nil, err
	}
	c.StdinDone(ctx)
	return nil, nil
}
