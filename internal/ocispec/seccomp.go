package ocispec

import (
	"path"
	"strings"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// SeccompProfile is which filter a container asks for.
type SeccompProfile struct {
	// Default is the runtime's own profile.
	Default bool
	// Path is a profile on the node, "" for none.
	Path string
}

// SeccompOf tells which filter a container's request asks for; the zero value is none.
// One that says nothing has the given default, and a privileged one none.
func SeccompOf(config *runtimeapi.ContainerConfig, byDefault SeccompProfile) (SeccompProfile, error) {
	security := securityContext(config)
	profile, err := seccompOf(security.GetSeccomp(), oldSeccomp(security))
	switch {
	case security.GetPrivileged():
		profile = SeccompProfile{}
	case err == nil && security.GetSeccomp() == nil && oldSeccomp(security) == "":
		profile = byDefault
	}
	return profile, err
}

// SandboxSeccompOf does the same for a sandbox's. A kubelet asks for the runtime's own
// profile for every sandbox, also where its containers are to be privileged.
func SandboxSeccompOf(config *runtimeapi.PodSandboxConfig) (SeccompProfile, error) {
	security := sandboxSecurityContext(config)
	profile, err := seccompOf(security.GetSeccomp(), oldSeccomp(security))
	if profile.Default && security.GetPrivileged() {
		profile = SeccompProfile{}
	}
	return profile, err
}

// IgnoredSeccomp is the profile on the node that a privileged container's request names,
// "" for none: privileged means that no filter is applied, whatever it names.
func IgnoredSeccomp(config *runtimeapi.ContainerConfig) string {
	security := securityContext(config)
	profile, err := seccompOf(security.GetSeccomp(), oldSeccomp(security))
	if err != nil || !security.GetPrivileged() {
		return ""
	}
	return profile.Path
}

func seccompOf(profile *runtimeapi.SecurityProfile, old string) (SeccompProfile, error) {
	if err := checkSeccomp(profile, old); err != nil {
		return SeccompProfile{}, err
	}
	if profile != nil {
		switch profile.GetProfileType() {
		case runtimeapi.SecurityProfile_RuntimeDefault:
			return SeccompProfile{Default: true}, nil
		case runtimeapi.SecurityProfile_Localhost:
			return SeccompProfile{Path: profile.GetLocalhostRef()}, nil
		}
		return SeccompProfile{}, nil
	}
	switch old {
	case "", unconfined:
		return SeccompProfile{}, nil
	case "runtime/default", "docker/default":
		return SeccompProfile{Default: true}, nil
	}
	return SeccompProfile{Path: strings.TrimPrefix(old, localhostPrefix)}, nil
}

// oldSeccomp is the field that older clients use; a profile hides it.
func oldSeccomp(security interface{ GetSeccompProfilePath() string }) string {
	return security.GetSeccompProfilePath()
}

// checkSeccomp judges the profile and, where there is none, its deprecated form.
func checkSeccomp(profile *runtimeapi.SecurityProfile, old string) error {
	const field = "config.linux.security_context.seccomp"
	if profile == nil {
		switch local, isLocal := strings.CutPrefix(old, "localhost/"); {
		case old == "", old == "unconfined", old == "runtime/default", old == "docker/default":
			return nil
		case isLocal && path.IsAbs(local) && !hasControl(local):
			return checkLength("config.linux.security_context.seccomp_profile_path", local)
		}
		return invalid("config.linux.security_context.seccomp_profile_path", "unknown profile %q", old)
	}
	ref := profile.GetLocalhostRef()
	switch profile.GetProfileType() {
	case runtimeapi.SecurityProfile_Unconfined, runtimeapi.SecurityProfile_RuntimeDefault:
		if ref != "" {
			return invalid(field+".localhost_ref", "%q is set, but the profile type is %s", ref, profile.GetProfileType())
		}
	case runtimeapi.SecurityProfile_Localhost:
		if !path.IsAbs(ref) || hasControl(ref) {
			return invalid(field+".localhost_ref", "%q is not an absolute path", ref)
		}
		return checkLength(field+".localhost_ref", ref)
	default:
		return invalid(field+".profile_type", "unknown type %d", profile.GetProfileType())
	}
	return nil
}
