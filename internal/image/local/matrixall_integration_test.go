//go:build integration && e2e

package local

import (
	"os"
	"slices"
	"strings"
	"testing"
)

// TestDamageMatrix tries every kind of damage to every object of a store. BERTH_DAMAGE selects those
// whose row has a text.
func TestDamageMatrix(t *testing.T) {
	f := newDamagedStore(t)
	only := os.Getenv("BERTH_DAMAGE")
	damageTable(t, f, slices.DeleteFunc(damageCases(f), func(c damageCase) bool { return !strings.Contains(c.String(), only) }))
}
