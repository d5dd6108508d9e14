// Package jobscmd holds `berth jobs`.
package jobscmd

import (
	"context"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/berthrun/berth/internal/berthapi"
	"github.com/berthrun/berth/internal/cli/connect"
	"github.com/berthrun/berth/internal/cli/show"
	"github.com/berthrun/berth/internal/criclient"
)

// New returns `berth jobs`.
func New() *cobra.Command {
	var endpoint connect.Flag
	var output show.Flag
	var follow bool
	cmd := &cobra.Command{
		Use:   "jobs",
		Short: "List running jobs, and what each of them waits for",
		Long: "A sandbox or a container that is being created is listed here only; `berth pod ls` lists it when it is ready.\n" +
			"WAITS FOR says what the job needs before it leaves its stage, and how many bytes of the stage are done.\n" +
			"WAITERS is how many requests wait for the job. Requests for the same work share one job. With 0, no client waits:\n" +
			"the job goes on in the background. A pull ends when the last of its requests leaves it.\n\n" +
			"The stages of a pull:\n" +
			"  resolving   asks the registry what the name means, and reads the documents of the image\n" +
			"  waiting     fetches nothing now: other pulls fetch the same layers, or the limits of the node hold it back\n" +
			"  fetching    fetches layers, and unpacks those that it has\n" +
			"  unpacking   has all layers, and unpacks the rest\n" +
			"  recording   records the image\n\n" +
			"--watch prints the running jobs, then each stage that a job reaches and each end, until Ctrl-C.\n" +
			"Other runtimes do not support this.",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return endpoint.Use(cmd, func(ctx context.Context, conn *criclient.Conn) error {
				if follow {
					return watch(ctx, cmd, conn, &output)
				}
				jobs, err := conn.Berth.ListJobs(ctx)
				if err != nil {
					return err
				}
				return output.Print(cmd.OutOrStdout(), berthapi.JobList{Jobs: jobs}, func(w io.Writer) error { return printJobs(w, jobs) })
			})
		},
	}
	cmd.Flags().BoolVarP(&follow, "watch", "w", false, "go on with each change, until Ctrl-C")
	cmd.AddCommand(newCancel(&endpoint))
	endpoint.Register(cmd)
	output.Register(cmd)
	return cmd
}

func printJobs(w io.Writer, jobs []berthapi.Job) error {
	var rows [][]string
	for _, j := range jobs {
		kind := j.Kind
		if j.Cancelled {
			kind += " (cancelled)"
		}
		since := show.Age(j.StageAge)
		if j.Slow {
			since += " (slow)"
		}
		rows = append(rows, []string{
			show.Or(show.ID(j.ID)), kind, j.Key, j.Stage, since, show.Or(j.WaitsFor), show.Age(j.Age), fmt.Sprint(j.Waiters),
		})
	}
	return show.Table(w, []string{"ID", "JOB", "KEY", "STAGE", "SINCE", "WAITS FOR", "AGE", "WAITERS"}, rows)
}
