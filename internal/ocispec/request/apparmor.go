package request

import (
	"strings"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// AppArmorProfile is the AppArmor profile of a container. The zero value is none.
type AppArmorProfile struct {
	// Default is the runtime's own profile.
	Default bool
	// Name is a profile on the node, "" for none.
	Name string
	// Demanded is true when the request asks for the profile: a host that cannot load it
	// refuses the container. It is false for the profile of a request without one.
	Demanded bool
}

// None reports whether the container runs without a profile.
func (p AppArmorProfile) None() bool { return !p.Default && p.Name == "" }

// Unconfined is the value of the deprecated fields that asks for no profile.
const Unconfined = "unconfined"

// AppArmorOf returns the profile that a container's request asks for. A request without a
// profile gets the runtime's own, unless the container is privileged.
func AppArmorOf(config *runtimeapi.ContainerConfig) AppArmorProfile {
	security := Security(config)
	return appArmorOf(security.GetApparmor(), OldAppArmor(security), security.GetPrivileged())
}

// SandboxAppArmorOf returns the profile that a sandbox's request asks for.
func SandboxAppArmorOf(config *runtimeapi.PodSandboxConfig) AppArmorProfile {
	return appArmorOf(SandboxSecurity(config).GetApparmor(), "", true)
}

func appArmorOf(profile *runtimeapi.SecurityProfile, old string, privileged bool) AppArmorProfile {
	if profile != nil {
		switch profile.GetProfileType() {
		case runtimeapi.SecurityProfile_RuntimeDefault:
			return AppArmorProfile{Default: true, Demanded: true}
		case runtimeapi.SecurityProfile_Localhost:
			return AppArmorProfile{Name: strings.TrimPrefix(profile.GetLocalhostRef(), LocalhostPrefix), Demanded: true}
		}
		return AppArmorProfile{}
	}
	switch name, local := strings.CutPrefix(old, LocalhostPrefix); {
	case local:
		return AppArmorProfile{Name: name, Demanded: true}
	case old == "runtime/default":
		return AppArmorProfile{Default: true, Demanded: true}
	case old == "" && !privileged:
		return AppArmorProfile{Default: true}
	}
	return AppArmorProfile{}
}

// OldAppArmor is the deprecated field of older clients. It counts where there is no profile.
func OldAppArmor(security *runtimeapi.LinuxContainerSecurityContext) string {
	return security.GetApparmorProfile() //nolint:staticcheck // deprecated, still sent
}

// LocalhostPrefix begins the name of a profile on the node.
const LocalhostPrefix = "localhost/"
