package source

import "testing"

func TestExpand(t *testing.T) {
	values := map[string]string{"A": "1", "B": "$(A)"}
	for text, want := range map[string]string{
		"":            "",
		"$(A)$(A)":    "11",
		"$$(A)":       "$(A)",
		"$$$(A)":      "$1",
		"$(NOPE)":     "$(NOPE)",
		"$(A":         "$(A",
		"$A ${A} $":   "$A ${A} $",
		"$(B)":        "$(A)",
		"$($(A))":     "$($(A))",
		"x$(A)y$(B)z": "x1y$(A)z",
	} {
		if got := Expand(text, values); got != want {
			t.Errorf("%q became %q, want %q", text, got, want)
		}
	}
}
