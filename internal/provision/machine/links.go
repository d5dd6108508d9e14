package machine

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"path"
	"strings"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/provision"
)

// links enables units of a machine that does not run, by the links that systemd makes
// of their [Install] sections.
type links struct{ files *files }

const etcUnits = "/etc/systemd/system"

// State knows only whether a unit exists, and whether it is enabled.
func (l *links) State(_ context.Context, name string) (provision.UnitState, error) {
	where, install, err := l.find(name)
	if errors.Is(err, errs.NotFound) {
		return provision.UnitState{Load: "not-found"}, nil
	}
	if err != nil {
		return provision.UnitState{}, err
	}
	state := provision.UnitState{Load: "loaded", Enabled: "disabled"}
	if info, err := l.files.Stat(where); err == nil && info.Target == "/dev/null" {
		return provision.UnitState{Load: "masked", Enabled: "masked"}, nil
	}
	if len(install) == 0 {
		state.Enabled = "static"
	}
	for _, link := range install {
		if _, err := l.files.Stat(link); err == nil {
			state.Enabled = "enabled"
		}
	}
	return state, nil
}

// find returns a unit's file and the links of its [Install] section.
func (l *links) find(name string) (where string, install []string, err error) {
	for _, dir := range []string{etcUnits, "/usr/local/lib/systemd/system", "/usr/lib/systemd/system", "/lib/systemd/system"} {
		where = path.Join(dir, name)
		if _, err = l.files.Stat(where); err == nil {
			break
		}
		if !errors.Is(err, errs.NotFound) {
			return "", nil, err
		}
	}
	if err != nil {
		return "", nil, fmt.Errorf("unit %s: %w", name, errs.NotFound)
	}
	if info, err := l.files.Stat(where); err == nil && info.Target == "/dev/null" {
		return where, nil, nil
	}
	r, err := l.files.Open(where)
	if err != nil {
		return "", nil, err
	}
	defer r.Close()
	section := ""
	lines := bufio.NewScanner(r)
	for lines.Scan() {
		line := strings.TrimSpace(lines.Text())
		if strings.HasPrefix(line, "[") {
			section = line
		}
		key, value, ok := strings.Cut(line, "=")
		if !ok || section != "[Install]" {
			continue
		}
		dir := map[string]string{"WantedBy": ".wants/", "RequiredBy": ".requires/"}[strings.TrimSpace(key)]
		for target := range strings.FieldsSeq(value) {
			switch {
			case dir != "":
				install = append(install, etcUnits+"/"+target+dir+name)
			case strings.TrimSpace(key) == "Alias":
				install = append(install, etcUnits+"/"+target)
			}
		}
	}
	return where, install, lines.Err()
}

// Enable makes the links.
func (l *links) Enable(_ context.Context, name string) error {
	where, install, err := l.find(name)
	if err != nil {
		return err
	}
	for _, link := range install {
		if err := l.files.Mkdir(path.Dir(link), provision.Attr{Mode: 0o755}); err != nil {
			return err
		}
		if err := l.files.Link(where, link, provision.Attr{}); err != nil {
			return err
		}
	}
	return nil
}

// Disable removes the links, and directories that are empty then.
func (l *links) Disable(_ context.Context, name string) error {
	_, install, err := l.find(name)
	if err != nil {
		return errs.IgnoreNotFound(err)
	}
	for _, link := range install {
		if err := l.files.Remove(link); err != nil {
			return err
		}
		if err := l.files.Remove(path.Dir(link)); err != nil && !errors.Is(err, errs.State) {
			return err
		}
	}
	return nil
}

// Mask links the unit to /dev/null.
func (l *links) Mask(_ context.Context, name string) error {
	return l.files.Link("/dev/null", etcUnits+"/"+name, provision.Attr{})
}

// Unmask removes that link.
func (l *links) Unmask(_ context.Context, name string) error {
	info, err := l.files.Stat(etcUnits + "/" + name)
	if err != nil || info.Target != "/dev/null" {
		return errs.IgnoreNotFound(err)
	}
	return l.files.Remove(etcUnits + "/" + name)
}

// The machine is not running: there is nothing to reload, start or stop.

// Reload does nothing.
func (*links) Reload(context.Context) error { return nil }

// Start does nothing.
func (*links) Start(context.Context, string) error { return nil }

// Stop does nothing.
func (*links) Stop(context.Context, string) error { return nil }

// Restart does nothing.
func (*links) Restart(context.Context, string) error { return nil }

// ReloadUnit does nothing.
func (*links) ReloadUnit(context.Context, string) error { return nil }
