package podcmd

import (
	"context"
	"fmt"
	"time"

	"github.com/spf13/cobra"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berthrun/berth/internal/criclient"
	"github.com/berthrun/berth/internal/criclient/podlog"
	"github.com/berthrun/berth/internal/errs"
)

type logFlags struct {
	container, since             string
	follow, previous, timestamps bool
	tail                         int
}

func (c *commands) newLogs() *cobra.Command {
	var flags logFlags
	cmd := &cobra.Command{
		Use:               "logs POD",
		Short:             "Print the log of a container",
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: c.completePods(false),
		RunE: func(cmd *cobra.Command, args []string) error {
			return c.endpoint.Use(cmd, func(ctx context.Context, conn *criclient.Conn) error {
				return logs(ctx, cmd, conn, args[0], &flags)
			})
		},
	}
	c.containerFlag(cmd, &flags.container)
	cmd.Flags().BoolVarP(&flags.previous, "previous", "p", false, "show the log from before the last restart")
	flags.register(cmd)
	return cmd
}

// register adds the flags that choose a part of a log.
func (flags *logFlags) register(cmd *cobra.Command) {
	cmd.Flags().BoolVarP(&flags.follow, "follow", "f", false, "follow the log until the container ends")
	cmd.Flags().IntVar(&flags.tail, "tail", -1, "only the last lines (-1: all)")
	cmd.Flags().StringVar(&flags.since, "since", "", "only lines since a time (RFC 3339) or a duration ago (5m)")
	cmd.Flags().BoolVar(&flags.timestamps, "timestamps", false, "show the time of each line")
}

func logs(ctx context.Context, cmd *cobra.Command, conn *criclient.Conn, name string, flags *logFlags) error {
	pod, err := findPod(ctx, conn, name)
	if err != nil {
		return err
	}
	container, err := findContainer(ctx, conn, pod, flags.container)
	if err != nil {
		return err
	}
	if flags.previous {
		if container, err = before(ctx, conn, pod, container); err != nil {
			return err
		}
	}
	return copyLog(ctx, cmd, conn, container, flags)
}

// copyLog prints the log of a container.
func copyLog(ctx context.Context, cmd *cobra.Command, conn *criclient.Conn, container *runtimeapi.Container, flags *logFlags) error {
	if flags.tail < -1 {
		return fmt.Errorf("--tail %d: want -1 (all) or more: %w", flags.tail, errs.Invalid)
	}
	since, err := podlog.ParseSince(flags.since, time.Now())
	if err != nil {
		return err
	}
	status, err := conn.Runtime.ContainerStatus(ctx, &runtimeapi.ContainerStatusRequest{ContainerId: container.Id})
	if err != nil {
		return err
	}
	if status.Status.LogPath == "" {
		return fmt.Errorf("container %s has no log file: %w", container.Metadata.GetName(), errs.State)
	}
	opts := podlog.Options{Tail: flags.tail, Since: since, Timestamps: flags.timestamps}
	if flags.follow {
		opts.Ended = podlog.AwaitEnd(ctx, conn.Runtime, container.Id)
	}
	return podlog.Copy(ctx, status.Status.LogPath, opts, cmd.OutOrStdout(), cmd.ErrOrStderr())
}

// before finds the attempt before a container.
func before(ctx context.Context, conn *criclient.Conn, pod *runtimeapi.PodSandbox, container *runtimeapi.Container) (*runtimeapi.Container, error) {
	all, err := containersOf(ctx, conn, pod)
	if err != nil {
		return nil, err
	}
	for _, other := range all {
		if other.Metadata.GetName() == container.Metadata.GetName() && other.Metadata.GetAttempt() < container.Metadata.GetAttempt() {
			return other, nil
		}
	}
	return nil, fmt.Errorf("container %s of pod %s has no previous attempt: %w", container.Metadata.GetName(), podName(pod), errs.NotFound)
}
