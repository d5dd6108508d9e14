package request

import (
	"fmt"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berthrun/berth/internal/errs"
)

// IDMapping is how a pod's user namespace maps ids: Length of them, from 0 on, to
// those from Host on.
type IDMapping struct{ Host, Length uint32 }

// UserNamespace is what a pod's user namespace is made from.
type UserNamespace struct{ UIDs, GIDs IDMapping }

// UserNamespaceOf returns the user namespace that a sandbox asks for, nil for the
// host's. Package check has passed the request.
func UserNamespaceOf(config *runtimeapi.PodSandboxConfig) *UserNamespace {
	if !HasUserNamespace(config) {
		return nil
	}
	options := SandboxSecurity(config).GetNamespaceOptions().GetUsernsOptions()
	uids, gids := options.GetUids()[0], options.GetGids()[0]
	return &UserNamespace{
		UIDs: IDMapping{Host: uids.GetHostId(), Length: uids.GetLength()},
		GIDs: IDMapping{Host: gids.GetHostId(), Length: gids.GetLength()},
	}
}

// HasUserNamespace reports whether the sandbox asks for one, of whatever ids.
func HasUserNamespace(config *runtimeapi.PodSandboxConfig) bool {
	options := SandboxSecurity(config).GetNamespaceOptions().GetUsernsOptions()
	return options != nil && options.GetMode() == runtimeapi.NamespaceMode_POD
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
		return "", fmt.Errorf("%q is not a range of groups: %w", groups, errs.Invalid)
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

// Same reports whether a mapping of a request is m.
func (m IDMapping) Same(as *runtimeapi.IDMapping) bool {
	return as.GetContainerId() == 0 && as.GetHostId() == m.Host && as.GetLength() == m.Length
}
