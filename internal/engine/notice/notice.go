// Package notice logs what requests have that has no effect, or another one than their authors may
// expect. Nothing is refused for it.
package notice

import (
	"log/slog"
	"slices"
	"unicode/utf8"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berthrun/berth/internal/engine"
	"github.com/berthrun/berth/internal/ocispec"
	"github.com/berthrun/berth/internal/ocispec/request"
)

// Notices logs them for one engine.
type Notices struct {
	Log *slog.Logger
	// Allowed are the annotations that have an effect: runtime.allowed_annotations.
	Allowed []string
	Host    ocispec.Host
	// Capabilities are those that requests add to and drop from.
	Capabilities []string
}

// Container logs what is to be said of a container. mapped says that it is in a user namespace of
// its pod.
func (n Notices) Container(spec *engine.ContainerSpec, mapped bool) {
	n.Annotations("container", spec.ID, spec.Config.GetAnnotations())
	n.privileged(spec.ID, spec.Config)
	if !mapped {
		n.tracer(spec)
	}
	n.binary(spec.ID, spec.Config)
}

// Annotations logs those that berth ignores. kind is sandbox or container.
func (n Notices) Annotations(kind, id string, annotations map[string]string) {
	if ignored := request.IgnoredAnnotations(annotations, n.Allowed); len(ignored) > 0 {
		n.Log.Warn("ignoring annotations of other runtimes, or that runtime.allowed_annotations "+
			"does not allow; profiles come from the security context",
			kind, id, "annotations", ignored)
	}
}

// privileged warns of a profile that a privileged container does not get.
func (n Notices) privileged(id string, config *runtimeapi.ContainerConfig) {
	if profile := request.IgnoredSeccomp(config); profile != "" {
		n.Log.Warn("ignoring linux.security_context.seccomp of a privileged container; it gets "+
			"runtime.privileged_seccomp_profile, if that is set",
			"container", id, "profile", profile)
	}
}

// tracer warns of a container that can take over the process that runs commands in it: see
// docs/running.md. A privileged container can do so anyway, and one in a user namespace gains
// nothing by it.
func (n Notices) tracer(spec *engine.ContainerSpec) {
	sets, err := ocispec.Capabilities(spec.Config, n.Host, n.Capabilities)
	if err != nil || !slices.Contains(sets.Permitted, "CAP_SYS_PTRACE") || // the engine reports the error
		spec.Config.GetLinux().GetSecurityContext().GetPrivileged() {
		return
	}
	pod := spec.SandboxSpec.Config.GetMetadata()
	n.Log.Warn("the container has CAP_SYS_PTRACE without a user namespace: unless AppArmor or SELinux confines it, it can trace the runtime's helper "+
		"of each exec, and in a shared PID namespace that of each container that is created, which has all capabilities; "+
		"give the pod a user namespace (hostUsers: false)",
		"container", spec.ID, "name", spec.Config.GetMetadata().GetName(), "pod", pod.GetNamespace()+"/"+pod.GetName())
}

// binary warns of variables that the program gets in changed form: a kubelet passes on any bytes
// of a Secret, and an OCI spec is text.
func (n Notices) binary(id string, config *runtimeapi.ContainerConfig) {
	var names []string
	for _, env := range config.GetEnvs() {
		if !utf8.Valid(env.GetValue()) {
			names = append(names, env.GetKey())
		}
	}
	if len(names) > 0 {
		n.Log.Warn("values of environment variables are not UTF-8; the program gets U+FFFD for "+
			"each invalid byte",
			"container", id, "variables", names)
	}
}
