// Package journal records what was done to a machine: for each apply the objects it touched with
// their states from before, and for each object the state from before berth owned it.
//
// It is a file of one JSON record a line, appended and synced before the machine is changed, and a
// directory of contents named by their digest. A crash can cut short only the last line, which is
// dropped. The package has objects and states, and does not read or restore them.
package journal

import (
	"time"

	"github.com/berthrun/berth/internal/provision"
)

// Verb is what an entry of the history did.
type Verb string

// The verbs.
const (
	Apply    Verb = "apply"
	Prune    Verb = "prune"
	Rollback Verb = "rollback"
)

// Result is how an entry ended.
type Result string

// The results. An entry without one was interrupted, or is still running.
const (
	OK         Result = "ok"
	Failed     Result = "failed"      // and what it changed is still there
	RolledBack Result = "rolled back" // what it changed is as before, or, repaired, as the last good entry made it
)

// record is one line. Exactly one of the pointers is set.
type record struct {
	Apply int        `json:"apply"`
	Time  time.Time  `json:"time"`
	Base  *base      `json:"base,omitempty"`
	Begin *Begin     `json:"begin,omitempty"`
	Touch *touch     `json:"touch,omitempty"`
	Own   []Owned    `json:"own,omitempty"`
	Leave []Owned    `json:"leave,omitempty"`
	Done  *done      `json:"done,omitempty"`
	Want  []string   `json:"wantRestart,omitempty"`
	Again []string   `json:"restarted,omitempty"`
	End   *endRecord `json:"end,omitempty"`
}

// base replaces older records when the journal is shortened.
type base struct {
	Owned   []Owned  `json:"owned"`
	Made    []string `json:"made,omitempty"`
	After   []Prior  `json:"after,omitempty"`
	Given   []Prior  `json:"given,omitempty"`
	Pending []string `json:"pending,omitempty"`
}

// Begin says what starts.
type Begin struct {
	Verb Verb `json:"verb"`
	// To is the entry that a rollback goes back to.
	To int `json:"to,omitempty"`
	// Version of berth.
	Version string `json:"version"`
	// NodeFile is the digest of the node file, kept as content.
	NodeFile string `json:"wish,omitempty"`
	// Made lists directories that were created for the journal itself.
	Made []string `json:"made,omitempty"`
}

// Prior is an object and its state at some moment.
type Prior struct {
	Object provision.Object `json:"object"`
	State  provision.State  `json:"state"`
}

// touch is written before a task changes objects.
type touch struct {
	Task   string  `json:"task"`
	Before []Prior `json:"before"`
}

// done is written when a task's change is whole.
type done struct {
	Task string `json:"task"`
	// After is what the task's objects are now.
	After []Prior `json:"after,omitempty"`
}

// Owned is an object of ours.
type Owned struct {
	Prior
	// Task is the task that wants it.
	Task string `json:"task"`
	// Since is the entry in which it became ours; State is from before that.
	Since int `json:"since"`
	// Restarts lists units that read it.
	Restarts []string `json:"restarts,omitempty"`
}

type endRecord struct {
	Result Result `json:"result"`
	Error  string `json:"error,omitempty"`
}

// Entry is one line of the history.
type Entry struct {
	Number  int       `json:"number"`
	Verb    Verb      `json:"verb"`
	To      int       `json:"to,omitempty"`
	Started time.Time `json:"started"`
	// Ended is zero for one that was interrupted.
	Ended    time.Time `json:"ended,omitzero"`
	Version  string    `json:"version"`
	NodeFile string    `json:"wish,omitempty"`
	Result   Result    `json:"result,omitempty"`
	Error    string    `json:"error,omitempty"`
	// Touched lists objects with their states from before the entry, each once, in the
	// order in which they were touched.
	Touched []Prior `json:"touched,omitempty"`
	// Restarted lists units that were restarted.
	Restarted []string `json:"restarted,omitempty"`

	// after lists what objects were when tasks of this entry were done with them.
	after []Prior
	// left lists objects that were no longer ours at the end of this entry.
	left []provision.Object
}
