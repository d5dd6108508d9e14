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
)

// policyFile is what Debian's packages ask before they start a service.
const policyFile = "/usr/sbin/policy-rc.d"

// policyMark is in a policy of ours.
const policyMark = "# Made by `berth node` while it installs packages."

// policy lets packages start no unit of hold but one that runs: that one is restarted as
// usual. It ends itself when the process that wrote it is gone.
func policy(hold []string, pid int) string {
	return fmt.Sprintf(`#!/bin/sh
%s
grep -qs berth /proc/%d/cmdline || { rm -f "$0"; exit 0; }
case " %s " in *" ${1%%.service}.service "*|*" $1 "*) systemctl -q is-active "$1" || exit 101 ;; esac
exit 0
`, policyMark, pid, strings.Join(hold, " "))
}

// holdUnits keeps units from being started by packages until release is called. A policy
// of somebody else's stays, and is told.
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
		provision.Note(ctx, "%s is somebody's: it decides whether packages start what they bring", policyFile)
		return release, nil
	}
	text := policy(hold, os.Getpid())
	if err := p.machine.files.Write(policyFile, strings.NewReader(text), provision.Attr{Mode: 0o755}); err != nil {
		return release, fmt.Errorf("cannot keep packages from starting %s: %w", strings.Join(hold, ", "), err)
	}
	return func() error { return p.machine.files.Remove(policyFile) }, nil
}

// readPolicy tells whether there is a policy, and whether it is one of ours.
func (p *packages) readPolicy() (ours, there bool, err error) {
	r, err := p.machine.files.Open(policyFile)
	if errors.Is(err, errs.NotFound) {
		return false, false, nil
	}
	if err != nil {
		return false, false, err
	}
	defer r.Close()
	var text bytes.Buffer
	if _, err := text.ReadFrom(r); err != nil {
		return false, true, fmt.Errorf("cannot read %s: %w", policyFile, err)
	}
	return strings.Contains(text.String(), policyMark), true, nil
}
