// Package xtables reads a table of iptables at once, and changes it at once. The programs iptables
// and iptables-restore run once each, where go-iptables runs a program for each rule that it looks
// for and each that it adds; starting them is nearly all of the time that a pod's rules take.
//
// What it cannot do in one go, such as a rule whose listing differs from how it was written, its
// callers leave to go-iptables.
package xtables

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"github.com/coreos/go-iptables/iptables"
	"github.com/google/nftables"
	"golang.org/x/sys/unix"
)

const (
	// lockWait is for how many seconds one program waits for the lock of iptables. A lock that another program holds
	// for longer fails the call, which is repeated; without a limit the call would never end.
	lockWait = 20
	// busyStatus is the exit status of iptables where it did not get the lock, or the kernel's resources.
	busyStatus = 4
)

// Table is a table of one family, as it was when it was read.
type Table struct {
	name    string
	v6      bool
	environ []string
	lines   []string // as iptables -S lists them
}

// Open returns go-iptables for a family, whose programs wait for the lock no longer than those of this package.
func Open(v6 bool) (*iptables.IPTables, error) {
	protocol := iptables.ProtocolIPv4
	if v6 {
		protocol = iptables.ProtocolIPv6
	}
	return iptables.New(iptables.IPFamily(protocol), iptables.Timeout(lockWait))
}

// Usable reports whether the host has iptables for IPv4. A table that is in use for now is there: else a pod would get
// rules of another kind for as long as some program holds the lock.
func Usable() bool {
	ipt, err := Open(false)
	if err != nil {
		return false
	}
	_, err = ipt.ChainExists("filter", "INPUT")
	return err == nil || IsBusy(err)
}

// IsBusy reports whether an error of iptables, of this package or of go-iptables, is that the table cannot be used now.
func IsBusy(err error) bool {
	var one *iptables.Error
	if errors.As(err, &one) {
		return one.ExitStatus() == busyStatus || !one.Exited()
	}
	var exit *exec.ExitError
	return errors.As(err, &exit) && (exit.ExitCode() == busyStatus || !exit.Exited())
}

// absentError is that the host has no such table.
type absentError struct{ error }

func (e absentError) Unwrap() error { return e.error }

// IsAbsent reports whether an error of Read is that the host has no such table: it has no iptables, or none for the
// family. All other errors leave open whether the table has rules.
func IsAbsent(err error) bool {
	var absent absentError
	return errors.As(err, &absent)
}

// isAbsent decides IsAbsent for the error of a program. Exit statuses do not: a table of nftables that iptables cannot
// list has the same as a kernel without nftables. So it asks the kernel.
func isAbsent(v6 bool, name string, err error) bool {
	var exit *exec.ExitError
	switch {
	case errors.Is(err, exec.ErrNotFound):
		return true
	case IsBusy(err) || !errors.As(err, &exit):
		return false // such as a host that cannot start a process now
	}
	file, family := "/proc/thread-self/net/ip_tables_names", nftables.TableFamilyIPv4
	if v6 {
		file, family = "/proc/thread-self/net/ip6_tables_names", nftables.TableFamilyIPv6
	}
	old, err := os.ReadFile(file) // of the legacy variant
	if err != nil && !errors.Is(err, fs.ErrNotExist) || slices.Contains(strings.Fields(string(old)), name) {
		return false
	}
	has, err := InNFTables(family, name)
	return err == nil && !has
}

// InNFTables reports whether the kernel has a table of nftables. False, without an error, for a kernel without nftables.
func InNFTables(family nftables.TableFamily, name string) (bool, error) {
	conn, err := nftables.New()
	if err != nil {
		return false, ignoreMissing(err)
	}
	tables, err := conn.ListTablesOfFamily(family)
	if err != nil {
		return false, ignoreMissing(err)
	}
	return slices.ContainsFunc(tables, func(t *nftables.Table) bool { return t.Name == name }), nil
}

// ignoreMissing returns nil for what a kernel without nftables, or without netlink for it, answers.
func ignoreMissing(err error) error {
	for _, missing := range []error{unix.EINVAL, unix.EPROTONOSUPPORT, unix.EAFNOSUPPORT, unix.EOPNOTSUPP} {
		if errors.Is(err, missing) {
			return nil
		}
	}
	return err
}

// program is a program of a family.
func program(v6 bool, suffix string) string {
	if v6 {
		return "ip6tables" + suffix
	}
	return "iptables" + suffix
}

// Read reads a table. IsAbsent and IsBusy are the errors that have a meaning of their own. environ are the variables of the plugin's call, for this program and those of Change: a daemon that starts again
// finds by them what the former one has left.
func Read(ctx context.Context, environ []string, v6 bool, name string) (*Table, error) {
	out, err := run(exec.CommandContext(ctx, program(v6, ""), "-w", strconv.Itoa(lockWait), "-t", name, "-S"), environ)
	if err != nil && isAbsent(v6, name, err) {
		return nil, absentError{err}
	}
	if err != nil {
		return nil, err
	}
	return &Table{name, v6, environ, strings.Split(strings.TrimSuffix(out, "\n"), "\n")}, nil
}

// HasChain reports whether there is a chain that is not built in.
func (t *Table) HasChain(chain string) bool { return slices.Contains(t.lines, "-N "+chain) }

// HasRule reports whether a chain has a rule that is listed in these words. False may also mean
// that iptables lists it otherwise.
func (t *Table) HasRule(chain string, words []string) bool {
	return slices.Contains(t.lines, Line("-A", chain, words))
}

// Jumps are the rules of a chain, as they are listed, that lead to another.
func (t *Table) Jumps(from, to string) []string {
	var found []string
	for _, line := range t.lines {
		if strings.HasPrefix(line, "-A "+from+" ") && strings.HasSuffix(line, " -j "+to) {
			found = append(found, strings.TrimPrefix(line, "-A "))
		}
	}
	return found
}

// Line writes a command with a rule as iptables lists it and iptables-restore reads it.
func Line(command, chain string, words []string) string {
	line := command + " " + chain
	for _, w := range words {
		if w == "" || strings.ContainsAny(w, " \"'\\\t") {
			w = `"` + strings.NewReplacer(`\`, `\\`, `"`, `\"`).Replace(w) + `"`
		}
		line += " " + w
	}
	return line
}

// NewChain are the commands for a chain, which must not exist, with rules: each once, in order.
func NewChain(chain string, rules [][]string) []string {
	commands := []string{":" + chain + " - [0:0]"}
	for _, rule := range rules {
		if line := Line("-A", chain, rule); !slices.Contains(commands, line) {
			commands = append(commands, line)
		}
	}
	return commands
}

// RemoveChain are the commands that remove a chain, and the rules of others that lead to it.
func (t *Table) RemoveChain(chain string, from ...string) []string {
	var commands []string
	for _, f := range from {
		for _, jump := range t.Jumps(f, chain) {
			commands = append(commands, "-D "+jump)
		}
	}
	return append(commands, "-F "+chain, "-X "+chain)
}

// Change runs commands, all of them or none.
func (t *Table) Change(ctx context.Context, commands []string) error {
	for _, c := range commands {
		if strings.ContainsAny(c, "\n\r") {
			return fmt.Errorf("the rule %q has a line end", c)
		}
	}
	cmd := exec.CommandContext(ctx, program(t.v6, "-restore"), "-w", strconv.Itoa(lockWait), "--noflush")
	cmd.Stdin = strings.NewReader("*" + t.name + "\n" + strings.Join(commands, "\n") + "\nCOMMIT\n")
	_, err := run(cmd, t.environ)
	return err
}

func run(cmd *exec.Cmd, environ []string) (string, error) {
	cmd.Env = environ
	var out, errOut bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errOut
	// It must not go on waiting for the lock of iptables when the daemon is gone, and add rules after DEL. The caller's
	// thread is its own until the program ends.
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("%s: %w: %s", strings.Join(cmd.Args, " "), err, strings.TrimSpace(errOut.String()))
	}
	return out.String(), nil
}
