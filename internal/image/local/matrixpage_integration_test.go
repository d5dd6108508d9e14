//go:build integration

package local

import (
	"os"
	"slices"
	"strings"
	"testing"
)

// damagePage has what became of all cases.
const damagePage = "../../../docs/image-damage.md"

// damageRows are the table of the page: the kinds of damage to an object with the same outcome are one row.
func damageRows(outcomes []outcome) [][]string {
	type pair struct{ noted, plain outcome }
	pairs := map[string]*pair{}
	var order []string
	for _, o := range outcomes {
		key := o.object + ", " + o.damage
		if pairs[key] == nil {
			pairs[key] = &pair{}
			order = append(order, key)
		}
		if o.noted {
			pairs[key].noted = o
		} else {
			pairs[key].plain = o
		}
	}
	both := func(plain, noted string) string {
		if plain == noted {
			return plain
		}
		return plain + "; with the note: " + noted
	}
	rows := [][]string{{"object", "damage", "found by", "mended"}}
	for _, key := range order {
		p := pairs[key]
		found, mended := both(p.plain.found, p.noted.found), both(p.plain.mended, p.noted.mended)
		same := slices.IndexFunc(rows, func(row []string) bool { return row[0] == p.plain.object && row[2] == found && row[3] == mended })
		if same < 0 {
			rows = append(rows, []string{p.plain.object, p.plain.damage, found, mended})
			continue
		}
		rows[same][1] += ", " + p.plain.damage
	}
	return rows
}

// checkDamagePage compares the objects and the damage that the page lists with the cases.
func checkDamagePage(t *testing.T, cases []damageCase) {
	t.Helper()
	page, err := os.ReadFile(damagePage)
	if err != nil {
		t.Fatal(err)
	}
	listed := map[string]bool{}
	for line := range strings.Lines(string(page)) {
		cells := strings.Split(line, "|")
		if len(cells) != 6 {
			continue
		}
		for damage := range strings.SplitSeq(cells[2], ",") {
			listed[strings.TrimSpace(cells[1])+", "+strings.TrimSpace(damage)] = true
		}
	}
	delete(listed, "object, damage")
	delete(listed, "---, ---")
	known := map[string]bool{}
	for _, c := range cases {
		known[c.object+", "+c.damage] = true
	}
	for key := range listed {
		if !known[key] {
			t.Errorf("docs/image-damage.md has %q, which no case has", key)
		}
	}
	for key := range known {
		if !listed[key] {
			t.Errorf("docs/image-damage.md lacks %q: TestDamageMatrix with BERTH_WRITE_DOCS=1 writes it", key)
		}
	}
}
