package check

import (
	"path"
	"strings"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berthrun/berth/internal/ocispec/fielderror"
	"github.com/berthrun/berth/internal/ocispec/request"
)

// checkSeccomp judges the profile and, where there is none, its deprecated form.
func checkSeccomp(profile *runtimeapi.SecurityProfile, old string) error {
	const field = "config.linux.security_context.seccomp"
	if profile == nil {
		switch local, isLocal := strings.CutPrefix(old, "localhost/"); {
		case old == "", old == "unconfined", old == "runtime/default", old == "docker/default":
			return nil
		case isLocal && path.IsAbs(local) && !request.HasControl(local):
			return checkLength("config.linux.security_context.seccomp_profile_path", local)
		}
		return fielderror.Invalid("config.linux.security_context.seccomp_profile_path", "unknown seccomp profile option: %q", old)
	}
	ref := profile.GetLocalhostRef()
	switch profile.GetProfileType() {
	case runtimeapi.SecurityProfile_Unconfined, runtimeapi.SecurityProfile_RuntimeDefault:
		if ref != "" {
			return fielderror.Invalid(field+".localhost_ref", "%q is set, but the profile type is %s", ref, profile.GetProfileType())
		}
	case runtimeapi.SecurityProfile_Localhost:
		if !path.IsAbs(ref) || request.HasControl(ref) {
			return fielderror.Invalid(field+".localhost_ref", "%q is not an absolute path", ref)
		}
		return checkLength(field+".localhost_ref", ref)
	default:
		return fielderror.Invalid(field+".profile_type", "unknown seccomp profile option: %q", profile.GetProfileType())
	}
	return nil
}

// maxProfileName bounds the name of a profile.
const maxProfileName = 4096

// checkAppArmor judges the profile and, where there is none, its deprecated form.
func checkAppArmor(profile *runtimeapi.SecurityProfile, old string) error {
	const field = "config.linux.security_context.apparmor"
	if profile == nil {
		name, local := strings.CutPrefix(old, request.LocalhostPrefix)
		switch {
		case local:
			return checkProfileName(field+"_profile", name)
		case old == "", old == "runtime/default", old == request.Unconfined:
			return nil
		}
		return fielderror.Invalid(field+"_profile", "unknown profile %q", old)
	}
	ref := profile.GetLocalhostRef()
	switch profile.GetProfileType() {
	case runtimeapi.SecurityProfile_RuntimeDefault, runtimeapi.SecurityProfile_Unconfined:
		if ref != "" {
			return fielderror.Invalid(field+".localhost_ref", "%q is set, but the profile type is %s", ref, profile.GetProfileType())
		}
		return nil
	case runtimeapi.SecurityProfile_Localhost:
		return checkProfileName(field+".localhost_ref", strings.TrimPrefix(ref, request.LocalhostPrefix))
	}
	return fielderror.Invalid(field+".profile_type", "unknown type %d", profile.GetProfileType())
}

// ProfileName judges the name of a profile that is loaded. Kind Invalid.
func ProfileName(name string) error { return checkProfileName("name", name) }

func checkProfileName(field, name string) error {
	switch {
	case name == "":
		return fielderror.Invalid(field, "names no profile")
	case len(name) > maxProfileName:
		return fielderror.Invalid(field, "is longer than %d bytes", maxProfileName)
	case request.HasControl(name) || name == request.Unconfined:
		return fielderror.Invalid(field, "%q is not the name of a profile", name)
	}
	return nil
}
