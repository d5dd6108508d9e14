package ocispec

import (
	"strings"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// AppArmorProfile is which profile a container asks for.
type AppArmorProfile struct {
	// Default is the runtime's own profile.
	Default bool
	// Name is a profile on the node, "" for none.
	Name string
	// Demanded: the request asks for it, so that a host which cannot have it refuses.
	// Else it is what a container gets that asks for nothing.
	Demanded bool
}

// None tells that the container is to run without a profile.
func (p AppArmorProfile) None() bool { return !p.Default && p.Name == "" }

const unconfined = "unconfined"

// AppArmorOf tells which profile a container's request asks for. One that says
// nothing has the runtime's own, unless it is privileged.
func AppArmorOf(config *runtimeapi.ContainerConfig) (AppArmorProfile, error) {
	security := securityContext(config)
	return appArmorOf(security.GetApparmor(), oldAppArmor(security), security.GetPrivileged())
}

// SandboxAppArmorOf does the same for a sandbox's.
func SandboxAppArmorOf(config *runtimeapi.PodSandboxConfig) (AppArmorProfile, error) {
	return appArmorOf(sandboxSecurityContext(config).GetApparmor(), "", true)
}

func appArmorOf(profile *runtimeapi.SecurityProfile, old string, privileged bool) (AppArmorProfile, error) {
	if err := checkAppArmor(profile, old); err != nil {
		return AppArmorProfile{}, err
	}
	if profile != nil {
		switch profile.GetProfileType() {
		case runtimeapi.SecurityProfile_RuntimeDefault:
			return AppArmorProfile{Default: true, Demanded: true}, nil
		case runtimeapi.SecurityProfile_Localhost:
			return AppArmorProfile{Name: strings.TrimPrefix(profile.GetLocalhostRef(), localhostPrefix), Demanded: true}, nil
		}
		return AppArmorProfile{}, nil
	}
	switch name, local := strings.CutPrefix(old, localhostPrefix); {
	case local:
		return AppArmorProfile{Name: name, Demanded: true}, nil
	case old == "runtime/default":
		return AppArmorProfile{Default: true, Demanded: true}, nil
	case old == "" && !privileged:
		return AppArmorProfile{Default: true}, nil
	}
	return AppArmorProfile{}, nil
}

// oldAppArmor is the field that older clients use; a profile hides it.
func oldAppArmor(security *runtimeapi.LinuxContainerSecurityContext) string {
	return security.GetApparmorProfile() //nolint:staticcheck // deprecated, still sent
}

const localhostPrefix = "localhost/"

// maxProfileName bounds the name of a profile.
const maxProfileName = 4096

// checkAppArmor judges the profile and, where there is none, its deprecated form.
func checkAppArmor(profile *runtimeapi.SecurityProfile, old string) error {
	const field = "config.linux.security_context.apparmor"
	if profile == nil {
		name, local := strings.CutPrefix(old, localhostPrefix)
		switch {
		case local:
			return checkProfileName(field+"_profile", name)
		case old == "", old == "runtime/default", old == unconfined:
			return nil
		}
		return invalid(field+"_profile", "unknown profile %q", old)
	}
	ref := profile.GetLocalhostRef()
	switch profile.GetProfileType() {
	case runtimeapi.SecurityProfile_RuntimeDefault, runtimeapi.SecurityProfile_Unconfined:
		if ref != "" {
			return invalid(field+".localhost_ref", "%q is set, but the profile type is %s", ref, profile.GetProfileType())
		}
		return nil
	case runtimeapi.SecurityProfile_Localhost:
		return checkProfileName(field+".localhost_ref", strings.TrimPrefix(ref, localhostPrefix))
	}
	return invalid(field+".profile_type", "unknown type %d", profile.GetProfileType())
}

// CheckProfileName judges the name of a profile that is loaded. Kind Invalid.
func CheckProfileName(name string) error { return checkProfileName("name", name) }

func checkProfileName(field, name string) error {
	switch {
	case name == "":
		return invalid(field, "names no profile")
	case len(name) > maxProfileName:
		return invalid(field, "is longer than %d bytes", maxProfileName)
	case hasControl(name) || name == unconfined:
		return invalid(field, "%q is no name of a profile", name)
	}
	return nil
}
