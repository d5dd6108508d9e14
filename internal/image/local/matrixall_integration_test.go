//go:build integration && e2e

package local

import (
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/berthrun/berth/internal/image/imagetest/hostileimage"
)

// TestDamageMatrix tries every kind of damage to every object of a store. BERTH_DAMAGE selects those
// whose row has a text. BERTH_WRITE_DOCS=1 writes the outcomes of all to docs/image-damage.md.
func TestDamageMatrix(t *testing.T) {
	f := newDamagedStore(t)
	only := os.Getenv("BERTH_DAMAGE")
	outcomes := damageTable(t, f, slices.DeleteFunc(damageCases(f), func(c damageCase) bool { return !strings.Contains(c.String(), only) }))
	switch rows := damageRows(outcomes); {
	case t.Failed():
		t.Logf("the page would have\n%s", hostileimage.Markdown(rows))
	case only == "" && hostileimage.Writing(): // whether the background or the check mends something first depends on the load
		hostileimage.Page(t, damagePage, "## All cases", rows)
	}
}

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
