package child

import "testing"

// TestCodeOfAChildWithoutASupervisor: a supervisor that adopts an exec takes 255, and no other code, for one that may not have
// begun. Any other would be answered as the code of the program.
func TestCodeOfAChildWithoutASupervisor(t *testing.T) {
	if code := report(errSupervisorEnded); code != 255 {
		t.Errorf("it ends with %d", code)
	}
}
