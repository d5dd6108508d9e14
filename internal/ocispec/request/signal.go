package request

import (
	"strings"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// SignalName turns CRI's spelling of a signal (SIGNAL_SIGRTMINPLUS3) into the usual one
// (SIGRTMIN+3).
func SignalName(sig runtimeapi.Signal) string {
	name := strings.TrimPrefix(sig.String(), "SIGNAL_")
	name = strings.Replace(name, "PLUS", "+", 1)
	return strings.Replace(name, "MINUS", "-", 1)
}
