package command

import (
	"errors"
	"os/exec"
	"strings"

	"github.com/berthrun/berth/internal/errs"
)

// quoted is how many lines of a tool's output an error quotes.
const quoted = 10

// Error is a call that failed.
type Error struct {
	Tool string
	Args []string
	// Code is the tool's exit status, -1 if it has none.
	Code int
	// Lines are the last ones that it wrote.
	Lines []string
	// Err is how it ended, or why it did not run.
	Err error
	// Kind is one of errs if the tool's output shows it, else nil.
	Kind error
}

// Failed is the error of a call that ended with err, with the last output of its tool.
func Failed(tool string, c Call, lines []string, err error) *Error {
	e := &Error{Tool: tool, Args: c.Args, Code: -1, Lines: lines, Err: err}
	if exit := (*exec.ExitError)(nil); errors.As(err, &exit) {
		e.Code = exit.ExitCode()
	}
	if !c.Guest {
		e.Kind = kind(e)
	}
	return e
}

// Error names the verb that failed, not the whole call: arguments are long, and may contain
// passwords of proxies.
func (e *Error) Error() string {
	text := strings.Join(append([]string{e.Tool}, verbs(e.Args)...), " ") + ": " + e.Err.Error()
	switch len(e.Lines) {
	case 0:
		return text
	case 1:
		return text + ": " + e.Lines[0]
	}
	return text + ":\n  " + strings.Join(e.Lines, "\n  ")
}

// Unwrap makes the cause and the kind known to errors.Is.
func (e *Error) Unwrap() []error {
	if e.Kind == nil {
		return []error{e.Err}
	}
	return []error{e.Err, e.Kind}
}

// Says reports whether the last output of the failed call contains one of the texts.
func Says(err error, texts ...string) bool {
	failed := (*Error)(nil)
	if !errors.As(err, &failed) {
		return false
	}
	all := strings.Join(failed.Lines, "\n")
	for _, text := range texts {
		if strings.Contains(all, text) {
			return true
		}
	}
	return false
}

// verbs are the arguments before the first flag, two at most.
func verbs(args []string) []string {
	for i, arg := range args {
		if strings.HasPrefix(arg, "-") || i == 2 {
			return args[:i]
		}
	}
	return args
}

// kind reads the kind of an error from an engine's output. Engines have exit statuses for
// containers, not for kinds of errors.
func kind(e *Error) error {
	if errors.Is(e.Err, exec.ErrNotFound) {
		return errs.Unsupported
	}
	all := strings.ToLower(strings.Join(e.Lines, "\n"))
	for _, row := range []struct {
		kind  error
		texts []string
	}{
		{errs.Unavailable, []string{"cannot connect to the docker daemon", "is the docker daemon running", "cannot access containerd socket", "unable to connect to podman", "rootless containerd not running"}},
		{errs.Exists, []string{"already in use", "already used", "already exists", "already allocated", "address already", "has been allocated", "is not available in range set"}},
		{errs.Exhausted, []string{"no space left", "too many open files", "disk quota exceeded"}},
		{errs.NotFound, []string{"no such container", "no such object", "no such volume", "no such network", "no such image", "not known", "network not found", "no network found", "daemon: network * not found", `volume *": not found`, "no container with name", "manifest unknown"}},
	} {
		for _, text := range row.texts {
			if holds(all, text) {
				return row.kind
			}
		}
	}
	return nil
}

// holds reports whether text, in which * is anything, is in all.
func holds(all, text string) bool {
	for part := range strings.SplitSeq(text, "*") {
		i := strings.Index(all, part)
		if i < 0 {
			return false
		}
		all = all[i+len(part):]
	}
	return true
}
