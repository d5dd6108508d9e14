package record

import (
	"strings"
	"syscall"

	"github.com/berthrun/berth/internal/sys/sysproc"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// StopSignal is the request's, else the image's, else SIGTERM. It is SIGTERM too
// when the name is unknown, with an error that says so.
func (r *Container) StopSignal() (syscall.Signal, error) {
	name := r.Image.StopSignal
	if asked := r.Config.Get().GetStopSignal(); asked != runtimeapi.Signal_SIGNAL_RUNTIME_DEFAULT {
		name = criSignalName(asked)
	}
	if name == "" {
		return syscall.SIGTERM, nil
	}
	sig, err := sysproc.ParseSignal(name)
	if err != nil {
		return syscall.SIGTERM, err
	}
	return sig, nil
}

// CRIStopSignal is StopSignal as CRI spells it.
func (r *Container) CRIStopSignal() runtimeapi.Signal {
	if asked := r.Config.Get().GetStopSignal(); asked != runtimeapi.Signal_SIGNAL_RUNTIME_DEFAULT {
		return asked
	}
	sig, err := r.StopSignal()
	if err != nil {
		return runtimeapi.Signal_SIGNAL_SIGTERM
	}
	name := strings.NewReplacer("+", "PLUS", "-", "MINUS").Replace(sysproc.SignalName(sig))
	if number, known := runtimeapi.Signal_value["SIGNAL_"+name]; known {
		return runtimeapi.Signal(number)
	}
	return runtimeapi.Signal_SIGNAL_SIGTERM
}

// criSignalName turns CRI's spelling (SIGNAL_SIGRTMINPLUS3) into the usual one
// (SIGRTMIN+3).
func criSignalName(sig runtimeapi.Signal) string {
	name := strings.TrimPrefix(sig.String(), "SIGNAL_")
	name = strings.Replace(name, "PLUS", "+", 1)
	return strings.Replace(name, "MINUS", "-", 1)
}
