package podrun

import (
	"fmt"
	"strings"
	"testing"

	"github.com/berthrun/berth/internal/cli/podrun/output"
	"github.com/berthrun/berth/internal/errs"
)

// TestSay: the keeper prints an error without the name of its kind. The kind is for programs.
func TestSay(t *testing.T) {
	var told strings.Builder
	k := &podRun{out: output.New(false, "", nil, nil)}
	k.Say = &told
	k.say("%s: its hook failed: %v", "main", fmt.Errorf("cannot exec in it: it is ending: %w (no process)", errs.State))
	k.say("%s ended (%s)", "main", "exit code 1")
	if want := "berth: main: its hook failed: cannot exec in it: it is ending (no process)\nberth: main ended (exit code 1)\n"; told.String() != want {
		t.Errorf("%q, want %q", told.String(), want)
	}
}
