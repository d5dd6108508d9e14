package record

import (
	"strings"
	"syscall"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berthrun/berth/internal/sys/sysproc"
)

// StopSignal is the request's, else the image's, else SIGTERM. It is SIGTERM too
// when the name is unknown, with an error that says so.
func (r *Container) StopSignal() (syscall.Signal, error) {
	name := r.Image.StopSignal
	if asked := r.Config.Get().GetStopSignal(); asked != runtimeapi.Signal_SIGNAL_RUNTIME_DEFAULT {
		name = sysproc.CRISignalName(asked.String())
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
