package host

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berthrun/berth/internal/criclient"
	"github.com/berthrun/berth/internal/errs"
)

// Pods of user namespaces have their ids in the upper half of what there is, where a
// kubelet, which begins below, comes last.
const (
	idsOfPod  = 1 << 16
	firstSlot = 1 << 14
	slots     = 1 << 14
)

// FreeIDs finds host ids for a user namespace that no pod of the runtime has. It returns the first
// of them, Exhausted where none are left.
func FreeIDs(ctx context.Context, conn *criclient.Conn) (first uint32, err error) {
	resp, err := conn.Runtime.ListPodSandbox(ctx, &runtimeapi.ListPodSandboxRequest{})
	if err != nil {
		return 0, err
	}
	taken := map[uint32]bool{}
	for _, other := range resp.Items {
		status, err := conn.Runtime.PodSandboxStatus(ctx, &runtimeapi.PodSandboxStatusRequest{PodSandboxId: other.Id})
		if errors.Is(err, errs.NotFound) {
			continue
		}
		if err != nil {
			return 0, err
		}
		for _, m := range status.Status.GetLinux().GetNamespaces().GetOptions().GetUsernsOptions().GetUids() {
			for id := uint64(m.HostId) / idsOfPod; id*idsOfPod < uint64(m.HostId)+uint64(m.Length); id++ {
				taken[uint32(id)] = true
			}
		}
	}
	start := rand.Uint32N(slots)
	for i := range uint32(slots) {
		slot := firstSlot + (start+i)%slots
		if !taken[slot] {
			return slot * idsOfPod, nil
		}
	}
	return 0, fmt.Errorf("no ids are left for its user namespace: %w", errs.Exhausted)
}
