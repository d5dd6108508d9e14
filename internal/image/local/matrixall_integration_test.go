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
