package native

import (
	"fmt"
	"maps"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berthrun/berth/internal/ocispec"
	"github.com/berthrun/berth/internal/ocispec/request"
	"github.com/berthrun/berth/internal/supervisor"
)

// inputOf is what the spec takes from the request, the sandbox and the host.
func (e *Engine) inputOf(spec *containerSpec) (in ocispec.Input, err error) {
	hostname, err := hostnameOf(spec.SandboxSpec.Config)
	if err != nil {
		return in, err
	}
	in = ocispec.Input{
		ID:            spec.ID,
		SandboxID:     spec.SandboxSpec.ID,
		Config:        spec.Config,
		SandboxConfig: spec.SandboxSpec.Config,
		Image:         spec.ImageConfig,
		Hostname:      hostname,
		CgroupsPath:   e.cgroupsPath(spec.Sandbox.CgroupParent, spec.ID),
		Namespaces: ocispec.Namespaces{
			User: spec.Sandbox.UserNS, Net: spec.Sandbox.NetNS, IPC: spec.Sandbox.IPCNS, UTS: spec.Sandbox.UTSNS, PID: spec.Sandbox.PIDNS,
		},
		UserNamespace: request.UserNamespaceOf(spec.SandboxSpec.Config),
		Defaults:      e.rules().Defaults,
		Annotations:   e.annotationsOf(spec),
		Host:          e.host,
	}
	if in.Files, err = filesOf(spec.SandboxSpec.Dir, e.sandboxPaths(spec.SandboxSpec.ID).shm, spec.Sandbox.IPCNS == ""); err != nil {
		return in, err
	}
	if request.SharesCgroupns(spec.Config, spec.SandboxSpec.Config) {
		if in.Host.CgroupOptions, err = e.tree.Options(); err != nil {
			return in, err
		}
	}
	if spec.TargetPID != 0 {
		in.Namespaces.Target = fmt.Sprintf("/proc/%d/ns/pid", spec.TargetPID)
	}
	return in, nil
}

// annotationsOf are those of the requests that are passed on to hooks.
func (e *Engine) annotationsOf(spec *containerSpec) map[string]string {
	rules := e.rules()
	passed := request.PassedAnnotations(spec.SandboxSpec.Config.GetAnnotations(), rules.PodAnnotations)
	maps.Copy(passed, request.PassedAnnotations(spec.Config.GetAnnotations(), rules.ContainerAnnotations))
	return passed
}

// isPrivileged reports whether the request is for a privileged container.
func isPrivileged(config *runtimeapi.ContainerConfig) bool {
	return config.GetLinux().GetSecurityContext().GetPrivileged()
}

// requestOf is the request to the supervisor, but for the log.
func (e *Engine) requestOf(spec *containerSpec) supervisor.CreateRequest {
	return supervisor.CreateRequest{
		ID:            spec.ID,
		Bundle:        e.bundleDir(spec.ID),
		SystemdCgroup: e.cfg.CgroupDriver == driverSystemd,
		Stdin:         spec.Config.GetStdin(),
		StdinOnce:     spec.Config.GetStdinOnce(),
	}
}
