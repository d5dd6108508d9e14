package doctor

import (
	"context"
	"fmt"
	"testing"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/finding"
)

// TestTextsForPeople: evidence and the reason of a failed repair end without the name of an error's kind.
func TestTextsForPeople(t *testing.T) {
	fails := Check[int]{Info: Info{ID: "a"}, Look: func(context.Context, int, *Report) error {
		return fmt.Errorf("systemd does not run here: %w", errs.Unsupported)
	}}
	mends := Check[int]{Info: Info{ID: "b"}, Look: func(_ context.Context, _ int, r *Report) error {
		r.AddRepairable(finding.Problem, "o", "e", "f", "removes o", func(context.Context) error {
			return fmt.Errorf("o is in use: %w", errs.State)
		})
		return nil
	}}
	all := Examine(t.Context(), 0, []Check[int]{fails, mends})
	if got, want := all[0].Evidence, "cannot be checked: systemd does not run here"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	Repair(t.Context(), all, func(finding.Finding) {})
	if got, want := all[1].Unrepaired, "o is in use"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}
