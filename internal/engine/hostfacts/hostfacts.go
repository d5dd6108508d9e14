// Package hostfacts finds out what this host can do for containers.
package hostfacts

import (
	"fmt"
	"os"
	"strings"

	"github.com/berthrun/berth/internal/ocispec"
	"github.com/berthrun/berth/internal/sys/cgroup"
	"github.com/berthrun/berth/internal/sys/sysmount"
	"github.com/berthrun/berth/internal/sys/sysproc"
)

// Find finds out what the host can do. An engine adapts what it may not do itself (oom scores,
// limits).
func Find(tree *cgroup.Tree) (ocispec.Host, error) {
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return ocispec.Host{}, fmt.Errorf("cannot read our own status: %w", err)
	}
	own, err := sysproc.ReadCapabilities()
	if err != nil {
		return ocispec.Host{}, err
	}
	host := ocispec.Host{
		Capabilities: own.Bounding,

		CgroupV2:  tree.V2,
		Hugetlb:   tree.Has("hugetlb"),
		SwapLimit: tree.CanLimitSwap(),

		RecursiveReadOnly: sysmount.ProbeMountAttributes() == nil,
	}
	for line := range strings.Lines(string(status)) {
		host.Seccomp = host.Seccomp || strings.HasPrefix(line, "Seccomp:")
	}
	return host, nil
}
