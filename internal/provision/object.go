package provision

import (
	"context"
	"io"
	"time"
)

// Kinds of objects that other packages than tasks name. Their names are part of the journal's
// format.
const (
	KindFile     = "file"      // a regular file or a link
	KindDir      = "dir"       // a directory, whatever lies in it
	KindData     = "data"      // a tree that a program creates by itself
	KindJSONFile = "json-file" // a file whose keys several tasks own
	KindJSONKey  = "json-key"  // one key of such a file, named PATH#KEY
	KindPackage  = "package"   // an installed package
	KindUnit     = "unit"      // a unit of systemd
	// KindKubelet is whether the kubelet runs. Each task that stops the pods of a former runtime stops
	// it before.
	KindKubelet = "running-kubelet"
)

// AttrValue is the attribute of a JSONKey's state that has its value.
const AttrValue = "value"

// Object names one thing on a machine that a task owns. It is the key of the
// journal, and stays readable by later versions.
type Object struct {
	// Kind is one of the kinds of package tasks: "file", "unit", "package", ….
	Kind string `json:"kind"`
	// Name is the path, unit name, package name, key, … within the kind.
	Name string `json:"name"`
}

// String is "kind name".
func (o Object) String() string { return o.Kind + " " + o.Name }

// State is an object's state at one moment, with all that is needed to restore it.
type State struct {
	// Exists is false for what is not there; all else is empty then.
	Exists bool `json:"exists"`
	// Attrs are the kind's own attributes: for a file type, mode, uid, gid, target;
	// for a unit enabled and active; for a package its version.
	Attrs map[string]string `json:"attrs,omitempty"`
	// Digest is the content of a regular file, "sha256:…"; the journal keeps it.
	Digest string `json:"digest,omitempty"`
}

// Kind reads and restores objects of one kind.
type Kind interface {
	// Read returns the object's state. What is not there is no error.
	Read(ctx context.Context, host Host, name string) (State, error)
	// Restore makes the object what state says; content opens state.Digest. It is repeated after a
	// crash. If the machine cannot restore it (a module in use), Restore leaves it and returns an
	// error that wraps errs.State, and errs.NotFound if what it needs is nowhere any more.
	Restore(ctx context.Context, host Host, name string, state State, content Content) error
}

// TimedKind is a kind whose objects need more or less time than most to be restored.
type TimedKind interface {
	Kind
	// Deadline is how long an object may take to be released or restored, each.
	Deadline() time.Duration
}

// Content opens what a State's Digest stands for.
type Content func() (io.ReadCloser, error)

// Holder is a kind whose objects have content.
type Holder interface {
	Kind
	// Content opens what Read's Digest stands for.
	Content(host Host, name string) (io.ReadCloser, error)
}

// Placed is a kind whose objects lie in directories. Apply creates missing directories, and the
// reconciler records them, so that they are removed with the last object in them.
type Placed interface {
	Kind
	// Path is where the object lies.
	Path(name string) string
}

// Joint is a kind whose objects may fit only together, as packages do that need each other's version.
type Joint interface {
	Kind
	// RestoreJointly restores what exists in states, by name, in one step or not at all. It is called for objects that Restore
	// cannot restore one by one. Errors are those of Restore.
	RestoreJointly(ctx context.Context, host Host, states map[string]State) error
}

// Releaser is a kind whose objects hold others: a running unit holds its binaries. To undo, the
// reconciler releases them all first, then restores all other objects, and calls their Restore
// last.
type Releaser interface {
	Kind
	// Release stops and disables what does not run, or is not enabled, in state. It starts nothing.
	Release(ctx context.Context, host Host, name string, state State) error
}
