package endings

import (
	"testing"

	"github.com/moby/moby/api/types/container"
)

// TestStarting: an end during a start counts only if it is of that start's process.
func TestStarting(t *testing.T) {
	first, second := &Die{137, moment(early)}, &Die{3, moment(late)}
	stopped := &container.State{Status: container.StateExited, StartedAt: "2026-01-01T10:00:05Z", FinishedAt: late}
	runs := &container.State{Status: container.StateRunning, Running: true, StartedAt: late}
	ran := &container.State{Status: container.StateRunning, Running: true, StartedAt: stopped.StartedAt}
	for name, c := range map[string]struct {
		hold  []*Die
		state *container.State
		die   *Die
		ended bool
	}{
		"nothing was heard, it runs":             {nil, runs, nil, false},
		"nothing was heard, it has ended":        {nil, stopped, nil, false}, // the event follows
		"a failed attempt, then it runs":         {[]*Die{first}, runs, nil, false},
		"it ran, and has ended since":            {[]*Die{second}, ran, second, true},
		"it ran, and was seen to have ended":     {[]*Die{nil}, ran, nil, true},
		"it has ended":                           {[]*Die{second}, stopped, second, true},
		"a failed attempt, and it has ended":     {[]*Die{first, second}, stopped, second, true},
		"a failed attempt, its own end follows":  {[]*Die{first}, stopped, nil, false},
		"a failed attempt, its own end was seen": {[]*Die{first, nil}, stopped, nil, true},
		"the start failed":                       {[]*Die{first}, nil, nil, true},
		"the start failed, nothing was heard":    {nil, nil, nil, false},
	} {
		t.Run(name, func(t *testing.T) {
			var s Starting
			if s.Hold(first) {
				t.Error("an end is held without a start")
			}
			s.Begin()
			for _, die := range c.hold {
				if !s.Hold(die) {
					t.Error("an end is not held")
				}
			}
			if die, ended := s.End(c.state); die != c.die || ended != c.ended {
				t.Errorf("%+v, %v, want %+v, %v", die, ended, c.die, c.ended)
			}
			if s.UnderWay() || s.Hold(first) {
				t.Error("the start is not over")
			}
		})
	}
	var s Starting
	s.Begin()
	s.Hold(second)
	s.Begin()
	if die, ended := s.End(stopped); die != nil || ended {
		t.Errorf("%+v of the attempt before", die)
	}
}
