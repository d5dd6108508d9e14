package sysproc

import (
	"errors"
	"syscall"
	"testing"

	"github.com/berthrun/berth/internal/errs"
)

func TestParseSignal(t *testing.T) {
	for name, want := range map[string]syscall.Signal{
		"SIGTERM": syscall.SIGTERM, "term": syscall.SIGTERM, "15": syscall.SIGTERM, " SIGKILL ": syscall.SIGKILL,
		"SIGRTMIN+3": 37, "RTMIN": 34, "SIGRTMAX-1": 63, "SIGRTMAX": 64, "SIGCLD": syscall.SIGCHLD, "SIGPOLL": syscall.SIGIO,
	} {
		if got, err := ParseSignal(name); err != nil || got != want {
			t.Errorf("ParseSignal(%q) = %v, %v; want %d", name, got, err, want)
		}
	}
	for sig := syscall.Signal(1); sig <= 64; sig++ {
		if name := SignalName(sig); name != "" {
			if back, err := ParseSignal(name); err != nil || back != sig {
				t.Errorf("signal %d is named %q, which is %d, %v", sig, name, back, err)
			}
		} else if sig != 32 && sig != 33 {
			t.Errorf("signal %d has no name", sig)
		}
	}
	for _, name := range []string{"", "0", "65", "-1", "SIGNOPE", "SIGRTMIN+31", "SIGRTMIN-1", "SIGRTMAX+1", "SIGRTMIN+x"} {
		if got, err := ParseSignal(name); !errors.Is(err, errs.Invalid) {
			t.Errorf("ParseSignal(%q) = %v, %v; want Invalid", name, got, err)
		}
	}
}
