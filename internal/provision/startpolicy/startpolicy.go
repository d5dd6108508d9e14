// Package startpolicy is the policy-rc.d program that Debian's packages consult before they start a
// service: it keeps units from running before their configuration exists. It is plain text, and
// touches no machine.
package startpolicy

import (
	"fmt"
	"strings"
)

// File is the path where packages look for it, Mark a line that berth's own have.
const (
	File = "/usr/sbin/policy-rc.d"
	Mark = "# Made by `berth node` while it installs packages."
)

// Text is a policy that keeps packages from starting units of hold. A running unit is restarted as
// usual. The policy has no effect once valid, a shell command, fails.
func Text(hold []string, valid string) string {
	return fmt.Sprintf(`#!/bin/sh
%s
%s || { rm -f "$0"; exit 0; }
case " %s " in *" ${1%%.service}.service "*|*" $1 "*) systemctl -q is-active "$1" || exit 101 ;; esac
exit 0
`, Mark, valid, strings.Join(hold, " "))
}
