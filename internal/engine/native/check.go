package native

import (
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berthrun/berth/internal/ocispec/check"
)

// What this engine can honour is what an OCI spec can say.

// CheckSandbox implements engine.Engine.
func (e *Engine) CheckSandbox(config *runtimeapi.PodSandboxConfig) error {
	return check.Sandbox(config)
}

// CheckContainer implements engine.Engine.
func (e *Engine) CheckContainer(config *runtimeapi.ContainerConfig, sandbox *runtimeapi.PodSandboxConfig) error {
	return check.Container(config, sandbox)
}

// CheckResources implements engine.Engine.
func (e *Engine) CheckResources(field string, limits *runtimeapi.LinuxContainerResources) error {
	return check.Resources(field, limits)
}
