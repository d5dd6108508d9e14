package ocispec

import (
	"fmt"
	"math"
	"slices"

	"github.com/opencontainers/runtime-spec/specs-go"
	"google.golang.org/protobuf/proto"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berthrun/berth/internal/errs"
)

// IDMapping is how a pod's user namespace maps ids: Length of them, from 0 on, to
// those from Host on.
type IDMapping struct{ Host, Length uint32 }

// UserNamespace is what a pod's user namespace is made from.
type UserNamespace struct{ UIDs, GIDs IDMapping }

// UserNamespaceOf returns the user namespace that a sandbox asks for, nil for the
// host's. CheckSandbox has passed the request.
func UserNamespaceOf(config *runtimeapi.PodSandboxConfig) *UserNamespace {
	if !hasUserNamespace(config) {
		return nil
	}
	options := sandboxSecurityContext(config).GetNamespaceOptions().GetUsernsOptions()
	uids, gids := options.GetUids()[0], options.GetGids()[0]
	return &UserNamespace{
		UIDs: IDMapping{Host: uids.GetHostId(), Length: uids.GetLength()},
		GIDs: IDMapping{Host: gids.GetHostId(), Length: gids.GetLength()},
	}
}

// hasUserNamespace reports whether the sandbox asks for one, of whatever ids.
func hasUserNamespace(config *runtimeapi.PodSandboxConfig) bool {
	options := sandboxSecurityContext(config).GetNamespaceOptions().GetUsernsOptions()
	return options != nil && options.GetMode() == runtimeapi.NamespaceMode_POD
}

func checkUserNamespace(options *runtimeapi.NamespaceOption) error {
	const field = "config.linux.security_context.namespace_options.userns_options"
	users := options.GetUsernsOptions()
	switch mode := users.GetMode(); {
	case users == nil:
		return nil
	case mode == runtimeapi.NamespaceMode_NODE:
		if len(users.GetUids()) > 0 || len(users.GetGids()) > 0 {
			return invalid(field, "has mappings, but its mode is NODE")
		}
		return nil
	case mode != runtimeapi.NamespaceMode_POD:
		return invalid(field+".mode", "%s cannot be its mode", mode)
	}
	if err := checkIDMappings(field+".uids", users.GetUids()); err != nil {
		return err
	}
	if err := checkIDMappings(field+".gids", users.GetGids()); err != nil {
		return err
	}
	// Neither procfs nor a message queue can be mounted for a namespace that the
	// user namespace does not own, and Kubernetes allows neither.
	for _, ns := range []struct {
		name string
		mode runtimeapi.NamespaceMode
	}{{"pid", options.GetPid()}, {"ipc", options.GetIpc()}} {
		if ns.mode == runtimeapi.NamespaceMode_NODE {
			return invalid(field, "a user namespace cannot be combined with the host's %s namespace", ns.name)
		}
	}
	return nil
}

// checkIDMappings demands one range that begins at the container's root, as every
// runtime does.
func checkIDMappings(field string, mappings []*runtimeapi.IDMapping) error {
	if len(mappings) != 1 {
		return invalid(field, "only one mapping is supported, got %d", len(mappings))
	}
	m := mappings[0]
	switch {
	case m.GetContainerId() != 0:
		return invalid(index(field, 0, "container_id"), "%d: the container's id 0 must be mapped", m.GetContainerId())
	case m.GetLength() == 0:
		return invalid(index(field, 0, "length"), "is 0")
	case uint64(m.GetHostId())+uint64(m.GetLength()) > math.MaxUint32:
		return invalid(index(field, 0, ""), "%d ids from %d on are more than there are", m.GetLength(), m.GetHostId())
	}
	return nil
}

// checkSharedUserNamespace: a container is in its pod's user namespace, and may say
// so.
func checkSharedUserNamespace(own, pods *runtimeapi.UserNamespace) error {
	const field = "config.linux.security_context.namespace_options.userns_options"
	if own == nil || proto.Equal(own, pods) || pods == nil && own.GetMode() == runtimeapi.NamespaceMode_NODE {
		return nil
	}
	return invalid(field, "user namespace config for sandbox is different from container: %v, not %v", pods, own)
}

// checkMapped refuses a user whom the pod's user namespace does not know.
func (n *UserNamespace) checkMapped(user User) error {
	if n == nil {
		return nil
	}
	const field = "config.linux.security_context."
	if user.UID >= n.UIDs.Length {
		return invalid(field+"run_as_user", "%d is not mapped in the pod's user namespace, which has %d ids", user.UID, n.UIDs.Length)
	}
	for _, gid := range append(slices.Clone(user.Groups), user.GID) {
		if gid >= n.GIDs.Length {
			return invalid(field+"supplemental_groups", "group %d is not mapped in the pod's user namespace, which has %d ids", gid, n.GIDs.Length)
		}
	}
	return nil
}

// HostGroups turns a range of the pod's groups, as sysctls have it ("0 1000"), into
// the host's: the kernel takes the numbers of who writes them. Kind Invalid when it
// is none, or goes beyond the pod's groups.
func (n *UserNamespace) HostGroups(groups string) (string, error) {
	if n == nil {
		return groups, nil
	}
	var low, high uint32
	if _, err := fmt.Sscanf(groups, "%d %d", &low, &high); err != nil {
		return "", fmt.Errorf("%q is no range of groups: %w", groups, errs.Invalid)
	}
	if low > high {
		return groups, nil // nobody
	}
	if high >= n.GIDs.Length {
		return "", fmt.Errorf("group %d is not mapped in the pod's user namespace, which has %d ids: %w", high, n.GIDs.Length, errs.Invalid)
	}
	return fmt.Sprint(n.GIDs.Host+low, " ", n.GIDs.Host+high), nil
}

// AllGroups is the range of all groups of the pod, in the host's numbers.
func (n *UserNamespace) AllGroups() string {
	if n == nil {
		return "0 2147483647"
	}
	return fmt.Sprint(n.GIDs.Host, " ", n.GIDs.Host+n.GIDs.Length-1)
}

// mappings are those of a volume as the spec takes them: "idmap" alone means those
// of the container's user namespace.
func (n *UserNamespace) mappings(m *runtimeapi.Mount) (option string, uids, gids []specs.LinuxIDMapping) {
	if len(m.GetUidMappings()) == 0 {
		return "", nil, nil
	}
	uid, gid := m.GetUidMappings()[0], m.GetGidMappings()[0]
	if n != nil && n.UIDs.same(uid) && n.GIDs.same(gid) {
		return "idmap", nil, nil
	}
	return "idmap", specMapping(uid), specMapping(gid)
}

func (m IDMapping) same(as *runtimeapi.IDMapping) bool {
	return as.GetContainerId() == 0 && as.GetHostId() == m.Host && as.GetLength() == m.Length
}

func specMapping(m *runtimeapi.IDMapping) []specs.LinuxIDMapping {
	return []specs.LinuxIDMapping{{ContainerID: m.GetContainerId(), HostID: m.GetHostId(), Size: m.GetLength()}}
}
