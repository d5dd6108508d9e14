//go:build integration

package local

import (
	"os"
	"strings"
	"testing"
)

// damagePage has what became of all cases.
const damagePage = "../../../docs/image-damage.md"

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
