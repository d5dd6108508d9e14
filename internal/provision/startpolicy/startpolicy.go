// Package startpolicy is what Debian's packages ask before they start a service: a program
// that keeps units from running before their configuration is there. It is plain text, and
// touches no machine.
package startpolicy

import (
	"fmt"
	"strings"
)

// File is where packages look for it, Mark a line that those of ours have.
const (
	File = "/usr/sbin/policy-rc.d"
	Mark = "# Made by `berth node` while it installs packages."
)

// Text is a policy that lets packages start no unit of hold but one that runs: that one is
// restarted as usual. It ends itself when valid, a command of the shell, fails.
func Text(hold []string, valid string) string {
	return fmt.Sprintf(`#!/bin/sh
%s
%s || { rm -f "$0"; exit 0; }
case " %s " in *" ${1%%.service}.service "*|*" $1 "*) systemctl -q is-active "$1" || exit 101 ;; esac
exit 0
`, Mark, valid, strings.Join(hold, " "))
}
