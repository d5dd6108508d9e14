// Package reload keeps the outcome of the daemon's last reload of its configuration, for those who show it: verbose Status,
// commands, the node page and the metrics.
package reload

import (
	"encoding/json"
	"strings"
	"sync/atomic"
	"time"

	"github.com/berthrun/berth/internal/errs"
)

// State is the outcome of the last reload. The zero value: the daemon has not reloaded its configuration since its start.
type State struct {
	// At is the time of the reload.
	At time.Time `json:"at,omitzero"`
	// Refused is true if the reload changed nothing, because the configuration had faults. Error names them.
	Refused bool   `json:"refused,omitempty"`
	Error   string `json:"error,omitempty"`
	// NeedRestart are the keys whose values in the last accepted configuration differ from those with which the daemon
	// runs, because a reload cannot change them.
	NeedRestart []string `json:"needRestart,omitempty"`
}

// Parse reads a State from a daemon's verbose Status, its key "reload". The state of a runtime without one is the zero
// value: other runtimes and older daemons have none.
func Parse(info map[string]string) State {
	var state State
	if json.Unmarshal([]byte(info["reload"]), &state) != nil {
		return State{}
	}
	return state
}

// Refusal is when and why the last reload was refused, in one line: "refused at TIME: ERROR". It is empty if it was not.
func (s State) Refusal() string {
	if !s.Refused {
		return ""
	}
	return "refused at " + s.At.UTC().Format(time.RFC3339) + ": " + s.Error
}

// Notices are what a person at the node must know, a sentence each. There are none if the daemon runs with all of the
// configuration that it has read last.
func (s State) Notices() []string {
	var all []string
	if refusal := s.Refusal(); refusal != "" {
		all = append(all, "The last reload of the configuration was "+refusal)
	}
	if len(s.NeedRestart) > 0 {
		all = append(all, "Keys of the configuration that need a restart of the daemon: "+strings.Join(s.NeedRestart, ", "))
	}
	return all
}

// Last has the state of the last reload. The zero value is ready; all methods are safe for concurrent use.
type Last struct{ state atomic.Pointer[State] }

// State returns the outcome of the last reload.
func (l *Last) State() State {
	if state := l.state.Load(); state != nil {
		return *state
	}
	return State{}
}

// Accept records a reload that the daemon has applied, but for some keys. Reloads come one after the other.
func (l *Last) Accept(at time.Time, needRestart []string) {
	l.state.Store(&State{At: at, NeedRestart: needRestart})
}

// Refuse records a reload that changed nothing. The keys that need a restart stay those of the last accepted one.
func (l *Last) Refuse(at time.Time, why error) {
	faults := strings.ReplaceAll(strings.TrimSpace(errs.Message(why)), "\n", "; ")
	l.state.Store(&State{At: at, Refused: true, Error: faults, NeedRestart: l.State().NeedRestart})
}
