package ruleset

import (
	"bytes"
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"github.com/berthrun/berth/internal/errs"
)

// bridgeKeys are the files of the sysctls by which the kernel shows packets between two ports of a bridge
// to the rules of both families. They are those of the network namespace of the thread.
func bridgeKeys() []string {
	return []string{"/proc/sys/net/bridge/bridge-nf-call-iptables", "/proc/sys/net/bridge/bridge-nf-call-ip6tables"}
}

// FilterBridged makes the kernel show packets between two ports of a bridge to the rules, in the network
// namespace of this thread: without it, pods of one node reach each other whatever the rules say. changed
// reports whether it did not do so before. The error is errs.Unsupported where the kernel has no br_netfilter.
func FilterBridged() (changed bool, err error) {
	var all []error
	for _, file := range bridgeKeys() {
		on, err := isOn(file)
		if err == nil && !on {
			if err = os.WriteFile(file, []byte("1"), 0); err == nil {
				changed = true
			} else {
				err = cannotSet(file, err)
			}
		}
		all = append(all, err)
	}
	return changed, errors.Join(all...)
}

// CanFilterBridged returns the error that FilterBridged would, and changes nothing.
func CanFilterBridged() error {
	var all []error
	for _, file := range bridgeKeys() {
		on, err := isOn(file)
		if err == nil && !on {
			if err = unix.Access(file, unix.W_OK); err != nil {
				err = cannotSet(file, err)
			}
		}
		all = append(all, err)
	}
	return errors.Join(all...)
}

func isOn(file string) (bool, error) {
	now, err := os.ReadFile(file)
	if err != nil {
		return false, fmt.Errorf("the kernel does not filter packets between pods of one bridge; load its module br_netfilter: %w: %w", errs.Unsupported, err)
	}
	return bytes.Equal(bytes.TrimSpace(now), []byte("1")), nil
}

func cannotSet(file string, err error) error {
	return fmt.Errorf("packets between pods of one bridge are not filtered; set %s to 1: %w", file, err)
}
