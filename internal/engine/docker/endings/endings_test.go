package endings

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/api/types/events"

	"github.com/berthrun/berth/internal/engine"
)

const (
	early = "2026-01-01T10:00:00.000000001Z"
	late  = "2026-01-01T10:00:09.5Z"
	never = "0001-01-01T00:00:00Z"
)

func moment(text string) time.Time {
	at, err := time.Parse(time.RFC3339Nano, text)
	if err != nil {
		panic(err)
	}
	return at
}

func TestOf(t *testing.T) {
	middle := moment("2026-01-01T10:00:05Z")
	for name, c := range map[string]struct {
		state *container.State
		die   *Die
		want  *engine.Exit
	}{
		"it runs":   {&container.State{Status: container.StateRunning, Running: true, StartedAt: early}, nil, nil},
		"it exited": {&container.State{Status: container.StateExited, ExitCode: 7, StartedAt: early, FinishedAt: late}, nil, &engine.Exit{Code: 7, At: moment(late)}},
		"255 that the engine saw": {
			&container.State{Status: container.StateExited, ExitCode: 255, StartedAt: early, FinishedAt: late}, &Die{255, moment(late)},
			&engine.Exit{Code: 255, At: moment(late)},
		},
		"255 after an outage": {
			&container.State{Status: container.StateExited, ExitCode: 255, StartedAt: early, FinishedAt: late}, nil,
			&engine.Exit{Code: engine.CodeUnknown, At: moment(late), Reason: engine.ReasonUnknown},
		},
		"-1 after an outage": {
			&container.State{Status: container.StateExited, ExitCode: -1, StartedAt: early, FinishedAt: late}, nil,
			&engine.Exit{Code: engine.CodeUnknown, At: moment(late), Reason: engine.ReasonUnknown},
		},
		"an engine that was killed before it wrote the end down": {
			&container.State{Status: container.StateExited, StartedAt: early, FinishedAt: never}, nil,
			&engine.Exit{Code: engine.CodeUnknown, Reason: engine.ReasonUnknown},
		},
		"removal under way": {
			&container.State{Status: container.StateRemoving, StartedAt: early, FinishedAt: late}, &Die{137, middle},
			&engine.Exit{Code: 137, At: middle, Reason: engine.ReasonRemoved},
		},
		"removal under way, end not seen": {&container.State{Status: container.StateRemoving, StartedAt: early}, nil, nil},
		"it runs again": {
			&container.State{Status: container.StateRunning, Running: true, StartedAt: late}, &Die{3, middle},
			&engine.Exit{Code: 3, At: middle, Reason: engine.ReasonRestarted},
		},
		"it has ended twice": {
			&container.State{Status: container.StateExited, ExitCode: 9, StartedAt: late, FinishedAt: late}, &Die{3, middle},
			&engine.Exit{Code: 3, At: middle, Reason: engine.ReasonRestarted},
		},
		"its memory": {
			&container.State{Status: container.StateExited, ExitCode: 137, OOMKilled: true, StartedAt: early, FinishedAt: late}, nil,
			&engine.Exit{Code: 137, At: moment(late), OOMKilled: true},
		},
	} {
		t.Run(name, func(t *testing.T) {
			got, ended := Of("c", c.state, Known{Die: c.die, EngineStarted: moment(early)})
			if ended != (c.want != nil) {
				t.Fatalf("ended is %v: %+v", ended, got)
			}
			if !ended {
				return
			}
			c.want.ContainerID = "c"
			if (got.Message != "") != (c.want.Reason != "") {
				t.Errorf("reason %q has message %q", got.Reason, got.Message)
			}
			got.Message = ""
			if c.want.At.IsZero() {
				got.At = time.Time{}
			}
			if diff := cmp.Diff(*c.want, got); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestDieOf(t *testing.T) {
	message := &events.Message{TimeNano: 1_700_000_000_000_000_001, Actor: events.Actor{Attributes: map[string]string{"exitCode": "137"}}}
	if die := DieOf(message); die == nil || die.Code != 137 || die.At.UnixNano() != message.TimeNano {
		t.Errorf("%+v", die)
	}
	message.Actor.Attributes = nil
	if die := DieOf(message); die != nil {
		t.Errorf("%+v of an event without a code", die)
	}
	if exit := Removed("c", nil); exit.Code != engine.CodeUnknown || exit.Reason != engine.ReasonRemoved || exit.Message == "" {
		t.Errorf("%+v", exit)
	}
}

// TestOfWithEvidence: what berth knows besides the engine's state, of ends that the engine did not see.
func TestOfWithEvidence(t *testing.T) {
	code := func(c int32) *int32 { return &c }
	state := func(code int, finished string) *container.State {
		return &container.State{Status: container.StateExited, ExitCode: code, StartedAt: early, FinishedAt: finished}
	}
	for name, c := range map[string]struct {
		state  *container.State
		known  Known
		code   int32
		reason string
	}{
		"the kernel has the code that the engine lost":    {state(255, late), Known{Kernel: code(75)}, 75, ""},
		"the kernel has the code that the engine made up": {state(0, late), Known{Kernel: code(75), EngineStarted: moment(late).Add(-time.Second)}, 75, ""},
		"the engine was killed before it wrote it down":   {state(0, never), Known{Kernel: code(3)}, 3, ""},
		"0 while the engine started":                      {state(0, late), Known{EngineStarted: moment(late).Add(-time.Second)}, engine.CodeUnknown, engine.ReasonUnknown},
		"0 before the engine started":                     {state(0, late), Known{EngineStarted: moment(late).Add(time.Second)}, 0, ""},
		"0 long after the engine started":                 {state(0, late), Known{EngineStarted: moment(late).Add(-time.Hour)}, 0, ""},
		"0 that the engine saw":                           {state(0, late), Known{Die: &Die{0, moment(late)}, EngineStarted: moment(late).Add(-time.Second)}, 0, ""},
		"another code while the engine started":           {state(3, late), Known{EngineStarted: moment(late).Add(-time.Second)}, 3, ""},
	} {
		t.Run(name, func(t *testing.T) {
			got, ended := Of("c", c.state, c.known)
			if !ended || got.Code != c.code || got.Reason != c.reason || got.At.IsZero() {
				t.Errorf("%+v, %v; want code %d, reason %q", got, ended, c.code, c.reason)
			}
		})
	}
}
