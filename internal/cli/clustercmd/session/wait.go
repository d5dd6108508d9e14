package session

import (
	"fmt"
	"time"

	"github.com/spf13/cobra"
)

// durationFlag is the value of a flag that is a duration of 0 or more.
type durationFlag struct{ time *time.Duration }

func (p durationFlag) String() string {
	if p.time == nil {
		return "0s" // pflag calls it on a zero value
	}
	return p.time.String()
}

func (p durationFlag) Set(text string) error {
	parsed, err := time.ParseDuration(text)
	if err != nil || parsed < 0 {
		return fmt.Errorf("want a duration such as 90s or 2m")
	}
	*p.time = parsed
	return nil
}

func (durationFlag) Type() string { return "duration" }

// AddDuration adds a flag to a command that is a duration of 0 or more.
func AddDuration(cmd *cobra.Command, d *time.Duration, name, usage string) {
	cmd.Flags().Var(durationFlag{d}, name, usage)
}

// AddWait adds --wait to a command.
func AddWait(cmd *cobra.Command, wait *time.Duration) {
	AddDuration(cmd, wait, "wait", "how long to wait until all nodes are Ready; 0: do not wait")
}
