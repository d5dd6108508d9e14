package podfiles

import (
	"fmt"
	"os"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/ocispec/request"
)

// CheckHostname refuses a hostname for a pod in the host's network, which has the host's name.
// A kubelet sends none for such a pod.
func CheckHostname(config *runtimeapi.PodSandboxConfig) error {
	requested := config.GetHostname()
	if requested == "" || !request.HostNetwork(config) {
		return nil
	}
	host, err := os.Hostname()
	if err != nil {
		return fmt.Errorf("cannot read the host's name: %w", err)
	}
	if requested != host {
		return fmt.Errorf("config.hostname: %q cannot be the name of a pod in the host's network, which has the host's (%s); leave it empty: %w", requested, host, errs.Invalid)
	}
	return nil
}

// Hostname is the hostname of a pod's processes.
func Hostname(config *runtimeapi.PodSandboxConfig) (string, error) {
	if name := config.GetHostname(); name != "" && !request.HostNetwork(config) {
		return name, nil
	}
	name, err := os.Hostname()
	if err != nil {
		return "", fmt.Errorf("cannot read the host's name: %w", err)
	}
	return name, nil
}
