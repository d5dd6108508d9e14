package show

import (
	"fmt"
	"io"

	"github.com/berthrun/berth/internal/finding"
)

// Findings prints a doctor's findings, each with its fix on a line of its own.
func Findings(w io.Writer, all []finding.Finding) error {
	var err error
	for _, f := range all {
		_, err = fmt.Fprintf(w, "%-8s %s", f.Level, f.Check)
		if f.Evidence != "" {
			_, err = fmt.Fprintf(w, ": %s", f.Evidence)
		}
		fmt.Fprintln(w)
		if f.Fix != "" {
			_, err = fmt.Fprintf(w, "         → %s\n", f.Fix)
		}
	}
	return err
}
