package crictl

import (
	"context"
	"errors"
	"fmt"

	"github.com/spf13/cobra"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berthrun/berth/internal/cli/exitcode"
	"github.com/berthrun/berth/internal/criclient/stream"
	"github.com/berthrun/berth/internal/errs"
)

// execFlags are how a command runs.
type execFlags struct {
	containerFilter
	interactive, tty, sync, quiet, forgiving bool
	timeout                                  int64
	transport                                string
}

func newExec(s *settings) *cobra.Command {
	var f execFlags
	cmd := &cobra.Command{
		Use:   "exec CONTAINER COMMAND [ARG...]",
		Short: "Run a command in a container; its exit status is ours",
		Long:  "The container is left out where a flag chooses: the command then runs in each that is found, one after the other.",
		RunE: orHelp(func(cmd *cobra.Command, args []string) error {
			return s.use(cmd, func(ctx context.Context, c *clients) error {
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
	flags.BoolVarP(&f.interactive, "interactive", "i", false, "pass standard input on")
	flags.BoolVarP(&f.tty, "tty", "t", false, "give the command a terminal")
	flags.BoolVarP(&f.sync, "sync", "s", false, "show the output when the command has ended")
	flags.Int64Var(&f.timeout, "timeout", 0, "seconds after which a command of --sync is killed; 0: none")
	flags.StringVarP(&f.transport, "transport", "r", "spdy", "accepted: the runtime's answer decides")
	flags.BoolVarP(&f.quiet, "quiet", "q", false, "leave out ids where several containers are found")
	flags.BoolVarP(&f.forgiving, "ignore-errors", "e", false, "succeed when the command fails")
	flags.StringVar(&f.name, "name", "", "in containers whose name matches this regular expression")
	flags.StringVarP(&f.pod, "pod", "p", "", "in containers of the pod of this id")
	flags.StringVar(&f.image, "image", "", "in containers of this image")
	flags.StringVar(&f.state, "state", "", "in containers in this state")
	flags.StringArrayVar(&f.labels, "label", nil, "in containers with the label KEY=VALUE")
	flags.BoolVarP(&f.latest, "latest", "l", false, "in the newest container")
	flags.IntVarP(&f.last, "last", "n", 0, "in the newest N containers")
	return cmd
}

// targets are the containers that are meant, and the command.
func (f *execFlags) targets(ctx context.Context, cmd *cobra.Command, c *clients, args []string) (containers, command []string, err error) {
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
	found, err := f.list(ctx, c)
	if err == nil && len(found) == 0 {
		err = fmt.Errorf("no container is as the flags say: %w", errs.NotFound)
	}
	return ids(found), args, err
}

func (f *execFlags) run(ctx context.Context, cmd *cobra.Command, c *clients, id string, command []string) error {
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

// stream joins the command's streams with ours.
func (f *execFlags) stream(ctx context.Context, cmd *cobra.Command, c *clients, id string, command []string) (code int, err error) {
	resp, err := c.Runtime.Exec(ctx, &runtimeapi.ExecRequest{
		ContainerId: id, Cmd: command, Tty: f.tty, Stdin: f.interactive, Stdout: true, Stderr: !f.tty,
	})
	if err != nil {
		return 0, err
	}
	return stream.Run(ctx, resp.Url, streams(cmd, f.interactive, f.tty))
}

// streams are ours, as far as they are wanted.
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

// wait asks for the output when the command has ended.
func (f *execFlags) wait(ctx context.Context, cmd *cobra.Command, c *clients, id string, command []string) (code int, err error) {
	resp, err := c.Runtime.ExecSync(ctx, &runtimeapi.ExecSyncRequest{ContainerId: id, Cmd: command, Timeout: f.timeout})
	if err != nil {
		return 0, err
	}
	_, outErr := cmd.OutOrStdout().Write(resp.Stdout)
	_, errErr := cmd.ErrOrStderr().Write(resp.Stderr)
	return int(resp.ExitCode), errors.Join(outErr, errErr)
}
