package sysproc

import (
	"fmt"
	"strconv"
	"strings"
	"syscall"

	"github.com/berthrun/berth/internal/errs"
	"golang.org/x/sys/unix"
)

// The real-time signals that programs may use: the C library keeps the first
// two of the kernel's.
const (
	rtMin = 34
	rtMax = 64
)

// ParseSignal reads a signal as images and CRI write them: "SIGTERM", "term",
// "15", "SIGRTMIN+3".
func ParseSignal(name string) (syscall.Signal, error) {
	full := strings.ToUpper(strings.TrimSpace(name))
	if n, err := strconv.Atoi(full); err == nil {
		if n < 1 || n > rtMax {
			return 0, fmt.Errorf("there is no signal %d: %w", n, errs.Invalid)
		}
		return syscall.Signal(n), nil
	}
	if !strings.HasPrefix(full, "SIG") {
		full = "SIG" + full
	}
	if rest, ok := strings.CutPrefix(full, "SIGRTMIN"); ok {
		return realTime(name, rtMin, rest)
	}
	if rest, ok := strings.CutPrefix(full, "SIGRTMAX"); ok {
		return realTime(name, rtMax, rest)
	}
	switch full { // second names, which the table below lacks
	case "SIGCLD":
		full = "SIGCHLD"
	case "SIGIOT":
		full = "SIGABRT"
	case "SIGPOLL":
		full = "SIGIO"
	}
	if sig := unix.SignalNum(full); sig != 0 {
		return sig, nil
	}
	return 0, fmt.Errorf("there is no signal %q: %w", name, errs.Invalid)
}

func realTime(name string, base int, offset string) (syscall.Signal, error) {
	n := 0
	if offset != "" {
		var err error
		if n, err = strconv.Atoi(offset); err != nil {
			return 0, fmt.Errorf("there is no signal %q: %w", name, errs.Invalid)
		}
	}
	if base+n < rtMin || base+n > rtMax {
		return 0, fmt.Errorf("there is no signal %q: %w", name, errs.Invalid)
	}
	return syscall.Signal(base + n), nil
}

// SignalName is the usual name of a signal, "" when it has none. Real-time
// signals are named from the nearer end.
func SignalName(sig syscall.Signal) string {
	n := int(sig)
	switch {
	case n < rtMin || n > rtMax:
		return unix.SignalName(sig)
	case n == rtMin:
		return "SIGRTMIN"
	case n == rtMax:
		return "SIGRTMAX"
	case n-rtMin <= (rtMax-rtMin)/2:
		return fmt.Sprintf("SIGRTMIN+%d", n-rtMin)
	default:
		return fmt.Sprintf("SIGRTMAX-%d", rtMax-n)
	}
}

// CRISignalName turns CRI's spelling of a signal (SIGNAL_SIGRTMINPLUS3) into the usual one
// (SIGRTMIN+3).
func CRISignalName(name string) string {
	name = strings.TrimPrefix(name, "SIGNAL_")
	name = strings.Replace(name, "PLUS", "+", 1)
	return strings.Replace(name, "MINUS", "-", 1)
}
