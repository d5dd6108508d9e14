package recovery

import (
	"testing"

	"github.com/berthrun/berth/internal/engine"
)

// TestReplaced: a container runs once. Another process than the recorded one is that of a restart, if
// both are known.
func TestReplaced(t *testing.T) {
	for name, c := range map[string]struct {
		recorded int
		state    engine.State
		pid      int
		want     bool
	}{
		"the same process":         {42, engine.StateRunning, 42, false},
		"another process":          {42, engine.StateRunning, 43, true},
		"it has ended":             {42, engine.StateStopped, 0, false},
		"its process is not known": {42, engine.StateRunning, 0, false},
		"none was recorded":        {0, engine.StateRunning, 43, false},
		"none was seen at a start": {engine.PidEnded, engine.StateRunning, 43, false},
	} {
		if got := replaced(c.recorded, engine.Actual{State: c.state, Pid: c.pid}); got != c.want {
			t.Errorf("%s: %v", name, got)
		}
	}
}
