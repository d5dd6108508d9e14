package ruleset

import (
	"errors"
	"strings"
	"testing"

	"github.com/berthrun/berth/internal/errs"
)

func TestCheckName(t *testing.T) {
	for _, good := range []string{DefaultName, "a", "B-1_x.y/z", strings.Repeat("x", 255)} {
		if err := CheckName(good); err != nil {
			t.Error(err)
		}
	}
	for _, bad := range []string{"", "bad name!", "1st", "-x", "x;y", "\u00e4", strings.Repeat("x", 256)} {
		if err := CheckName(bad); !errors.Is(err, errs.Invalid) {
			t.Errorf("%q: %v, want kind Invalid", bad, err)
		}
	}
}
