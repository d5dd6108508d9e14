package tasks

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/provision"
)

// Running is what a unit should do.
type Running string

// The states wanted of a unit.
const (
	// Leave keeps the unit as it is, for units that something else starts.
	Leave Running = ""
	// Started: the unit is active. Apply starts it if it is not, and restarts it when a task
	// requests that (Meta.Restarts) or its own files have changed.
	Started Running = "started"
	// Stopped: the unit is inactive.
	Stopped Running = "stopped"
)

// Unit is a systemd unit: its file and drop-ins, whether it starts at boot, and
// whether it runs now. A change of its files reloads systemd once, and only then.
type Unit struct {
	M provision.Meta
	// Name is the full name: "containerd.service".
	Name string
	// Content is the unit file, written to /etc/systemd/system/NAME; empty leaves the
	// unit file to others (a package).
	Content string
	// DropIns maps file names ("10-berth.conf") to content, below
	// /etc/systemd/system/NAME.d.
	DropIns map[string]string
	// Enable: nil leaves it as it is.
	Enable *bool
	// Running is for now; Leave when empty.
	Running Running
	// RestartDisrupts says what a restart does to running pods ("without live-restore dockerd stops
	// all containers"); empty when they keep running.
	RestartDisrupts string
	// ReloadToRestart reloads the running unit (ExecReload) instead of a restart: the unit picks up
	// new files, and a new binary, by itself.
	ReloadToRestart bool
	// StopDisrupts is the same for a stop.
	StopDisrupts string
	// Made is a program that only reads, and fails when the unit's work is gone (rules that
	// somebody flushed): the unit is restarted then. Nil: an active unit needs no check.
	Made []string
	// Optional: a unit that systemd does not know is not an error (stop a unit that may exist).
	Optional bool
}

// ID is "unit NAME".
func (u Unit) ID() string { return "unit " + u.Name }

// Meta returns M.
func (u Unit) Meta() provision.Meta { return u.M }

// Deadline allows for the time that a unit needs until it reports ready.
func (Unit) Deadline() time.Duration { return 10 * time.Minute }

// Unit is the name.
func (u Unit) Unit() string { return u.Name }

// Disruption is RestartDisrupts.
func (u Unit) Disruption() string { return u.RestartDisrupts }

const unitDir = "/etc/systemd/system/"

// Objects are its files, then the unit itself.
func (u Unit) Objects(context.Context, provision.Host) ([]provision.Object, error) {
	if u.Name == "" || strings.ContainsAny(u.Name, "/\n\x00 ") || !strings.Contains(u.Name, ".") {
		return nil, fmt.Errorf("unit name %q: %w", u.Name, errs.Invalid)
	}
	var list []provision.Object
	for _, w := range u.files() {
		if err := checkPath(w.path); err != nil {
			return nil, err
		}
		list = append(list, provision.Object{Kind: kindFile, Name: w.path})
	}
	return append(list, u.object()), nil
}

func (u Unit) object() provision.Object { return provision.Object{Kind: kindUnit, Name: u.Name} }

func (u Unit) files() []desiredFile {
	var list []desiredFile
	if u.Content != "" {
		list = append(list, desiredFile{path: unitDir + u.Name, content: u.Content, mode: defaultFileMode})
	}
	for _, name := range slices.Sorted(maps.Keys(u.DropIns)) {
		list = append(list, desiredFile{path: unitDir + u.Name + ".d/" + name, content: u.DropIns[name], mode: defaultFileMode})
	}
	return list
}

// Check compares files, whether it is enabled, and whether it runs.
func (u Unit) Check(ctx context.Context, host provision.Host) (provision.Change, error) {
	var c provision.Change
	for _, w := range u.files() {
		d, err := w.check(host)
		if err != nil {
			return c, err
		}
		if d.Action != "" {
			c.Diffs = append(c.Diffs, d)
		}
	}
	state, err := host.Units().State(ctx, u.Name)
	if err != nil {
		return c, err
	}
	d := u.stateDiff(state, host.Live())
	if d.Action == "" && u.lost(ctx, host, state) {
		d.Action, d.Reason = provision.Modify, "runs, and what it made is gone"
	}
	if d.Action != "" {
		c.Diffs = append(c.Diffs, d)
		if u.Running == Stopped && isActive(state) {
			c.Disrupts = u.StopDisrupts
		}
	}
	return c, nil
}

// stateDiff compares the state that systemd reports.
func (u Unit) stateDiff(state provision.UnitState, live bool) provision.Diff {
	d := provision.Diff{Object: u.object()}
	unknown := state.Load == "not-found" || state.Load == "" && state.Enabled == ""
	if unknown && u.Content == "" && (u.Optional || u.Running != Started && (u.Enable == nil || !*u.Enable)) {
		return d
	}
	if u.masked(state) {
		d.Fields = append(d.Fields, provision.Field{Name: "masked", From: "masked", To: "not masked"})
	} else if u.Enable != nil && !enabledAs(state.Enabled, *u.Enable) {
		to := "disabled"
		if *u.Enable {
			to = "enabled"
		}
		d.Fields = append(d.Fields, provision.Field{Name: "enabled", From: state.Enabled, To: to})
		d.Reason = "is not " + to
	}
	if live && u.Running == Started && !isActive(state) {
		d.Fields = append(d.Fields, provision.Field{Name: "active", From: state.Active, To: "active"})
		d.Reason = "does not run"
	}
	if live && u.Running == Stopped && (isActive(state) || state.Active == "activating") {
		d.Fields = append(d.Fields, provision.Field{Name: "active", From: state.Active, To: "inactive"})
		d.Reason = "runs"
	}
	if live && state.NeedReload {
		d.Fields = append(d.Fields, provision.Field{Name: "loaded", From: "older files", To: "the files on disk"})
		d.Reason = "systemd has not read its files"
	}
	if u.masked(state) { // the reason of the others
		d.Reason = "is masked"
	}
	switch {
	case len(d.Fields) == 0:
	case unknown:
		d.Action = provision.Create
	default:
		d.Action = provision.Modify
	}
	return d
}

// masked reports whether a mask forbids the wanted state. If the unit file is ours, a mask has its
// path, and the write replaces it.
func (u Unit) masked(state provision.UnitState) bool {
	return state.Load == "masked" && u.Content == "" && (u.Running == Started || u.Enable != nil && *u.Enable)
}

// lost reports whether what an active unit has made is gone.
func (u Unit) lost(ctx context.Context, host provision.Host, state provision.UnitState) bool {
	if u.Made == nil || u.Running != Started || !host.Live() || !isActive(state) {
		return false
	}
	_, err := host.Run(ctx, provision.Command{Args: u.Made})
	return err != nil
}

// Apply writes the files, enables or disables, reloads systemd if it must, and starts
// or stops.
func (u Unit) Apply(ctx context.Context, host provision.Host) error {
	written := false
	for _, w := range u.files() {
		d, err := w.check(host)
		if err != nil {
			return err
		}
		if d.Action == "" {
			continue
		}
		if err := w.write(host); err != nil {
			return err
		}
		written = true
	}
	state, err := host.Units().State(ctx, u.Name)
	if err != nil {
		return err
	}
	if u.Optional && !written && state.Load == "not-found" {
		return nil
	}
	if u.masked(state) {
		if state, err = u.unmask(ctx, host); err != nil {
			return err
		}
	}
	switched, err := u.enable(ctx, host, state)
	if err != nil {
		return err
	}
	// Reload after enabling, too: systemd starts at boot, and shows, what it has read.
	if host.Live() && (written || switched || state.NeedReload) {
		if err := host.Units().Reload(ctx); err != nil {
			return err
		}
	}
	return u.settle(ctx, host)
}

// unmask allows the unit again, and returns its new state.
func (u Unit) unmask(ctx context.Context, host provision.Host) (provision.UnitState, error) {
	if err := host.Units().Unmask(ctx, u.Name); err != nil {
		return provision.UnitState{}, err
	}
	if err := host.Units().Reload(ctx); err != nil {
		return provision.UnitState{}, err
	}
	return host.Units().State(ctx, u.Name)
}

// enable enables or disables, and reports whether it changed anything.
func (u Unit) enable(ctx context.Context, host provision.Host, state provision.UnitState) (bool, error) {
	if u.Enable == nil || state.Enabled != "" && enabledAs(state.Enabled, *u.Enable) {
		return false, nil
	}
	if *u.Enable {
		return true, host.Units().Enable(ctx, u.Name)
	}
	return true, host.Units().Disable(ctx, u.Name)
}

// settle starts or stops.
func (u Unit) settle(ctx context.Context, host provision.Host) error {
	if !host.Live() {
		return nil
	}
	state, err := host.Units().State(ctx, u.Name)
	if err != nil {
		return err
	}
	switch {
	case u.Running == Started && !isActive(state):
		return host.Units().Start(ctx, u.Name)
	case u.lost(ctx, host, state):
		return host.Units().Restart(ctx, u.Name)
	case u.Running == Stopped && state.Active != "inactive" && state.Active != "failed":
		return host.Units().Stop(ctx, u.Name)
	}
	return nil
}

// Restart restarts a unit that should run, and leaves any other alone.
func (u Unit) Restart(ctx context.Context, host provision.Host) error {
	if u.Running != Started || !host.Live() {
		return nil
	}
	if u.ReloadToRestart {
		return host.Units().ReloadUnit(ctx, u.Name)
	}
	return host.Units().Restart(ctx, u.Name)
}

func isActive(state provision.UnitState) bool {
	return state.Active == "active" || state.Active == "reloading" || state.Active == "refreshing"
}

// enabledAs reports whether a unit-file state counts as enabled or not: whether the unit starts at every boot. A state that
// cannot be enabled or disabled (static, generated, …) counts as either.
func enabledAs(state string, enable bool) bool {
	switch state {
	case "enabled", "alias":
		return enable
	case "static", "indirect", "generated", "transient":
		return true
	}
	return !enable
}

// unitKind is a unit's state.
type unitKind struct{}

// Read reports whether it is enabled, and whether it runs.
func (unitKind) Read(ctx context.Context, host provision.Host, name string) (provision.State, error) {
	state, err := host.Units().State(ctx, name)
	if err != nil || state.Load == "not-found" || state.Load == "" && state.Enabled == "" {
		return provision.State{}, err
	}
	attrs := map[string]string{"enabled": state.Enabled}
	if host.Live() {
		attrs["active"] = "inactive"
		if isActive(state) || state.Active == "activating" {
			attrs["active"] = "active"
		}
	}
	return provision.State{Exists: true, Attrs: attrs}, nil
}

// Release stops and disables a unit that did not run or start at boot.
func (unitKind) Release(ctx context.Context, host provision.Host, name string, state provision.State) error {
	now, err := host.Units().State(ctx, name)
	if err != nil || now.Load == "not-found" {
		return err
	}
	if host.Live() && state.Attrs["active"] != "active" && now.Active != "inactive" {
		if err := host.Units().Stop(ctx, name); err != nil {
			return err
		}
	}
	if !enabledAs(state.Attrs["enabled"], true) && enabledAs(now.Enabled, true) && !enabledAs(now.Enabled, false) {
		if strings.HasPrefix(state.Attrs["enabled"], "linked") {
			return fmt.Errorf("%s was only linked, and stays enabled: systemctl disable would remove the link, too: %w", name, errs.State)
		}
		return host.Units().Disable(ctx, name)
	}
	return nil
}

// Restore enables and starts the unit as before, when its files are back.
func (unitKind) Restore(ctx context.Context, host provision.Host, name string, state provision.State, _ provision.Content) error {
	now, err := host.Units().State(ctx, name)
	if err != nil {
		return err
	}
	if host.Live() && (now.NeedReload || !state.Exists && now.Load != "not-found") {
		if err := host.Units().Reload(ctx); err != nil {
			return err
		}
	}
	if !state.Exists {
		return nil
	}
	if now, err = host.Units().State(ctx, name); err != nil || now.Load == "not-found" {
		return err // it went with its package
	}
	if enabledAs(state.Attrs["enabled"], true) && !enabledAs(now.Enabled, true) {
		if err := host.Units().Enable(ctx, name); err != nil {
			return err
		}
	}
	if host.Live() && state.Attrs["active"] == "active" && !isActive(now) {
		return host.Units().Start(ctx, name)
	}
	if strings.HasPrefix(state.Attrs["enabled"], "masked") && now.Load != "masked" {
		return host.Units().Mask(ctx, name)
	}
	return nil
}
