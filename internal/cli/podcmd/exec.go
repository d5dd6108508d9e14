package podcmd

import (
	"context"

	"github.com/spf13/cobra"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berthrun/berth/internal/cli/exitcode"
	"github.com/berthrun/berth/internal/criclient"
	"github.com/berthrun/berth/internal/criclient/stream"
)

type streamFlags struct {
	container         string
	interactive, term bool
}

func (f *streamFlags) register(cmd *cobra.Command) {
	cmd.Flags().BoolVarP(&f.interactive, "interactive", "i", false, "connect stdin")
	cmd.Flags().BoolVarP(&f.term, "tty", "t", false, "use this terminal")
}

// streams joins what the flags ask for.
func (f *streamFlags) streams(cmd *cobra.Command) stream.Streams {
	s := stream.Streams{Out: cmd.OutOrStdout(), TTY: f.term}
	if f.interactive {
		s.In = cmd.InOrStdin()
	}
	if !f.term {
		s.Err = cmd.ErrOrStderr()
	}
	return s
}

func (c *commands) newExec() *cobra.Command {
	var flags streamFlags
	cmd := &cobra.Command{
		Use:               "exec POD [--] COMMAND [ARG...]",
		Short:             "Run a command in a container, and exit with its exit code",
		Long:              "Everything after -- belongs to the command, flags included.",
		Example:           "  berth pod exec hello -- ls /\n  berth pod exec -it hello -c web -- sh",
		Args:              cobra.MinimumNArgs(2),
		ValidArgsFunction: c.completePods(false),
		RunE: func(cmd *cobra.Command, args []string) error {
			return c.endpoint.Use(cmd, func(ctx context.Context, conn *criclient.Conn) error {
				container, err := c.container(ctx, conn, args[0], flags.container)
				if err != nil {
					return err
				}
				return flags.exec(ctx, cmd, conn, container.Id, args[1:])
			})
		},
	}
	c.containerFlag(cmd, &flags.container)
	flags.register(cmd)
	return cmd
}

// exec runs a command in a container, and exits with its exit code.
func (f *streamFlags) exec(ctx context.Context, cmd *cobra.Command, conn *criclient.Conn, id string, command []string) error {
	resp, err := conn.Runtime.Exec(ctx, &runtimeapi.ExecRequest{
		ContainerId: id, Cmd: command,
		Tty: f.term, Stdin: f.interactive, Stdout: true, Stderr: !f.term,
	})
	if err != nil {
		return err
	}
	code, err := stream.Run(ctx, resp.Url, f.streams(cmd))
	if err != nil {
		return err
	}
	return exitcode.Of(code)
}

func (c *commands) newAttach() *cobra.Command {
	var flags streamFlags
	cmd := &cobra.Command{
		Use:               "attach POD",
		Short:             "Attach to the streams of a running container; detaching does not stop it",
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: c.completePods(false),
		RunE: func(cmd *cobra.Command, args []string) error {
			return c.endpoint.Use(cmd, func(ctx context.Context, conn *criclient.Conn) error {
				container, err := c.container(ctx, conn, args[0], flags.container)
				if err != nil {
					return err
				}
				resp, err := conn.Runtime.Attach(ctx, &runtimeapi.AttachRequest{
					ContainerId: container.Id,
					Tty:         flags.term, Stdin: flags.interactive, Stdout: true, Stderr: !flags.term,
				})
				if err != nil {
					return err
				}
				_, err = stream.Run(ctx, resp.Url, flags.streams(cmd))
				return err
			})
		},
	}
	c.containerFlag(cmd, &flags.container)
	flags.register(cmd)
	return cmd
}

func (c *commands) container(ctx context.Context, conn *criclient.Conn, pod, name string) (*runtimeapi.Container, error) {
	found, err := findPod(ctx, conn, pod)
	if err != nil {
		return nil, err
	}
	return findContainer(ctx, conn, found, name)
}
