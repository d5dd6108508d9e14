package finding

import "testing"

func TestSick(t *testing.T) {
	all := []Finding{{Check: "a", Level: OK}, {Check: "b", Level: Warning}}
	if Sick(all) || Sick(nil) {
		t.Error("a warning is no problem")
	}
	if !Sick(append(all, Finding{Check: "c", Level: Problem})) {
		t.Error("a problem is one")
	}
}
