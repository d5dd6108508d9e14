package doctorcmd

import (
	_ "embed"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/berthrun/berth/internal/cluster/doctor"
	check "github.com/berthrun/berth/internal/doctor"
	"github.com/berthrun/berth/internal/leaks"
	machine "github.com/berthrun/berth/internal/provision/doctor"
)

// page is docs/doctor.md without its tables.
//
//go:embed page.md
var page string

// newReference prints docs/doctor.md.
func newReference() *cobra.Command {
	return &cobra.Command{
		Use:    "reference",
		Short:  "Print the reference page",
		Hidden: true,
		Args:   cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			_, err := fmt.Fprint(cmd.OutOrStdout(), Page())
			return err
		},
	}
}

// Page is docs/doctor.md.
func Page() string {
	text := page
	for mark, infos := range map[string][]check.Info{
		"{{node}}": check.Infos(machine.OfNode(true)), "{{host}}": check.Infos(machine.OfHost()), "{{leaks}}": check.Infos(leaks.Checks()), "{{cluster}}": doctor.Checks(),
	} {
		text = strings.ReplaceAll(text, mark, table(infos))
	}
	return text
}

func table(infos []check.Info) string {
	var rows strings.Builder
	rows.WriteString("| check | examines | reads |\n|---|---|---|")
	for _, info := range infos {
		fmt.Fprintf(&rows, "\n| `%s` | %s | %s |", info.ID, info.Title, strings.ReplaceAll(info.Reads, "|", `\|`))
	}
	return rows.String()
}
