package ocispec

import (
	"slices"

	"github.com/opencontainers/runtime-spec/specs-go"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berthrun/berth/internal/ocispec/fielderror"
	"github.com/berthrun/berth/internal/ocispec/request"
)

// checkMapped refuses a user or a group that the pod's user namespace does not map.
func checkMapped(n *request.UserNamespace, user User) error {
	if n == nil {
		return nil
	}
	const field = "config.linux.security_context."
	if user.UID >= n.UIDs.Length {
		return fielderror.Invalid(field+"run_as_user", "%d is not mapped in the pod's user namespace, which has %d ids", user.UID, n.UIDs.Length)
	}
	for _, gid := range append(slices.Clone(user.Groups), user.GID) {
		if gid >= n.GIDs.Length {
			return fielderror.Invalid(field+"supplemental_groups", "group %d is not mapped in the pod's user namespace, which has %d ids", gid, n.GIDs.Length)
		}
	}
	return nil
}

// volumeMappings are the id mappings of a volume in the spec's form. The option "idmap"
// alone means those of the container's user namespace.
func volumeMappings(n *request.UserNamespace, m *runtimeapi.Mount) (option string, uids, gids []specs.LinuxIDMapping) {
	if len(m.GetUidMappings()) == 0 {
		return "", nil, nil
	}
	uid, gid := m.GetUidMappings()[0], m.GetGidMappings()[0]
	if n != nil && n.UIDs.Same(uid) && n.GIDs.Same(gid) {
		return "idmap", nil, nil
	}
	return "idmap", specMapping(uid), specMapping(gid)
}

func specMapping(m *runtimeapi.IDMapping) []specs.LinuxIDMapping {
	return []specs.LinuxIDMapping{{ContainerID: m.GetContainerId(), HostID: m.GetHostId(), Size: m.GetLength()}}
}
