package show

import (
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/berthrun/berth/internal/finding"
)

// TestFindings: lines have at most 80 columns, unless one word is longer, and go on under their text.
func TestFindings(t *testing.T) {
	long := strings.Repeat("x", 100)
	var out strings.Builder
	err := Findings(&out, []finding.Finding{
		{Check: "disk", Level: finding.OK},
		{Check: "disk", Level: finding.Warning, Evidence: strings.TrimSpace(strings.Repeat("four ", 20)), Fix: strings.TrimSpace(strings.Repeat("five5 ", 15)), Repair: "removes it"},
		{Check: "a", Level: finding.Problem, Evidence: long, Fix: "gone with the repair", Repair: "removes it", Repaired: true},
		{Check: "b", Level: finding.Warning, Evidence: "e", Repair: "removes it", Unrepaired: "it is in use", Docs: "docs/doctor.md#b"},
		{ID: "c-1", Check: "c one", Level: finding.OK, Skipped: "no c here"},
		{ID: "d", Check: "d", Level: finding.OK, Skipped: "no d here"},
		{ID: "c-2", Check: "c two", Level: finding.OK, Skipped: "no c here"},
	})
	if err != nil {
		t.Fatal(err)
	}
	want := `ok       disk
warning  disk: four four four four four four four four four four four four four
         four four four four four four four
         → five5 five5 five5 five5 five5 five5 five5 five5 five5 five5 five5
           five5 five5 five5 five5
         --repair: removes it
problem  a:
         ` + long + `
         repaired: removes it
warning  b: e
         not repaired: it is in use
         see docs/doctor.md#b
skipped  no c here: c-1, c-2
skipped  no d here: d
`
	if out.String() != want {
		t.Errorf("got:\n%s\nwant:\n%s", out.String(), want)
	}
	for line := range strings.Lines(out.String()) {
		if utf8.RuneCountInString(strings.TrimSpace(line)) != len(long) && utf8.RuneCountInString(line) > columns+1 {
			t.Errorf("longer than %d: %s", columns, line)
		}
	}
}
