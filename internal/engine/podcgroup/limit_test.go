package podcgroup

import (
	"errors"
	"testing"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/ocispec"
)

// TestLimitsOfNoPod: limits of a pod without a cgroup of its own are refused, as they would hold for
// the whole host.
func TestLimitsOfNoPod(t *testing.T) {
	res := &runtimeapi.LinuxContainerResources{CpuShares: 2}
	for driver, parents := range map[string][]string{Cgroupfs: {"", "/", "/a/.."}, Systemd: {"", "-.slice"}} {
		m := New(Config{Driver: driver}, nil)
		for _, parent := range parents {
			if err := m.Limit(t.Context(), parent, "resources", res, ocispec.Host{}); !errors.Is(err, errs.State) {
				t.Errorf("%s, %q: %v", driver, parent, err)
			}
		}
	}
}
