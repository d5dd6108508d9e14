package jobscmd

import (
	"context"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"github.com/berthrun/berth/internal/berthapi"
	"github.com/berthrun/berth/internal/cli/show"
	"github.com/berthrun/berth/internal/criclient"
)

// watch prints the jobs that run, and then each change.
func watch(ctx context.Context, cmd *cobra.Command, conn *criclient.Conn, output *show.Flag) error {
	return conn.Berth.WatchJobs(ctx, func(u berthapi.JobUpdate) error {
		return output.Print(cmd.OutOrStdout(), u, func(w io.Writer) error {
			_, err := fmt.Fprintln(w, line(&u, time.Now()))
			return err
		})
	})
}

// line is an update for people.
func line(u *berthapi.JobUpdate, now time.Time) string {
	text := fmt.Sprintf("%s  %s  %-16s  %s  ", now.Format("15:04:05.000"), show.Or(show.ID(u.ID)), u.Kind, u.Key)
	if !u.Ended {
		text += fmt.Sprintf("%s, waiting for %s", u.Stage, show.Or(u.WaitsFor))
		if u.Cancelled {
			text += " (cancelled)"
		}
		return text
	}
	text += fmt.Sprintf("%s after %s", u.Result, u.Age.Round(time.Millisecond))
	if u.Error != "" {
		text += ": " + u.Error
	}
	return text
}
