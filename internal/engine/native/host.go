package native

import (
	"fmt"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berthrun/berth/internal/engine/native/selinux"
	"github.com/berthrun/berth/internal/engine/notice"
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

func (e *Engine) notices() notice.Notices {
	rules := e.rules()
	return notice.Notices{Log: e.log, Allowed: rules.AllowedAnnotations, Host: e.host, Capabilities: rules.Defaults.Capabilities}
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
