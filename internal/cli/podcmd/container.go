package podcmd

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berthrun/berth/internal/cli/show"
	"github.com/berthrun/berth/internal/criclient"
	"github.com/berthrun/berth/internal/errs"
)

// NewContainer returns `berth container`.
func NewContainer() *cobra.Command {
	var c commands
	cmd := &cobra.Command{
		Use:   "container",
		Short: "Look at and manage single containers, those that have exited included",
		Long: "CONTAINER is an ID, a prefix of one, the name of a container, POD/NAME or NAMESPACE/POD/NAME. Of the attempts of one\n" +
			"container a name means the newest. `berth pod` has the commands for whole pods; a kubelet starts a container again\n" +
			"that these commands stop.",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	c.endpoint.Register(cmd)
	cmd.AddCommand(c.newContainerList(), c.newContainerInspect(), c.newContainerLogs(), c.newContainerExec(), c.newContainerStop(),
		c.newContainerRemove(), c.newContainerStats())
	return cmd
}

func (c *commands) newContainerList() *cobra.Command {
	var all bool
	var output show.Flag
	cmd := &cobra.Command{
		Use:     "ls",
		Aliases: []string{"list", "ps"},
		Short:   "List containers",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return c.endpoint.Use(cmd, func(ctx context.Context, conn *criclient.Conn) error {
				found, err := listContainers(ctx, conn)
				if err != nil {
					return err
				}
				if !all {
					found = alive(found)
				}
				return output.Print(cmd.OutOrStdout(), messages(found), func(w io.Writer) error { return containerTable(w, found, time.Now()) })
			})
		},
	}
	cmd.Flags().BoolVarP(&all, "all", "a", false, "also containers that have exited")
	output.Register(cmd)
	return cmd
}

// messages are what -o json prints of a list.
type messages []ofPod

// MarshalJSON implements json.Marshaler.
func (m messages) MarshalJSON() ([]byte, error) {
	all := &runtimeapi.ListContainersResponse{}
	for _, c := range m {
		all.Containers = append(all.Containers, c.Container)
	}
	return show.Message(all)
}

func containerTable(w io.Writer, containers []ofPod, now time.Time) error {
	var rows [][]string
	for _, c := range containers {
		rows = append(rows, []string{
			show.ID(c.Id), c.Metadata.GetName(), c.podName(), state(c.State), fmt.Sprint(c.Metadata.GetAttempt()),
			show.Or(cmp.Or(c.GetImage().GetUserSpecifiedImage(), c.GetImage().GetImage())), show.Ago(c.CreatedAt, now),
		})
	}
	return show.Table(w, []string{"ID", "CONTAINER", "POD", "STATE", "ATTEMPT", "IMAGE", "AGE"}, rows)
}

func (c *commands) newContainerInspect() *cobra.Command {
	var output show.Flag
	cmd := &cobra.Command{
		Use:               "inspect CONTAINER",
		Short:             "Show the details of a container",
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: c.completeContainers(false),
		RunE: func(cmd *cobra.Command, args []string) error {
			return c.withContainer(cmd, args[0], func(ctx context.Context, conn *criclient.Conn, found ofPod) error {
				status, err := conn.Runtime.ContainerStatus(ctx, &runtimeapi.ContainerStatusRequest{ContainerId: found.Id, Verbose: true})
				if err != nil {
					return err
				}
				value, err := containerValue(status)
				if err != nil {
					return err
				}
				return output.Print(cmd.OutOrStdout(), value, func(w io.Writer) error {
					return printContainer(w, status, time.Now())
				})
			})
		},
	}
	output.Register(cmd)
	return cmd
}

func (c *commands) newContainerLogs() *cobra.Command {
	var flags logFlags
	cmd := &cobra.Command{
		Use:               "logs CONTAINER",
		Short:             "Print the log of a container",
		Long:              "With the name of a pod, use `berth pod logs POD`.",
		Example:           "  berth container logs 3f9a --tail 20\n  berth container logs -f hello/web",
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: c.completeContainers(false),
		RunE: func(cmd *cobra.Command, args []string) error {
			return c.withContainer(cmd, args[0], func(ctx context.Context, conn *criclient.Conn, found ofPod) error {
				return copyLog(ctx, cmd, conn, found.Container, &flags)
			})
		},
	}
	flags.register(cmd)
	return cmd
}

func (c *commands) newContainerExec() *cobra.Command {
	var flags streamFlags
	cmd := &cobra.Command{
		Use:               "exec CONTAINER [--] COMMAND [ARG...]",
		Short:             "Run a command in a container, and exit with its exit code",
		Long:              "Everything after -- belongs to the command, flags included.",
		Example:           "  berth container exec 3f9a -- ls /\n  berth container exec -it hello/web -- sh",
		Args:              cobra.MinimumNArgs(2),
		ValidArgsFunction: c.completeContainers(false),
		RunE: func(cmd *cobra.Command, args []string) error {
			return c.withContainer(cmd, args[0], func(ctx context.Context, conn *criclient.Conn, found ofPod) error {
				return flags.exec(ctx, cmd, conn, found.Id, args[1:])
			})
		},
	}
	flags.register(cmd)
	return cmd
}

func (c *commands) newContainerStop() *cobra.Command {
	var grace int64
	cmd := &cobra.Command{
		Use:               "stop CONTAINER...",
		Short:             "Stop containers: the stop signal, a grace period, then SIGKILL",
		Args:              cobra.MinimumNArgs(1),
		ValidArgsFunction: c.completeContainers(true),
		RunE: func(cmd *cobra.Command, args []string) error {
			return c.forEachContainer(cmd, args, func(ctx context.Context, conn *criclient.Conn, found ofPod) error {
				_, err := conn.Runtime.StopContainer(ctx, &runtimeapi.StopContainerRequest{ContainerId: found.Id, Timeout: grace})
				return err
			})
		},
	}
	cmd.Flags().Int64VarP(&grace, "time", "t", 30, "grace period in seconds; then containers are killed")
	return cmd
}

func (c *commands) newContainerRemove() *cobra.Command {
	var force bool
	cmd := &cobra.Command{
		Use:               "rm CONTAINER...",
		Short:             "Remove containers that do not run",
		Args:              cobra.MinimumNArgs(1),
		ValidArgsFunction: c.completeContainers(true),
		RunE: func(cmd *cobra.Command, args []string) error {
			return c.forEachContainer(cmd, args, func(ctx context.Context, conn *criclient.Conn, found ofPod) error {
				if found.State == runtimeapi.ContainerState_CONTAINER_RUNNING && !force {
					return fmt.Errorf("it is running: stop it first, or use --force: %w", errs.State)
				}
				_, err := conn.Runtime.RemoveContainer(ctx, &runtimeapi.RemoveContainerRequest{ContainerId: found.Id})
				return err
			})
		},
	}
	cmd.Flags().BoolVarP(&force, "force", "f", false, "also remove running containers, which are killed")
	return cmd
}

func (c *commands) newContainerStats() *cobra.Command {
	var output show.Flag
	cmd := &cobra.Command{
		Use:               "stats [CONTAINER]",
		Short:             "Show what a container, or each container, uses: CPU, memory, disk",
		Args:              cobra.MaximumNArgs(1),
		ValidArgsFunction: c.completeContainers(false),
		RunE: func(cmd *cobra.Command, args []string) error {
			return c.endpoint.Use(cmd, func(ctx context.Context, conn *criclient.Conn) error {
				request := &runtimeapi.ListContainerStatsRequest{Filter: &runtimeapi.ContainerStatsFilter{}}
				if len(args) == 1 {
					found, err := findByName(ctx, conn, args[0])
					if err != nil {
						return hintPod(ctx, cmd, conn, args[0], err)
					}
					request.Filter.Id = found.Id
				}
				before, after, err := twice(ctx, func() (*runtimeapi.ListContainerStatsResponse, error) {
					return conn.Runtime.ListContainerStats(ctx, request)
				})
				if err != nil {
					return err
				}
				return output.Print(cmd.OutOrStdout(), after, func(w io.Writer) error {
					return containerStatsTable(w, before.GetStats(), after.GetStats())
				})
			})
		},
	}
	output.Register(cmd)
	return cmd
}

func containerStatsTable(w io.Writer, before, after []*runtimeapi.ContainerStats) error {
	earlier := map[string]*runtimeapi.ContainerStats{}
	for _, container := range before {
		earlier[container.GetAttributes().GetId()] = container
	}
	var rows [][]string
	for _, container := range after {
		id := container.GetAttributes().GetId()
		rows = append(rows, []string{
			show.ID(id), container.GetAttributes().GetMetadata().GetName(), cpuRate(earlier[id], container),
			show.Size(container.GetMemory().GetWorkingSetBytes().GetValue()), show.Size(container.GetWritableLayer().GetUsedBytes().GetValue()),
		})
	}
	return show.Table(w, []string{"ID", "CONTAINER", "CPU", "MEMORY", "WRITTEN"}, rows)
}

// withContainer runs a command with the container of a name.
func (c *commands) withContainer(cmd *cobra.Command, name string, do func(context.Context, *criclient.Conn, ofPod) error) error {
	return c.endpoint.Use(cmd, func(ctx context.Context, conn *criclient.Conn) error {
		found, err := findByName(ctx, conn, name)
		if err != nil {
			return hintPod(ctx, cmd, conn, name, err)
		}
		return do(ctx, conn, found)
	})
}

// forEachContainer calls a function for every named container, also if it fails for one, and prints the ids of those
// for which it succeeded.
func (c *commands) forEachContainer(cmd *cobra.Command, names []string, do func(context.Context, *criclient.Conn, ofPod) error) error {
	return c.endpoint.Use(cmd, func(ctx context.Context, conn *criclient.Conn) error {
		all, err := listContainers(ctx, conn)
		if err != nil {
			return err
		}
		var failed []error
		for _, name := range names {
			found, err := chooseContainer(all, name)
			if err != nil {
				failed = append(failed, hintPod(ctx, cmd, conn, name, err))
				continue
			}
			if err := do(ctx, conn, found); err != nil {
				failed = append(failed, fmt.Errorf("container %s: %w", name, err))
				continue
			}
			fmt.Fprintln(cmd.OutOrStdout(), found.Id)
		}
		return errors.Join(failed...)
	})
}
