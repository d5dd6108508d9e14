package xtables

import (
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"slices"
	"strings"

	"github.com/coreos/go-iptables/iptables"
	"github.com/google/nftables"
	"golang.org/x/sys/unix"
)

// busyStatus is the exit status of iptables where it did not get the lock, or the kernel's resources.
const busyStatus = 4

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
	old, err := legacyTables(v6)
	if err != nil || slices.Contains(old, name) {
		return false
	}
	family := nftables.TableFamilyIPv4
	if v6 {
		family = nftables.TableFamilyIPv6
	}
	has, err := InNFTables(family, name)
	return err == nil && !has
}

// legacyTables returns the names of the tables of the legacy variant in the calling thread's network namespace.
func legacyTables(v6 bool) ([]string, error) {
	file := "/proc/thread-self/net/ip_tables_names"
	if v6 {
		file = "/proc/thread-self/net/ip6_tables_names"
	}
	names, err := os.ReadFile(file)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	return strings.Fields(string(names)), err
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
