package ociruntime

import (
	"fmt"
	"strings"

	"github.com/berthrun/berth/internal/errs"
)

// ProgramError says that everything of a container could be made but that its
// program cannot be executed. Its kind is Invalid.
type ProgramError struct{ text string }

func (e *ProgramError) Error() string { return e.text }

// Unwrap returns the error's kind.
func (e *ProgramError) Unwrap() error { return errs.Invalid }

// cwdOutside is what the init says of a working directory that leads out of the root.
const cwdOutside = "current working directory is outside"

// startFault turns what the init found wrong with the program or its directory
// into a ProgramError, and leaves other errors of a start as they are.
func startFault(err error) error {
	for _, fault := range []string{`init: exec: "`, "init: chdir to cwd", "init: mkdir ", cwdOutside} {
		if err != nil && errs.Kind(err) == nil && strings.Contains(err.Error(), fault) {
			return &ProgramError{err.Error()}
		}
	}
	return err
}

// kindOf gives an error of libcontainer's a kind. Most of them crossed a pipe
// from the init as text, so the text is all there is to tell by.
func kindOf(err error) error {
	if err == nil || errs.Kind(err) != nil {
		return err
	}
	text := err.Error()
	for _, faultOfTheSpec := range []string{
		`exec: "`,      // the program is not there, or cannot be executed
		"chdir to cwd", //
		cwdOutside,
		"unable to find",    // user, group
		"invalid rootfs",    //
		"mkdir /proc/self/", // a mount point that would leave the root
		"namespace path:",   //
		"cannot use unified on cgroup v1",
		"memory limit too low",
		"unable to set memory limit",
		"rejecting memory", // on v2 the same, where the limit is below what is in use
		"numerical result out of range",
		"failed to fulfil mount request",
		"is not in a separate kernel namespace", // a sysctl of the host's
		"not a directory",                       // a mount or a working directory on a file
		"file name too long",
		"too many levels of symbolic links",     // a mount point that leads to itself
		"cannot be mounted because",             // it is at /proc, or in it
		"must be mounted on ordinary directory", // the image has something else at /proc or /sys
		"reopening /dev/null",                   // a mount or a device hides it
		"error creating seccomp syscall",
		"seccomp agent",
	} {
		if strings.Contains(text, faultOfTheSpec) {
			return fmt.Errorf("%w: %w", err, errs.Invalid)
		}
	}
	// A limit.
	if strings.Contains(text, "failed to write \"") && (strings.Contains(text, ": invalid argument") || strings.Contains(text, ": argument list too long")) {
		return fmt.Errorf("%w: %w", err, errs.Invalid)
	}
	if strings.Contains(text, "resource temporarily unavailable") || strings.Contains(text, "too many open files") ||
		strings.Contains(text, "no space left on device") {
		return fmt.Errorf("%w: %w", err, errs.Exhausted)
	}
	return err
}
