package check

import (
	"errors"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berthrun/berth/internal/ocispec/fielderror"
	"github.com/berthrun/berth/internal/ocispec/request"
)

func checkUser(security *runtimeapi.LinuxContainerSecurityContext) error {
	const field = "config.linux.security_context."
	user, name, group := security.GetRunAsUser(), security.GetRunAsUsername(), security.GetRunAsGroup()
	if user != nil && name != "" {
		return fielderror.Invalid(field+"run_as_username", "%q is specified together with run_as_user", name)
	}
	if group != nil && user == nil && name == "" {
		return fielderror.Invalid(field+"run_as_group", "is specified without run_as_user or run_as_username")
	}
	var nameErr error
	if name != "" {
		_, _, nameErr = request.ParseUser(field+"run_as_username", name)
	}
	return errors.Join(nameErr, checkIDValue(field+"run_as_user", user), checkIDValue(field+"run_as_group", group))
}

func checkIDValue(field string, id *runtimeapi.Int64Value) error {
	if v := id.GetValue(); v < 0 || v > request.MaxID {
		return fielderror.Invalid(field, "%d: ids are in the range 0-%d", v, request.MaxID)
	}
	return nil
}

func checkGroups(groups []int64, policy runtimeapi.SupplementalGroupsPolicy) error {
	const field = "config.linux.security_context.supplemental_groups"
	if len(groups) > request.MaxGroups {
		return fielderror.Invalid(field, "%d groups are more than the kernel's %d", len(groups), request.MaxGroups)
	}
	for i, gid := range groups {
		if gid < 0 || gid > request.MaxID {
			return fielderror.Invalid(fielderror.Index(field, i, ""), "%d: ids are in the range 0-%d", gid, request.MaxID)
		}
	}
	if _, known := runtimeapi.SupplementalGroupsPolicy_name[int32(policy)]; !known {
		return fielderror.Invalid(field+"_policy", "unknown policy %d", policy)
	}
	return nil
}
