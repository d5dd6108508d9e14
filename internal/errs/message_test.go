package errs

import (
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
)

// remote is an error of the daemon as a client gets it. Its text contains the kind's name.
type remote struct{ text string }

func (r remote) Error() string { return r.text }
func (remote) Unwrap() error   { return State }

func TestMessage(t *testing.T) {
	refused := fmt.Errorf("-f is missing: name the cluster file: %w", Invalid)
	for _, c := range []struct {
		err  error
		want string
	}{
		{refused, "-f is missing: name the cluster file"},
		{fmt.Errorf("cannot apply: %w", refused), "cannot apply: -f is missing: name the cluster file"},
		{errors.Join(refused, errors.New("other")), "-f is missing: name the cluster file\nother"},
		{fmt.Errorf("%w\n  to fix it: this", refused), "-f is missing: name the cluster file\n  to fix it: this"},
		{fmt.Errorf("another berth changes the cluster at this moment: %w", State), "another berth changes the cluster at this moment"},
		{fmt.Errorf("cannot connect to unix:///a: %w: %w", Unavailable, errors.New("there is no such socket")), "cannot connect to unix:///a: there is no such socket"},
		{fmt.Errorf("container is paused: %w", State), "container is paused"},
		{remote{"the container x does not run: wrong state"}, "the container x does not run"},
		{fmt.Errorf("cannot stop: %w", remote{"the container x does not run: wrong state"}), "cannot stop: the container x does not run"},
		{fmt.Errorf("cannot exec: it is ending: %w (no process)", State), "cannot exec: it is ending (no process)"},
		// The kind's name stays if the error has no other reason, or if another program wrote it.
		{fmt.Errorf("cluster file a.yaml: %w", NotFound), "cluster file a.yaml: not found"},
		{errors.New("the tool says of the volume that it is: not found"), "the tool says of the volume that it is: not found"},
		{fmt.Errorf("a program that says much about this: %w", errors.New("x: invalid argument")), "a program that says much about this: x: invalid argument"},
		{NotFound, "not found"},
		{nil, ""},
	} {
		if got := Message(c.err); got != c.want {
			t.Errorf("%q, want %q", got, c.want)
		}
	}
	for _, kind := range Kinds() {
		if got := Message(fmt.Errorf("this is said in full: %w", kind)); got != "this is said in full" {
			t.Errorf("%v: %q", kind, got)
		}
	}
}

// TestLogAttr: a log has errors as people read them, and other values as they are.
func TestLogAttr(t *testing.T) {
	var lines strings.Builder
	log := slog.New(slog.NewTextHandler(&lines, &slog.HandlerOptions{ReplaceAttr: LogAttr}))
	log.Warn("failed", "error", fmt.Errorf("the pool does not answer now: %w", Unavailable), "n", 3, "none", error(nil))
	if got := lines.String(); !strings.HasSuffix(got, `msg=failed error="the pool does not answer now" n=3 none=<nil>`+"\n") {
		t.Errorf("logged %s", got)
	}
}
