package request

import (
	"strings"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// SeccompProfile is the seccomp filter of a container. The zero value is none.
type SeccompProfile struct {
	// Default is the runtime's own profile.
	Default bool
	// Path is a profile on the node, "" for none.
	Path string
}

// SeccompOf returns the filter that a container's request asks for. A request without a
// profile gets the given default. A privileged container gets no filter.
func SeccompOf(config *runtimeapi.ContainerConfig, byDefault SeccompProfile) SeccompProfile {
	security := Security(config)
	switch {
	case security.GetPrivileged():
		return SeccompProfile{}
	case security.GetSeccomp() == nil && OldSeccomp(security) == "":
		return byDefault
	}
	return seccompOf(security.GetSeccomp(), OldSeccomp(security))
}

// SandboxSeccompOf returns the filter that a sandbox's request asks for. A kubelet asks for
// the runtime's own profile for every sandbox, also for those of privileged pods.
func SandboxSeccompOf(config *runtimeapi.PodSandboxConfig) SeccompProfile {
	security := SandboxSecurity(config)
	profile := seccompOf(security.GetSeccomp(), OldSeccomp(security))
	if profile.Default && security.GetPrivileged() {
		return SeccompProfile{}
	}
	return profile
}

// IgnoredSeccomp is the profile on the node that a privileged container's request names,
// "" for none: privileged means that no filter is applied, whatever it names.
func IgnoredSeccomp(config *runtimeapi.ContainerConfig) string {
	security := Security(config)
	if !security.GetPrivileged() {
		return ""
	}
	return seccompOf(security.GetSeccomp(), OldSeccomp(security)).Path
}

func seccompOf(profile *runtimeapi.SecurityProfile, old string) SeccompProfile {
	if profile != nil {
		switch profile.GetProfileType() {
		case runtimeapi.SecurityProfile_RuntimeDefault:
			return SeccompProfile{Default: true}
		case runtimeapi.SecurityProfile_Localhost:
			return SeccompProfile{Path: profile.GetLocalhostRef()}
		}
		return SeccompProfile{}
	}
	switch old {
	case "", Unconfined:
		return SeccompProfile{}
	case "runtime/default", "docker/default":
		return SeccompProfile{Default: true}
	}
	return SeccompProfile{Path: strings.TrimPrefix(old, LocalhostPrefix)}
}

// OldSeccomp is the deprecated field of older clients. It counts where there is no profile.
func OldSeccomp(security interface{ GetSeccompProfilePath() string }) string {
	return security.GetSeccompProfilePath()
}
