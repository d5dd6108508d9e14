package provision

import "slices"

// Action is what happens to an object.
type Action string

// The actions.
const (
	Create Action = "create" // the object is not there
	Modify Action = "modify" // it is there and differs
	Delete Action = "delete" // it is there and should not be
	Fetch  Action = "fetch"  // an asset must be fetched before its objects are known
	Run    Action = "run"    // a command runs
)

// Change is what a task would do. The zero value is "nothing".
type Change struct {
	// Diffs has one entry for each object that differs, in the order of Objects.
	Diffs []Diff
	// Disrupts says what the change itself does to running pods ("stops containerd"); empty when
	// they keep running. Applying it needs the user's consent.
	Disrupts string
}

// Empty reports whether there is nothing to do.
func (c Change) Empty() bool { return len(c.Diffs) == 0 }

// Diff is the difference of one object.
type Diff struct {
	Object Object `json:"object"`
	Action Action `json:"action"`
	// Reason says why, in a few words: "is not there", "content differs", "stopped".
	Reason string `json:"reason"`
	// Fields lists what differs besides text: mode, owner, version, value.
	Fields []Field `json:"fields,omitempty"`
	// Text is a unified diff, for text files that hold no secrets.
	Text string `json:"text,omitempty"`
}

// Field is one attribute that differs. From is empty for what is not there.
type Field struct {
	Name string `json:"name"`
	From string `json:"from"`
	To   string `json:"to"`
}

// Stops reports whether the change stops a running unit.
func (d Diff) Stops() bool {
	return d.Action == Delete || slices.ContainsFunc(d.Fields, func(f Field) bool { return f.Name == "active" && f.To != "active" })
}
