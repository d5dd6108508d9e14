package containers

import (
	"context"
	"errors"
	"fmt"

	"github.com/spf13/cobra"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berthrun/berth/internal/cli/crictl/connection"
	"github.com/berthrun/berth/internal/cli/crictl/selection"
	"github.com/berthrun/berth/internal/cli/crictl/verb"
	"github.com/berthrun/berth/internal/cli/exitcode"
	"github.com/berthrun/berth/internal/criclient/stream"
	"github.com/berthrun/berth/internal/errs"
)

// execFlags are how a command runs.
type execFlags struct {
	selection.Containers
	interactive, tty, sync, quiet, forgiving bool
	timeout                                  int64
	transport                                string
}

// NewExec returns `crictl exec`.
func NewExec(s *connection.Settings) *cobra.Command {
	var f execFlags
	cmd := &cobra.Command{
		Use:   "exec CONTAINER COMMAND [ARG...]",
		Short: "Run a command in a container, and exit with its exit status",
		Long:  "Omit CONTAINER if a flag selects containers: the command runs in each of them, one after the other.",
		RunE: verb.OrHelp(func(cmd *cobra.Command, args []string) error {
			return s.Use(cmd, func(ctx context.Context, c *connection.Clients) error {
				containers, args, err := f.targets(ctx, cmd, c, args)
				if err != nil {
					return err
				}
				var failed []error
				for _, id := range containers {
					if len(containers) > 1 && !f.quiet {
						fmt.Fprintln(cmd.OutOrStdout(), id+":")
					}
					failed = append(failed, f.run(ctx, cmd, c, id, args))
				}
				if f.forgiving {
					return nil
				}
				return errors.Join(failed...)
			})
		}),
	}
	flags := cmd.Flags()
	flags.SetInterspersed(false) // what follows is the command's
	flags.BoolVarP(&f.interactive, "interactive", "i", false, "connect standard input")
	flags.BoolVarP(&f.tty, "tty", "t", false, "give the command a terminal")
	flags.BoolVarP(&f.sync, "sync", "s", false, "show the output when the command has ended")
	flags.Int64Var(&f.timeout, "timeout", 0, "seconds after which a command of --sync is killed; 0: none")
	flags.StringVarP(&f.transport, "transport", "r", "spdy", "accepted for compatibility: the runtime decides")
	flags.BoolVarP(&f.quiet, "quiet", "q", false, "do not print ids if there are several containers")
	flags.BoolVarP(&f.forgiving, "ignore-errors", "e", false, "exit with 0 even if the command fails")
	flags.StringVar(&f.Name, "name", "", "in containers whose name matches this regular expression")
	flags.StringVarP(&f.Pod, "pod", "p", "", "in containers of the pod of this id")
	flags.StringVar(&f.Image, "image", "", "in containers of this image")
	flags.StringVar(&f.State, "state", "", "in containers in this state")
	flags.StringArrayVar(&f.Labels, "label", nil, "in containers with the label KEY=VALUE")
	flags.BoolVarP(&f.Latest, "latest", "l", false, "in the newest container")
	flags.IntVarP(&f.Last, "last", "n", 0, "in the newest N containers")
	return cmd
}

// targets are the selected containers, and the command.
func (f *execFlags) targets(ctx context.Context, cmd *cobra.Command, c *connection.Clients, args []string) (containers, command []string, err error) {
	chosen := false
	for _, flag := range []string{"name", "pod", "image", "state", "label", "latest", "last"} {
		chosen = chosen || cmd.Flags().Changed(flag)
	}
	if !chosen {
		if len(args) < 2 {
			return nil, nil, fmt.Errorf("there is no command to run\n  usage: %s: %w", cmd.UseLine(), errs.Invalid)
		}
		return args[:1], args[1:], nil
	}
	found, err := f.List(ctx, c)
	if err == nil && len(found) == 0 {
		err = fmt.Errorf("no container matches the flags: %w", errs.NotFound)
	}
	return selection.IDs(found), args, err
}

func (f *execFlags) run(ctx context.Context, cmd *cobra.Command, c *connection.Clients, id string, command []string) error {
	run := f.stream
	if f.sync {
		run = f.wait
	}
	code, err := run(ctx, cmd, c, id, command)
	if err != nil {
		return fmt.Errorf("cannot run a command in the container %s: %w", id, err)
	}
	if code != 0 {
		return &exitcode.Error{Code: code, Err: fmt.Errorf("command terminated with exit code %d", code)}
	}
	return nil
}

// stream connects the command's streams to this process's.
func (f *execFlags) stream(ctx context.Context, cmd *cobra.Command, c *connection.Clients, id string, command []string) (code int, err error) {
	resp, err := c.Runtime.Exec(ctx, &runtimeapi.ExecRequest{
		ContainerId: id, Cmd: command, Tty: f.tty, Stdin: f.interactive, Stdout: true, Stderr: !f.tty,
	})
	if err != nil {
		return 0, err
	}
	return stream.Run(ctx, resp.Url, streams(cmd, f.interactive, f.tty))
}

// streams are this process's standard streams, as far as the flags select them.
func streams(cmd *cobra.Command, interactive, tty bool) stream.Streams {
	s := stream.Streams{Out: cmd.OutOrStdout(), TTY: tty}
	if interactive {
		s.In = cmd.InOrStdin()
	}
	if !tty {
		s.Err = cmd.ErrOrStderr()
	}
	return s
}

// wait runs the command to its end, then returns its output.
func (f *execFlags) wait(ctx context.Context, cmd *cobra.Command, c *connection.Clients, id string, command []string) (code int, err error) {
	resp, err := c.Runtime.ExecSync(ctx, &runtimeapi.ExecSyncRequest{ContainerId: id, Cmd: command, Timeout: f.timeout})
	if err != nil {
		return 0, err
	}
	_, outErr := cmd.OutOrStdout().Write(resp.Stdout)
	_, errErr := cmd.ErrOrStderr().Write(resp.Stderr)
	return int(resp.ExitCode), errors.Join(outErr, errErr)
}
