// Package errs has the kinds of error that berth distinguishes, and the causes that an
// error about a container may carry (Fault).
//
// A kind is decided where an error is made, by wrapping one of the sentinels:
//
//	fmt.Errorf("sandbox %q: %w", id, errs.NotFound)
//
// and is read with errors.Is. One table in cri/interceptors.go turns kinds into
// gRPC codes; nothing else may know gRPC codes.
package errs

import (
	"errors"
	"fmt"
	"io/fs"
	"syscall"
)

// The kinds. An error that wraps none of them is internal: berth or the host is at fault,
// not the caller.
var (
	// NotFound: the named object does not exist.
	NotFound = errors.New("not found")
	// Exists: the name is taken by an object that differs from the one asked for.
	Exists = errors.New("already exists")
	// Invalid: the request is wrong and will be wrong again; the message names the field.
	Invalid = errors.New("invalid argument")
	// State: the object exists, but not in a state that allows the call.
	State = errors.New("wrong state")
	// Unavailable: a part that the call needs is not there now; a retry may succeed.
	Unavailable = errors.New("unavailable")
	// Unsupported: berth or this host cannot do what was asked.
	Unsupported = errors.New("not supported")
	// Exhausted: a limit (descriptors, addresses, disk, processes) is reached.
	Exhausted = errors.New("resource exhausted")
	// Deadline: the caller's deadline has passed; the work may continue.
	Deadline = errors.New("deadline exceeded")
	// Denied: another party, such as a registry, refuses the credentials or demands some.
	Denied = errors.New("access denied")
)

// Kinds lists every kind, for tests that walk all of them.
func Kinds() []error {
	return []error{NotFound, Exists, Invalid, State, Unavailable, Unsupported, Exhausted, Deadline, Denied}
}

// Kind returns the first kind that err wraps, or nil if it wraps none. A host that
// has run out of disk or descriptors is Exhausted, whatever was being done.
func Kind(err error) error {
	for _, kind := range Kinds() {
		if errors.Is(err, kind) {
			return kind
		}
	}
	for _, full := range []error{syscall.ENOSPC, syscall.EDQUOT, syscall.EMFILE, syscall.ENFILE} {
		if errors.Is(err, full) {
			return Exhausted
		}
	}
	return nil
}

// IgnoreNotFound returns nil when err is a NotFound, and err otherwise. Removals use it:
// an absent object counts as removed.
func IgnoreNotFound(err error) error {
	if errors.Is(err, NotFound) {
		return nil
	}
	return err
}

// IgnoreNotExist returns nil when err says that a file does not exist, and err otherwise.
// An absent file counts as removed.
func IgnoreNotExist(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// OfDisk gives an error of a full disk its kind, Exhausted. Others stay as they are.
func OfDisk(err error) error {
	if errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) {
		return fmt.Errorf("%w: %w", err, Exhausted)
	}
	return err
}

// OfFork gives the error of a fork its kind, Exhausted, when the host or a cgroup has no room for another
// process. Others stay as they are.
func OfFork(err error) error {
	if errors.Is(err, syscall.EAGAIN) {
		return fmt.Errorf("%w: %w", err, Exhausted)
	}
	return err
}
