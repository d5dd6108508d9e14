package berth

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"path/filepath"
	"slices"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berthrun/berth/internal/cluster/provider"
	"github.com/berthrun/berth/internal/cluster/provider/command"
	"github.com/berthrun/berth/internal/criclient/podlog"
	"github.com/berthrun/berth/internal/criclient/stream"
)

// Exec runs a command in a node. Its error quotes the command's last lines.
func (e *Provider) Exec(ctx context.Context, name string, c provider.Command) error {
	what := c.String()
	c, err := c.Packed()
	if err == nil {
		err = e.exec(ctx, name, c)
	}
	if err != nil {
		return fmt.Errorf("cannot %s in %s: %w", what, name, err)
	}
	return nil
}

func (e *Provider) exec(ctx context.Context, name string, c provider.Command) error {
	id, err := e.one(ctx, name)
	if err != nil {
		return err
	}
	args := c.Args
	if len(c.Env) > 0 {
		// CRI has no environment for it.
		var set []string
		for _, variable := range slices.Sorted(maps.Keys(c.Env)) {
			set = append(set, variable+"="+c.Env[variable])
		}
		args = slices.Concat([]string{"env"}, set, args)
	}
	e.traceCall(append([]string{"exec", name}, c.Args...)...)
	session, err := e.conn.Runtime.Exec(ctx, &runtimeapi.ExecRequest{
		ContainerId: id, Cmd: args, Stdin: c.Stdin != nil, Stdout: true, Stderr: true,
	})
	if err != nil {
		return err
	}
	var out, complaints command.Tail
	code, err := stream.Run(ctx, session.GetUrl(), stream.Streams{In: c.Stdin, Out: out.Tee(c.Stdout), Err: complaints.Tee(c.Stderr)})
	if err != nil {
		if ctx.Err() != nil {
			err = context.Cause(ctx)
		}
		return err
	}
	if code == 0 {
		return nil
	}
	call := command.Call{Args: []string{"exec", name}, Raw: c.Raw, Guest: true}
	failed := command.Failed(Name, call, call.Quote(&out, &complaints), fmt.Errorf("exit status %d", code))
	failed.Code = code
	return failed
}

// Logs copies what the last runs of a node have written, the oldest first.
func (e *Provider) Logs(ctx context.Context, name string, to io.Writer) error {
	r, err := e.read(name)
	if err != nil {
		return err
	}
	for run := max(1, int64(r.Run)-keptLogs); run <= int64(r.Run); run++ {
		err := podlog.Copy(ctx, e.logFile(r, uint32(run)), podlog.Options{Tail: -1}, to, to)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("cannot read the log of %s: %w", name, err)
		}
	}
	return nil
}

func (e *Provider) logFile(r *record, run uint32) string {
	return filepath.Join(e.nodeDir(r.name()), logs, logName(run))
}
