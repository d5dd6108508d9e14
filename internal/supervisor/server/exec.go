package server

import (
	"context"

	"github.com/berthrun/berth/internal/supervisor"
	"github.com/berthrun/berth/internal/supervisor/server/containers"
	"github.com/berthrun/berth/internal/supervisor/server/ociruntime"
	"github.com/berthrun/berth/internal/supervisor/wire"
)

// exec runs a process in a container and answers with its exit code.
func (ss *session) exec(ctx context.Context, req *wire.Request) (*wire.Reply, error) {
	var body supervisor.ExecCall
	if err := req.Decode(&body); err != nil {
		return nil, err
	}
	named, err := filesByName(req, body.Files)
	if err != nil {
		return nil, err
	}
	c, err := ss.server.containers.Find(body.ContainerID)
	if err != nil {
		return nil, err
	}
	e, err := c.Exec(ctx, &body.ExecRequest, ociruntime.StdIO{
		Stdin:   named[supervisor.StreamStdin],
		Stdout:  named[supervisor.StreamStdout],
		Stderr:  named[supervisor.StreamStderr],
		Console: named[supervisor.FileConsole],
	})
	// The process has its own; the client waits for the end of these.
	closeFiles(req.Files)
	if err != nil {
		return nil, err
	}
	return exitCode(ctx, e)
}

// execWait answers with the exit code of an exec whose call was lost with a connection.
func (ss *session) execWait(ctx context.Context, req *wire.Request) (*wire.Reply, error) {
	var body supervisor.ExecRef
	if err := req.Decode(&body); err != nil {
		return nil, err
	}
	c, err := ss.server.containers.Find(body.ContainerID)
	if err != nil {
		return nil, err
	}
	e, err := c.JoinExec(body.ExecID)
	if err != nil {
		return nil, err
	}
	return exitCode(ctx, e)
}

// exitCode waits for the end of an exec.
func exitCode(ctx context.Context, e *containers.Execution) (*wire.Reply, error) {
	code, answered, err := e.Wait(ctx)
	if err != nil {
		return &wire.Reply{After: answered}, err
	}
	return &wire.Reply{Body: &supervisor.ExecResult{Code: code}, After: answered}, nil
}
