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
// whose row has a text. The outcomes of all are those of docs/image-damage.md.
func TestDamageMatrix(t *testing.T) {
	f := newDamagedStore(t)
	only := os.Getenv("BERTH_DAMAGE")
	outcomes := damageTable(t, f, slices.DeleteFunc(damageCases(f), func(c damageCase) bool { return !strings.Contains(c.String(), only) }))
	switch rows := damageRows(outcomes); {
	case t.Failed():
		t.Logf("the page would have\n%s", hostileimage.Markdown(rows))
	case only == "":
		hostileimage.Page(t, damagePage, "## All cases", rows)
	}
}
