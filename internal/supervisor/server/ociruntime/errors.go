package ociruntime

import (
	"fmt"

	"github.com/opencontainers/runc/libcontainer/configs"
	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/errs/ocierror"
)

// ProgramError is the error of a container that could not be created only because its program
// cannot be executed. Its kind is Invalid.
type ProgramError struct{ text string }

func (e *ProgramError) Error() string { return e.text }

// Unwrap returns the error's kind.
func (e *ProgramError) Unwrap() error { return errs.Invalid }

// startFault turns an error of the init about the program or its directory into a ProgramError, and
// leaves other errors of a start as they are.
func startFault(err error) error {
	if err != nil && errs.Kind(err) == nil && !isOfHook(err) && ocierror.OfProgram(err) {
		return &ProgramError{err.Error()}
	}
	return err
}

// isOfHook reports whether a hook has failed. The text of such an error has the hook's output.
func isOfHook(err error) bool {
	_, ok := ocierror.Hook(err)
	return ok
}

// withHook adds the program of the hook of createContainer that err is about: the init, which runs these hooks,
// reports stage and number only.
func withHook(err error, all *specs.Hooks) error {
	if err == nil || errs.Kind(err) != nil || all == nil {
		return err
	}
	failed, ok := ocierror.Hook(err)
	if !ok {
		return err
	}
	if i := failed.Index; failed.Stage == string(configs.CreateContainer) && i >= 0 && i < len(all.CreateContainer) {
		err = fmt.Errorf("%s: %w", all.CreateContainer[i].Path, err)
	}
	return fmt.Errorf("%w: %w", err, errs.Unavailable)
}

// Classify gives an error of an OCI runtime that is a program a kind and a cause, by its text, and makes it
// a ProgramError where that is at fault. See classify.
func Classify(err error, rootfs string) error { return classify(startFault(err), rootfs) }

// classify gives an error of libcontainer a kind and a cause. Most of these errors came as
// text from the init over a pipe, so classify can only read the text. rootfs is the
// container's root filesystem on the host, or "".
func classify(err error, rootfs string) error {
	if err == nil || errs.Kind(err) != nil {
		return err
	}
	if isOfHook(err) {
		return fmt.Errorf("%w: %w", err, errs.Unavailable)
	}
	if kind := ocierror.Kind(err); kind != nil {
		err = fmt.Errorf("%w: %w", err, kind)
	}
	return withCause(err, rootfs)
}

// withCause turns an error of libcontainer's into an errs.Fault where its text names a
// part of the container. See classify for rootfs.
func withCause(err error, rootfs string) error {
	if cause, at := ocierror.Cause(err, rootfs); cause != "" {
		return &errs.Fault{Cause: cause, Path: at, Err: err}
	}
	return err
}
