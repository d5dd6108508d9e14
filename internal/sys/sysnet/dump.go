package sysnet

import (
	"errors"

	"github.com/vishvananda/netlink/nl"
)

// WholeList returns a complete list of the kernel. A list that changes while it is read may be incomplete. The kernel
// reports that (nl.ErrDumpInterrupted), and WholeList reads the list again. The error is that of the last try.
func WholeList[T any](list func() ([]T, error)) (all []T, err error) {
	const tries = 20
	for range tries {
		if all, err = list(); !errors.Is(err, nl.ErrDumpInterrupted) {
			break
		}
	}
	return all, err
}
