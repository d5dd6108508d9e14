// Package ocierror reads the texts of errors of libcontainer and of OCI runtimes. The init of a container sends its
// errors over a pipe as text, and a Docker Engine passes on what its OCI runtime prints.
package ocierror

import (
	"path"
	"regexp"
	"strconv"
	"strings"

	"github.com/berthrun/berth/internal/errs"
)

// cwdOutside is in the init's error for a working directory that leads out of the root.
const cwdOutside = "current working directory is outside"

// crunNoProgram is in crun's error for a program that it does not find.
const crunNoProgram = "executable file `"

// runcNoProgram is in the error of runc before 1.2 for a program that cannot be executed.
const runcNoProgram = `unable to start container process: exec: "`

// These are in gVisor's errors for a program that is not in PATH, and for one that cannot be executed.
const (
	gvisorNoProgram = `error finding executable "`
	gvisorNoLoad    = "creating process: failed to load "
	gvisorNoExec    = "in sandbox: failed to load " // that of a command
)

// OfProgram reports whether the init could not execute the program, or not enter its directory.
func OfProgram(err error) bool {
	text := err.Error()
	for _, fault := range []string{`init: exec: "`, "init: chdir to cwd", "init: mkdir ", cwdOutside, crunNoProgram, runcNoProgram, gvisorNoProgram, gvisorNoLoad, gvisorNoExec} {
		if strings.Contains(text, fault) {
			return true
		}
	}
	return false
}

// Kind returns the kind of an error of libcontainer by its text, nil when the host is at fault.
func Kind(err error) error {
	text := err.Error()
	for _, faultOfTheSpec := range []string{
		`exec: "`,      // the program is not there, or cannot be executed
		"chdir to cwd", //
		cwdOutside,
		crunNoProgram,
		gvisorNoProgram, gvisorNoLoad, gvisorNoExec,
		"unable to find",    // user, group
		"invalid rootfs",    //
		"mkdir /proc/self/", // a mount point that would leave the root
		"namespace path:",   //
		"cannot use unified on cgroup v1",
		"memory limit too low",
		"unable to set memory limit",
		"rejecting memory", // on v2 the same, where the limit is below what is in use
		crunMemory,
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
	if crunLimit.MatchString(text) {
		return errs.Invalid
	}
	if strings.Contains(text, "failed to write \"") && (strings.Contains(text, ": invalid argument") || strings.Contains(text, ": argument list too long")) {
		return errs.Invalid
	}
	if strings.Contains(text, "resource temporarily unavailable") || strings.Contains(text, "too many open files") ||
		strings.Contains(text, "no space left on device") {
		return errs.Exhausted
	}
	return nil
}

// FailedHook is the hook that an error is about, as far as its text says which.
type FailedHook struct {
	// Stage is "" where the text has none: that of runc before 1.2 in a create, and that of crun.
	Stage string
	// Index is that in the list of the stage, -1 where the text has none.
	Index int
	// Program is the path of the program, "" where the text has none.
	Program string
}

// These find a hook that has failed in texts of libcontainer and of crun, also behind the handler, program and stage that
// package ocicommand writes before those of a program. What a request may contain is in quotes there. The last one
// finds the text of an init that has ended before its program.
var (
	hook      = regexp.MustCompile(ofHandler + `[^"]*?error running (?:([A-Za-z]+) )?hook #([0-9]+): `)
	crunHook  = regexp.MustCompile(ofHandler + "[^\"`]*?error executing hook `([^`]+)` \\(exit code: ")
	startHook = regexp.MustCompile(`^[^"]*a (startContainer) hook has failed`)
)

// ofHandler is the beginning of an error of a handler, or nothing.
const ofHandler = `^(?:handler "[^"]*": )?`

// Hook returns the hook that an error of libcontainer or of an OCI runtime is about. What follows in the text is the hook's
// own.
func Hook(err error) (failed FailedHook, ok bool) {
	text := err.Error()
	if found := hook.FindStringSubmatch(text); found != nil {
		index, convErr := strconv.Atoi(found[2])
		return FailedHook{Stage: found[1], Index: index}, convErr == nil
	}
	if found := crunHook.FindStringSubmatch(text); found != nil {
		return FailedHook{Index: -1, Program: found[1]}, true
	}
	if found := startHook.FindStringSubmatch(text); found != nil {
		return FailedHook{Stage: found[1], Index: -1}, true
	}
	return FailedHook{}, false
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

// crunMemory is in crun's error for a limit of memory below what is in use, with cgroup v2.
const crunMemory = "cannot set the memory limit lower than its current usage"

// crunLimit finds the file of a cgroup in crun's error for a limit that the kernel refuses.
var crunLimit = regexp.MustCompile("write to `([a-z0-9_]+\\.[A-Za-z0-9_.]+)`: " +
	"(?:Invalid argument|Argument list too long|Numerical result out of range|Device or resource busy)")

// Cause returns the cause and the path of an error of libcontainer by its text, "" for none. rootfs
// is the container's root filesystem on the host, or "".
func Cause(err error, rootfs string) (cause errs.Cause, at string) {
	text := err.Error()
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
	if found := crunLimit.FindStringSubmatch(text); found != nil {
		return errs.CauseLimit, found[1]
	}
	for _, memory := range []string{"memory limit too low", "unable to set memory limit", "rejecting memory", crunMemory} {
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
