package clustercmd

import (
	"fmt"
	"time"

	"github.com/spf13/cobra"
)

// patience is a flag that says how long something may take.
type patience struct{ time *time.Duration }

func (p patience) String() string {
	if p.time == nil {
		return "0s" // pflag asks a zero value
	}
	return p.time.String()
}

func (p patience) Set(text string) error {
	parsed, err := time.ParseDuration(text)
	if err != nil || parsed < 0 {
		return fmt.Errorf("want a time such as 90s or 2m")
	}
	*p.time = parsed
	return nil
}

func (patience) Type() string { return "duration" }

// addWait gives a command --wait.
func addWait(cmd *cobra.Command, wait *time.Duration) {
	cmd.Flags().Var(patience{wait}, "wait", "how long all nodes may take to be Ready; 0 waits for none")
}
