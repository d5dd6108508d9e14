package ociruntime

import (
	"fmt"
	"path"
	"regexp"
	"strconv"
	"strings"

	"github.com/berthrun/berth/internal/errs"
)

// ProgramError is the error of a container that could not be created only because its program
// cannot be executed. Its kind is Invalid.
type ProgramError struct{ text string }

func (e *ProgramError) Error() string { return e.text }

// Unwrap returns the error's kind.
func (e *ProgramError) Unwrap() error { return errs.Invalid }

// cwdOutside is in the init's error for a working directory that leads out of the root.
const cwdOutside = "current working directory is outside"

// startFault turns an error of the init about the program or its directory into a ProgramError, and
// leaves other errors of a start as they are.
func startFault(err error) error {
	for _, fault := range []string{`init: exec: "`, "init: chdir to cwd", "init: mkdir ", cwdOutside} {
		if err != nil && errs.Kind(err) == nil && strings.Contains(err.Error(), fault) {
			return &ProgramError{err.Error()}
		}
	}
	return err
}

// classify gives an error of libcontainer a kind and a cause. Most of these errors came as
// text from the init over a pipe, so classify can only read the text. rootfs is the
// container's root filesystem on the host, or "".
func classify(err error, rootfs string) error {
	if err == nil || errs.Kind(err) != nil {
		return err
	}
	if kind := kindOf(err.Error()); kind != nil {
		err = fmt.Errorf("%w: %w", err, kind)
	}
	return withCause(err, rootfs)
}

// kindOf returns the kind of an error of libcontainer by its text, nil when the host is at fault.
func kindOf(text string) error {
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
			return errs.Invalid
		}
	}
	// A limit.
	if strings.Contains(text, "failed to write \"") && (strings.Contains(text, ": invalid argument") || strings.Contains(text, ": argument list too long")) {
		return errs.Invalid
	}
	if strings.Contains(text, "resource temporarily unavailable") || strings.Contains(text, "too many open files") ||
		strings.Contains(text, "no space left on device") {
		return errs.Exhausted
	}
	return nil
}

// withCause turns an error of libcontainer's into an errs.Fault where its text names a
// part of the container. See classify for rootfs.
func withCause(err error, rootfs string) error {
	if cause, at := causeOf(err.Error(), rootfs); cause != "" {
		return &errs.Fault{Cause: cause, Path: at, Err: err}
	}
	return err
}

// quoted is a string as %q prints it.
const quoted = `"(?:[^"\\]|\\.)*"`

// These find the paths in texts of libcontainer and of its package cgroups.
var (
	mountPoint   = regexp.MustCompile(`error mounting ` + quoted + ` to rootfs at (` + quoted + `)`)
	deviceParent = regexp.MustCompile(`mkdir parent of device inode (` + quoted + `)`)
	deviceNode   = regexp.MustCompile(`(?:create device inode|mknodat) (.+?): `)
	limitFile    = regexp.MustCompile(`failed to write ` + quoted + `: write (.+?): `)
)

// causeOf returns the cause and the path of an error of libcontainer by its text, "" for none.
func causeOf(text, rootfs string) (cause errs.Cause, at string) {
	if strings.Contains(text, "/dev/null inside container") {
		return errs.CauseDevNull, "/dev/null"
	}
	if found := mountPoint.FindStringSubmatch(text); found != nil {
		return errs.CauseMount, unquote(found[1])
	}
	if strings.Contains(text, "seccomp") {
		return errs.CauseSeccomp, ""
	}
	if _, after, found := strings.Cut(text, "creating device nodes"); found {
		return errs.CauseDevice, devicePlace(after, rootfs)
	}
	if found := limitFile.FindStringSubmatch(text); found != nil {
		return errs.CauseLimit, path.Base(found[1])
	}
	for _, memory := range []string{"memory limit too low", "unable to set memory limit", "rejecting memory"} {
		if strings.Contains(text, memory) {
			return errs.CauseLimit, "memory.max"
		}
	}
	return "", ""
}

// devicePlace returns the path in the container of the device node that a text names, "" for none.
func devicePlace(text, rootfs string) string {
	if found := deviceParent.FindStringSubmatch(text); found != nil {
		return unquote(found[1])
	}
	if found := deviceNode.FindStringSubmatch(text); found != nil {
		return strings.TrimPrefix(found[1], strings.TrimSuffix(rootfs, "/"))
	}
	return ""
}

// unquote undoes %q, where it can.
func unquote(text string) string {
	if plain, err := strconv.Unquote(text); err == nil {
		return plain
	}
	return text
}
