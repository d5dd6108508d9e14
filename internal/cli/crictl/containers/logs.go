package containers

import (
	"context"
	"fmt"
	"io"
	"path/filepath"
	"strconv"
	"time"

	"github.com/spf13/cobra"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berthrun/berth/internal/cli/crictl/connection"
	"github.com/berthrun/berth/internal/criclient/podlog"
	"github.com/berthrun/berth/internal/errs"
)

// logFlags select the lines of a log.
type logFlags struct {
	follow, previous, reopen, timestamps bool
	tail                                 int
	since, stream                        string
}

// NewLogs returns `crictl logs`.
func NewLogs(s *connection.Settings) *cobra.Command {
	var f logFlags
	cmd := &cobra.Command{
		Use:   "logs CONTAINER",
		Short: "Show the log of a container",
		Args:  cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return s.Use(cmd, func(ctx context.Context, c *connection.Clients) error { return f.run(ctx, cmd, c, args[0]) })
		},
	}
	flags := cmd.Flags()
	flags.BoolVarP(&f.follow, "follow", "f", false, "follow the log until the container ends")
	flags.BoolVarP(&f.previous, "previous", "p", false, "show the log from before the last restart")
	flags.BoolVarP(&f.reopen, "reopen", "r", false, "reopen the log file first")
	flags.BoolVarP(&f.timestamps, "timestamps", "t", false, "show the time of each line")
	flags.IntVar(&f.tail, "tail", -1, "only the last lines; -1: all")
	flags.StringVar(&f.since, "since", "", "only lines since a time (2006-01-02T15:04:05Z, seconds of Unix) or a duration ago (42m)")
	flags.StringVarP(&f.stream, "stream", "s", "", "stdout or stderr only")
	return cmd
}

func (f *logFlags) run(ctx context.Context, cmd *cobra.Command, c *connection.Clients, id string) error {
	since, err := podlog.ParseSince(f.since, time.Now())
	if err != nil {
		return err
	}
	out, errOut, err := f.writers(cmd)
	if err != nil {
		return err
	}
	if f.reopen {
		if _, err := c.Runtime.ReopenContainerLog(ctx, &runtimeapi.ReopenContainerLogRequest{ContainerId: id}); err != nil {
			return fmt.Errorf("cannot reopen the log of %s: %w", id, err)
		}
	}
	resp, err := c.Runtime.ContainerStatus(ctx, &runtimeapi.ContainerStatusRequest{ContainerId: id})
	if err != nil {
		return fmt.Errorf("cannot find the log of %s: %w", id, err)
	}
	path, err := f.path(resp.Status)
	if err != nil {
		return err
	}
	opts := podlog.Options{Tail: f.tail, Since: since, Timestamps: f.timestamps}
	if f.follow {
		opts.Ended = podlog.AwaitEnd(ctx, c.Runtime, resp.Status.Id)
	}
	return podlog.Copy(ctx, path, opts, out, errOut)
}

// writers are the destinations of the two streams.
func (f *logFlags) writers(cmd *cobra.Command) (out, errOut io.Writer, err error) {
	out, errOut = cmd.OutOrStdout(), cmd.ErrOrStderr()
	switch f.stream {
	case "":
		return out, errOut, nil
	case "stdout":
		return out, io.Discard, nil
	case "stderr":
		return io.Discard, errOut, nil
	}
	return nil, nil, fmt.Errorf("--stream %q: want stdout or stderr: %w", f.stream, errs.Invalid)
}

// path is the log of a container, or of the attempt before it: kubelets name logs after attempts.
func (f *logFlags) path(s *runtimeapi.ContainerStatus) (string, error) {
	attempt := s.GetMetadata().GetAttempt()
	switch {
	case s.LogPath == "":
		return "", fmt.Errorf("container %s has no log file: %w", s.Id, errs.State)
	case !f.previous:
		return s.LogPath, nil
	case attempt == 0:
		return "", fmt.Errorf("container %s has no attempt before this one: %w", s.GetMetadata().GetName(), errs.NotFound)
	}
	return filepath.Join(filepath.Dir(s.LogPath), strconv.FormatUint(uint64(attempt-1), 10)+filepath.Ext(s.LogPath)), nil
}
