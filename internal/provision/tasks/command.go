package tasks

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"regexp"
	"strings"
	"time"

	"github.com/opencontainers/go-digest"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/provision"
)

// Command is a program of the user's own (a hook). It runs when Unless fails, or, without Unless,
// once for each change of its own fields. Only Undo undoes what it does.
type Command struct {
	M    provision.Meta
	Name string
	// Args: program and arguments, no shell.
	Args []string
	Env  []string
	Dir  string
	// Stdin is given to the program.
	Stdin string
	// Unless is a program that only reads; status 0 means that nothing is to be done.
	Unless []string
	// Undo runs when the command is no longer wanted, and at reset.
	Undo []string
}

// ID is "command NAME".
func (c Command) ID() string { return "command " + c.Name }

// Meta returns M.
func (c Command) Meta() provision.Meta { return c.M }

// Deadline allows for a slow program.
func (Command) Deadline() time.Duration { return 10 * time.Minute }

// commandDir holds a file for each command that has run.
const commandDir = "/var/lib/berth/node/commands/"

// mark records which form of a command has run, and how to undo it.
type mark struct {
	Digest string   `json:"digest"`
	Undo   []string `json:"undo,omitempty"`
	Env    []string `json:"env,omitempty"`
	Dir    string   `json:"dir,omitempty"`
}

// Objects is the command.
func (c Command) Objects(context.Context, provision.Host) ([]provision.Object, error) {
	if !regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]*$`).MatchString(c.Name) || len(c.Args) == 0 {
		return nil, fmt.Errorf("command %q with %d arguments: %w", c.Name, len(c.Args), errs.Invalid)
	}
	return []provision.Object{{Kind: kindCommand, Name: c.Name}}, nil
}

// Check runs Unless, or checks whether this form of the command has run.
func (c Command) Check(ctx context.Context, host provision.Host) (provision.Change, error) {
	if !host.Live() {
		return provision.Change{}, nil
	}
	d := provision.Diff{
		Object: provision.Object{Kind: kindCommand, Name: c.Name}, Action: provision.Run,
		Fields: []provision.Field{{Name: "command", To: strings.Join(c.Args, " ")}},
	}
	if len(c.Unless) > 0 {
		if _, err := host.Run(ctx, c.program(c.Unless)); err == nil || ctx.Err() != nil {
			return provision.Change{}, ctx.Err()
		}
		d.Reason = strings.Join(c.Unless, " ") + " says no"
		return change(d), nil
	}
	last, err := readMark(host, c.Name)
	switch {
	case errors.Is(err, errs.NotFound):
		d.Reason = "has not run"
	case err != nil:
		return provision.Change{}, err
	case last.Digest == c.digest():
		return provision.Change{}, nil
	default:
		d.Reason = "has changed since it ran"
	}
	return change(d), nil
}

// Apply runs the command and records that it ran.
func (c Command) Apply(ctx context.Context, host provision.Host) error {
	if !host.Live() {
		return nil
	}
	cmd := c.program(c.Args)
	if c.Stdin != "" {
		cmd.Stdin = strings.NewReader(c.Stdin)
	}
	if _, err := host.Run(ctx, cmd); err != nil {
		return fmt.Errorf("cannot run %s: %w", c.Name, err)
	}
	data, err := json.Marshal(mark{Digest: c.digest(), Undo: c.Undo, Env: c.Env, Dir: c.Dir})
	if err != nil {
		return err
	}
	if err := makeParents(host, commandDir+c.Name); err != nil {
		return err
	}
	return host.Files().Write(commandDir+c.Name, bytes.NewReader(data), provision.Attr{Mode: 0o600})
}

func (c Command) program(args []string) provision.Command {
	return provision.Command{Args: args, Env: c.Env, Dir: c.Dir}
}

// digest identifies a form of the command.
func (c Command) digest() string {
	data, err := json.Marshal([]any{c.Args, c.Env, c.Dir, c.Stdin})
	if err != nil {
		return "" // strings always marshal
	}
	return digest.FromBytes(data).String()
}

func readMark(host provision.Host, name string) (mark, error) {
	var m mark
	r, err := host.Files().Open(commandDir + name)
	if err != nil {
		return m, err
	}
	defer r.Close()
	data, err := io.ReadAll(r)
	if err != nil {
		return m, fmt.Errorf("cannot read the record of command %s: %w", name, err)
	}
	if err := json.Unmarshal(data, &m); err != nil {
		return mark{}, nil // cut short: counts as not run
	}
	return m, nil
}

// commandKind is a command that has run.
type commandKind struct{}

// Read returns which form has run.
func (commandKind) Read(_ context.Context, host provision.Host, name string) (provision.State, error) {
	m, err := readMark(host, name)
	if err != nil {
		return provision.State{}, errs.IgnoreNotFound(err)
	}
	return provision.State{Exists: true, Attrs: map[string]string{"digest": m.Digest}}, nil
}

// Restore runs Undo of a command that had not run. It does not run an earlier form again, so it
// removes the record, too.
func (commandKind) Restore(ctx context.Context, host provision.Host, name string, state provision.State, _ provision.Content) error {
	m, err := readMark(host, name)
	if err != nil {
		return errs.IgnoreNotFound(err)
	}
	if state.Exists && m.Digest == state.Attrs["digest"] {
		return nil
	}
	if len(m.Undo) > 0 && host.Live() {
		if _, err := host.Run(ctx, provision.Command{Args: m.Undo, Env: m.Env, Dir: m.Dir}); err != nil {
			return fmt.Errorf("cannot undo %s: %w", name, err)
		}
	}
	return host.Files().Remove(commandDir + name)
}
