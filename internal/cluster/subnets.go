package cluster

import (
	"fmt"

	"github.com/berthrun/berth/internal/cluster/plan"
)

// checkSubnets refuses subnets of the cluster that overlap those of its nodes, which nothing
// would reach any more, or networks that this host is on: pods and nodes would not reach them.
// One that is a small part of a large network, as a VPN has it, hides no more than that part.
func (m *creation) checkSubnets(host plan.Host) error {
	clashes, err := m.Cluster.Clashes(m.network.Subnets)
	if err != nil {
		return err
	}
	if len(clashes) > 0 {
		return clashes[0].Refusal(fmt.Sprintf("the network %s of %s, which nodes are on", m.network.Name, m.Provider.Name()))
	}
	if clashes, err = m.Cluster.Clashes(host.Routes); err != nil {
		return err
	}
	for _, c := range clashes {
		if !c.Inside() {
			return c.Refusal("to which this host has a route")
		}
		m.Warn(fmt.Sprintf("%s: %s is a part of %s, to which this host has a route; nodes and pods will not reach that part", c.Field, c.Subnet, c.Network))
	}
	return nil
}
