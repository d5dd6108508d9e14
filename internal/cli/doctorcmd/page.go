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
		"{{node}}": check.Infos(machine.OfNode(true)), "{{host}}": append(check.Infos(machine.OfHost()), check.Infos(leaks.RecordChecks())...),
		"{{leaks}}": check.Infos(leaks.Checks()), "{{cluster}}": doctor.Checks(),
	} {
		text = strings.ReplaceAll(text, mark, sections(infos))
	}
	return text
}

// columns is the width of the prose of docs.
const columns = 100

// sections has a section for each check: findings name its anchor.
func sections(infos []check.Info) string {
	var all []string
	for _, info := range infos {
		all = append(all, fmt.Sprintf("### `%s`\n\n%s", info.ID, lines("Examines "+info.Title+". Reads "+info.Reads+".")))
	}
	return strings.Join(all, "\n\n")
}

// lines breaks prose into lines.
func lines(prose string) string {
	var text strings.Builder
	at := 0
	for _, word := range strings.Fields(prose) {
		switch {
		case at == 0:
		case at+1+len(word) > columns:
			text.WriteByte('\n')
			at = 0
		default:
			text.WriteByte(' ')
			at++
		}
		text.WriteString(word)
		at += len(word)
	}
	return text.String()
}
