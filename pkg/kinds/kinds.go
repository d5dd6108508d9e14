// Package kinds has the kinds of the errors that the other packages of berth's Go API return. Ask for a kind with
// errors.Is. The text of an error is for people, and may change.
package kinds

import "github.com/berthrun/berth/internal/errs"

// The kinds of an error.
//
//nolint:gochecknoglobals // sentinels, as those of package errs
var (
	// NotFound: the object does not exist.
	NotFound = errs.NotFound
	// Exists: another object has the name.
	Exists = errs.Exists
	// Invalid: what the caller gave is wrong, such as a field of a file.
	Invalid = errs.Invalid
	// State: the object is in a state that does not allow the operation.
	State = errs.State
	// Unavailable: another attempt may succeed later, such as when another process has a lock.
	Unavailable = errs.Unavailable
	// Unsupported: this host or this version cannot do it.
	Unsupported = errs.Unsupported
	// Exhausted: the host has no room, memory, descriptors or addresses left for it.
	Exhausted = errs.Exhausted
	// Deadline: a time limit has passed.
	Deadline = errs.Deadline
	// Denied: a registry refuses the credentials, or demands some.
	Denied = errs.Denied
)
