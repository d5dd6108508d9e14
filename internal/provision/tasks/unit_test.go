package tasks

import "testing"

// TestEnabledAs: a unit that is linked, or enabled until the next boot, does not start at every boot.
func TestEnabledAs(t *testing.T) {
	for state, want := range map[string]struct{ enabled, disabled bool }{
		"enabled": {true, false}, "alias": {true, false}, "enabled-runtime": {false, true}, "linked": {false, true},
		"linked-runtime": {false, true}, "disabled": {false, true}, "masked": {false, true}, "static": {true, true}, "generated": {true, true},
	} {
		if enabledAs(state, true) != want.enabled || enabledAs(state, false) != want.disabled {
			t.Errorf("%s counts as enabled: %t, as disabled: %t", state, enabledAs(state, true), enabledAs(state, false))
		}
	}
}
