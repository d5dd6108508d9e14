package finding

import "testing"

func TestHasProblem(t *testing.T) {
	all := []Finding{{Check: "a", Level: OK}, {Check: "b", Level: Warning}}
	if HasProblem(all) || HasProblem(nil) {
		t.Error("a warning is no problem")
	}
	if !HasProblem(append(all, Finding{Check: "c", Level: Problem})) {
		t.Error("a problem is one")
	}
}
