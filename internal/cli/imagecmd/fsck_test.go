package imagecmd

import (
	"strings"
	"testing"

	"github.com/berthrun/berth/internal/image"
)

// TestExitCodeOfACheck: what could not be checked never counts as whole.
func TestExitCodeOfACheck(t *testing.T) {
	left, mended := image.Damage{}, image.Damage{Repaired: true}
	for name, c := range map[string]struct {
		report image.CheckReport
		want   int
	}{
		"whole":                  {image.CheckReport{Notes: []string{"a note"}}, 0},
		"repaired":               {image.CheckReport{Damage: []image.Damage{mended}}, 3},
		"damaged":                {image.CheckReport{Damage: []image.Damage{mended, left, mended}}, 4},
		"not checked":            {image.CheckReport{Unchecked: []string{"layer a"}}, 1},
		"repaired, not checked":  {image.CheckReport{Damage: []image.Damage{mended}, Unchecked: []string{"layer a"}}, 1},
		"damaged, one unchecked": {image.CheckReport{Damage: []image.Damage{left}, Unchecked: []string{"layer a"}}, 4},
	} {
		if got := checkCode(&c.report); got != c.want {
			t.Errorf("%s: code %d, want %d", name, got, c.want)
		}
	}
	var text strings.Builder
	if err := checkSummary(&text, &image.CheckReport{Unchecked: []string{"layer a: the disk is full"}}); err != nil || !strings.Contains(text.String(), "not checked: layer a: the disk is full\n") || !strings.HasSuffix(text.String(), "; 1 not checked\n") {
		t.Errorf("%q, %v", text.String(), err)
	}
}
