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

// TestEndingOfSandbox: what is lost, and when, is as it was found.
func TestEndingOfSandbox(t *testing.T) {
	for state, want := range map[engine.State]string{
		"":                  "the engine has no such sandbox any more: another program removed it, or the engine lost it, while the engine was away",
		engine.StateBroken:  "a part of it was lost while the engine was away",
		engine.StateStopped: "its own process ended while the engine was away",
	} {
		if got := endingOfSandbox(engine.Actual{State: state}, whileAway); got != want {
			t.Errorf("%q: %q, want %q", state, got, want)
		}
	}
}
