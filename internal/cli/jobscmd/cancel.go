package jobscmd

import (
	"context"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/berthrun/berth/internal/berthapi"
	"github.com/berthrun/berth/internal/cli/connect"
	"github.com/berthrun/berth/internal/criclient"
)

// newCancel returns `berth jobs cancel`.
func newCancel(endpoint *connect.Flag) *cobra.Command {
	var limit time.Duration
	cmd := &cobra.Command{
		Use:   "cancel ID",
		Short: "Cancel a job, and wait until it has undone its work",
		Long: "ID is that of the sandbox, the container or the content, a prefix of it, or the KEY that `berth jobs` prints.\n\n" +
			"A job that creates a sandbox or a container is rolled back: nothing of it stays. A start kills what it has started,\n" +
			"and the container is EXITED. An update or a checkpoint ends where it is. The client of the job gets the error\n" +
			"Unavailable and may try again: a kubelet does so until the pod is deleted.\n\n" +
			"Jobs of images (checks, and damaged content that is fetched again) end where they are, and leave the store valid.\n\n" +
			"A stop or a removal cannot be cancelled: it goes to its end, so that nothing is left half removed.",
		Example:           "  berth jobs\n  berth jobs cancel 3f9a",
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: complete(endpoint),
		RunE: func(cmd *cobra.Command, args []string) error {
			return endpoint.Use(cmd, func(ctx context.Context, conn *criclient.Conn) error {
				ctx, cancel := context.WithTimeout(ctx, limit+berthapi.AnswerTime)
				defer cancel()
				end, err := conn.Berth.CancelJob(ctx, args[0])
				if err != nil {
					return err
				}
				said := ""
				if end.Error != "" {
					said = ": " + end.Error
				}
				_, err = fmt.Fprintf(cmd.OutOrStdout(), "%s of %s, which was at stage %q, has ended: %s%s\n", end.Kind, end.Key, end.Stage, end.Result, said)
				return err
			})
		},
	}
	cmd.Flags().DurationVar(&limit, "timeout", time.Minute, "how long to wait for the end; the job goes on with its rollback after that")
	return cmd
}

// completionTime bounds the time of a completion.
const completionTime = 2 * time.Second

// complete offers the ids of running jobs.
func complete(endpoint *connect.Flag) cobra.CompletionFunc {
	return func(cmd *cobra.Command, args []string, _ string) ([]cobra.Completion, cobra.ShellCompDirective) {
		if len(args) > 0 {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		ctx, cancel := context.WithTimeout(cmd.Context(), completionTime)
		defer cancel()
		conn, err := endpoint.Dial(ctx)
		if err != nil {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		defer conn.Close()
		jobs, err := conn.Berth.ListJobs(ctx)
		if err != nil {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		var ids []cobra.Completion
		for _, job := range jobs {
			ids = append(ids, cobra.CompletionWithDesc(job.ID, job.Kind+" "+job.Key))
		}
		return ids, cobra.ShellCompDirectiveNoFileComp
	}
}
