package machine

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/provision"
	"github.com/berthrun/berth/internal/provision/startpolicy"
)

// policy has no effect once the process that wrote it is gone.
func policy(hold []string, pid int) string {
	return startpolicy.Text(hold, fmt.Sprintf("grep -qs berth /proc/%d/cmdline", pid))
}

// holdUnits keeps packages from starting units until release is called. It leaves somebody else's
// policy in place, and reports it.
func (p *packages) holdUnits(ctx context.Context, hold []string) (release func() error, err error) {
	release = func() error { return nil }
	if len(hold) == 0 || p.manager.orEmpty().name != "apt" || !p.machine.Live() {
		return release, nil
	}
	ours, there, err := p.readPolicy()
	if err != nil {
		return release, err
	}
	if there && !ours {
		provision.Note(ctx, "%s is somebody's: it decides whether packages start what they bring", startpolicy.File)
		return release, nil
	}
	text := policy(hold, os.Getpid())
	if err := p.machine.files.Write(startpolicy.File, strings.NewReader(text), provision.Attr{Mode: 0o755}); err != nil {
		return release, fmt.Errorf("cannot keep packages from starting %s: %w", strings.Join(hold, ", "), err)
	}
	return func() error { return p.machine.files.Remove(startpolicy.File) }, nil
}

// readPolicy reports whether there is a policy, and whether it is one of ours.
func (p *packages) readPolicy() (ours, there bool, err error) {
	r, err := p.machine.files.Open(startpolicy.File)
	if errors.Is(err, errs.NotFound) {
		return false, false, nil
	}
	if err != nil {
		return false, false, err
	}
	defer r.Close()
	var text bytes.Buffer
	if _, err := text.ReadFrom(r); err != nil {
		return false, true, fmt.Errorf("cannot read %s: %w", startpolicy.File, err)
	}
	return strings.Contains(text.String(), startpolicy.Mark), true, nil
}
