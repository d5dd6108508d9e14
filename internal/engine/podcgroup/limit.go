package podcgroup

import (
	"context"
	"fmt"
	"path"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berthrun/berth/internal/engine/faultfield"
	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/ocispec"
	"github.com/berthrun/berth/internal/sys/cgroup"
)

// Limit changes all limits of a pod's cgroup or none; field is the request's field that holds
// them. It refuses the root cgroup, which belongs to no pod.
func (m *Manager) Limit(ctx context.Context, parent, field string, res *runtimeapi.LinuxContainerResources, host ocispec.Host) error {
	limits, err := ocispec.Update(field, res, host)
	if err != nil {
		return err
	}
	if limits.Memory != nil && res.GetMemorySwapLimitInBytes() == 0 {
		// A pod's containers may swap, each as far as its own limit says.
		limits.Memory.Swap = nil
	}
	slice := ""
	if m.systemd() {
		slice = parent
	}
	if slice == "-.slice" || path.Clean("/"+parent) == "/" {
		return fmt.Errorf("the sandbox has no cgroup of its own: %w", errs.State)
	}
	paths, err := m.Paths(parent)
	if err != nil {
		return err
	}
	if err := cgroup.Limit(ctx, paths, slice, limits); err != nil {
		return faultfield.Limit(field, err)
	}
	return nil
}
