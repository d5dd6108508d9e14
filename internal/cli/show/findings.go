package show

import (
	"cmp"
	"fmt"
	"io"
	"strings"
	"unicode/utf8"

	"github.com/berthrun/berth/internal/finding"
)

// columns is the width of findings on a terminal.
const columns = 80

// Findings prints a doctor's findings, each with its fix, and with its repair if there is one, on
// lines of their own. Checks that had nothing to examine for one reason are on one line.
func Findings(w io.Writer, all []finding.Finding) error {
	var text strings.Builder
	skipped := map[string][]string{}
	for _, f := range all {
		if f.Skipped != "" {
			skipped[f.Skipped] = append(skipped[f.Skipped], cmp.Or(f.ID, f.Check))
		}
	}
	for _, f := range all {
		if f.Skipped != "" {
			if checks := skipped[f.Skipped]; len(checks) > 0 {
				wrap(&text, fmt.Sprintf("%-8s ", "skipped"), f.Skipped+": "+strings.Join(checks, ", "))
			}
			delete(skipped, f.Skipped)
			continue
		}
		said := f.Check
		if f.Evidence != "" {
			said += ": " + f.Evidence
		}
		wrap(&text, fmt.Sprintf("%-8s ", f.Level), said)
		const below = "         "
		if f.Fix != "" && !f.Repaired {
			wrap(&text, below+"→ ", f.Fix)
		}
		switch {
		case f.Repaired:
			wrap(&text, below+"repaired: ", f.Repair)
		case f.Unrepaired != "":
			wrap(&text, below+"not repaired: ", f.Unrepaired)
		case f.Repair != "":
			wrap(&text, below+"--repair: ", f.Repair)
		}
		if f.Docs != "" && !f.Repaired {
			wrap(&text, below+"see ", f.Docs)
		}
	}
	_, err := io.WriteString(w, text.String())
	return err
}

// wrap writes words after first, in lines of at most columns, of which all but the first are
// indented by as much as first has. A longer word has a line of its own.
func wrap(to *strings.Builder, first, words string) {
	indent := utf8.RuneCountInString(first)
	to.WriteString(first)
	at, begun := indent, false
	for _, word := range strings.Fields(words) {
		length := utf8.RuneCountInString(word)
		if begun && at+1+length > columns {
			to.WriteString("\n" + strings.Repeat(" ", indent))
			at, begun = indent, false
		}
		if begun {
			to.WriteByte(' ')
			at++
		}
		to.WriteString(word)
		at += length
		begun = true
	}
	to.WriteByte('\n')
}
