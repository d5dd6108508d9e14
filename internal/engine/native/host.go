package native

import (
	"fmt"
	"slices"
	"unicode/utf8"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berthrun/berth/internal/engine/native/selinux"
	"github.com/berthrun/berth/internal/ocispec"
	"github.com/berthrun/berth/internal/ocispec/request"
)

// hostWarnings are the features of pods that this host does not allow.
func (e *Engine) hostWarnings() []string {
	var warnings []string
	if warning := e.apparmor.Warning(); warning != "" && !e.rules().AppArmorOff {
		warnings = append(warnings, warning)
	}
	if err := e.userns.Supported(); err != nil {
		warnings = append(warnings, fmt.Sprintf("pods cannot have user namespaces: %v", err))
	}
	if !e.host.RecursiveReadOnly {
		warnings = append(warnings, "mounts cannot be made read-only with all below them: the kernel is older than 5.12")
	}
	if e.cfg.SELinux == selinux.Off && selinux.Host.Enabled(selinux.Host{}) {
		warnings = append(warnings, "SELinux is enabled, but the configuration says that containers and their files are not labelled")
	}
	return warnings
}

// warnIgnored warns of annotations that berth ignores.
func (e *Engine) warnIgnored(kind, id string, annotations map[string]string) {
	if ignored := request.IgnoredAnnotations(annotations, e.rules().AllowedAnnotations); len(ignored) > 0 {
		e.log.Warn("ignoring annotations of other runtimes, or that runtime.allowed_annotations "+
			"does not allow; profiles come from the security context",
			kind, id, "annotations", ignored)
	}
}

// warnPrivileged warns of a profile that a privileged container does not get.
func (e *Engine) warnPrivileged(id string, config *runtimeapi.ContainerConfig) {
	if profile := request.IgnoredSeccomp(config); profile != "" {
		e.log.Warn("ignoring linux.security_context.seccomp of a privileged container; it gets "+
			"runtime.privileged_seccomp_profile, if that is set",
			"container", id, "profile", profile)
	}
}

// warnTracer warns of a container that can take over the process that runs commands in it:
// see docs/running.md. A privileged container can do so anyway, and one in a user namespace
// gains nothing by it.
func (e *Engine) warnTracer(spec *containerSpec) {
	sets, err := ocispec.Capabilities(spec.Config, e.host, e.rules().Defaults.Capabilities)
	if err != nil || !slices.Contains(sets.Permitted, "CAP_SYS_PTRACE") || // prepareSpec reports the error
		spec.Config.GetLinux().GetSecurityContext().GetPrivileged() || spec.Sandbox.UserNS != "" {
		return
	}
	e.log.Warn("the container has CAP_SYS_PTRACE without a user namespace: unless AppArmor or SELinux confines it, it can trace the runtime's helper "+
		"of each exec, and in a shared PID namespace that of each container that is created, which has all capabilities; "+
		"give the pod a user namespace (hostUsers: false)",
		"container", spec.ID, "name", spec.Config.GetMetadata().GetName(), "pod", spec.SandboxSpec.Config.GetMetadata().GetNamespace()+"/"+spec.SandboxSpec.Config.GetMetadata().GetName())
}

// warnBinary warns of variables that the program gets in changed form: a kubelet passes on any
// bytes of a Secret, and an OCI spec is text.
func (e *Engine) warnBinary(id string, config *runtimeapi.ContainerConfig) {
	var names []string
	for _, env := range config.GetEnvs() {
		if !utf8.Valid(env.GetValue()) {
			names = append(names, env.GetKey())
		}
	}
	if len(names) > 0 {
		e.log.Warn("values of environment variables are not UTF-8; the program gets U+FFFD for "+
			"each invalid byte",
			"container", id, "variables", names)
	}
}

func (e *Engine) handlers() []*runtimeapi.RuntimeHandler {
	return []*runtimeapi.RuntimeHandler{{Name: "", Features: &runtimeapi.RuntimeHandlerFeatures{
		RecursiveReadOnlyMounts: e.host.RecursiveReadOnly,
		UserNamespaces:          e.userns.Supported() == nil,
	}}}
}

func (e *Engine) features() *runtimeapi.RuntimeFeatures {
	return &runtimeapi.RuntimeFeatures{
		SupplementalGroupsPolicy:  true,
		UserNamespacesHostNetwork: e.userns.Supported() == nil,
		MountOptions:              true,
	}
}
