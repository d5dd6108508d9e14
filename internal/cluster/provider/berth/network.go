package berth

import (
	"context"
	"encoding/json"
	"fmt"
	"net/netip"
	"strings"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berthrun/berth/internal/cluster/provider"
	"github.com/berthrun/berth/internal/errs"
)

// EnsureNetwork returns the pods' network, which all nodes are on: berth has only one, under every
// name. Addresses can be chosen on the built-in network only.
func (e *Provider) EnsureNetwork(ctx context.Context, name string) (provider.Network, error) {
	n := provider.Network{Name: name, StableV4: true, StableV6: true}
	status, err := e.conn.Runtime.Status(ctx, &runtimeapi.StatusRequest{Verbose: true})
	if err != nil {
		return n, fmt.Errorf("cannot read berth's network: %w", err)
	}
	for _, condition := range status.GetStatus().GetConditions() {
		if !condition.GetStatus() {
			return n, fmt.Errorf("berth is not ready (%s): %s: %w", condition.GetType(), condition.GetMessage(), errs.Unavailable)
		}
	}
	var info struct{ Mode, Subnets string }
	if err := json.Unmarshal([]byte(status.GetInfo()["network"]), &info); err != nil {
		return n, fmt.Errorf("berth's report of its network is not JSON: %w", err)
	}
	if info.Mode != "builtin" {
		return n, fmt.Errorf("berth has its network from CNI plugins (mode %q), and nodes need addresses that stay theirs; run a berth with `--network builtin`, and name its socket with BERTH_ENDPOINT: %w", info.Mode, errs.Unsupported)
	}
	for text := range strings.SplitSeq(info.Subnets, ",") {
		subnet, err := netip.ParsePrefix(text)
		if err != nil {
			return n, fmt.Errorf("berth's report of its subnets is %q: %w", info.Subnets, err)
		}
		n.Subnets = append(n.Subnets, subnet)
	}
	return n, nil
}

// RemoveNetwork does nothing: the network is berth's own.
func (e *Provider) RemoveNetwork(context.Context, string) error { return nil }
