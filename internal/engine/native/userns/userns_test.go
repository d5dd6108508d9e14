package userns

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"
)

// TestSupportedAgain: a fault of a moment, such as a full disk at the daemon's start, passes. A success stays.
func TestSupportedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		probes := 0
		m := &Maker{probe: func() error {
			if probes++; probes == 1 {
				return unix.ENOSPC
			}
			return nil
		}}
		for range 2 {
			if err := m.Supported(); !errors.Is(err, unix.ENOSPC) || probes != 1 {
				t.Errorf("got %v after %d probes", err, probes)
			}
		}
		for range 2 {
			time.Sleep(faultAge)
			if err := m.Supported(); err != nil || probes != 2 {
				t.Errorf("got %v after %d probes", err, probes)
			}
		}
	})
}
