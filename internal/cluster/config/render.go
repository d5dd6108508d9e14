package config

import (
	"fmt"
	"net/netip"
	"slices"

	"sigs.k8s.io/yaml"

	"github.com/berthrun/berth/internal/errs"
)

// Render writes a cluster file as Load returned it, so that Load returns it again: a cluster stores
// it for later changes. It is in berth's format, with resolved paths, names and defaults; unknown
// whether it came from a kind file.
func Render(c *Cluster) ([]byte, error) {
	kept := *c
	kept.APIVersion, kept.Kind = APIVersion, Kind
	// The nodes of pools come from the pools again.
	kept.Nodes = slices.DeleteFunc(slices.Clone(c.Nodes), func(n Node) bool { return n.Pool != "" })
	text, err := yaml.Marshal(kept)
	if err != nil {
		return nil, fmt.Errorf("cannot write the cluster file of cluster %s: %w", c.Name, err)
	}
	return text, nil
}

// Clash is a subnet of the cluster that overlaps a network.
type Clash struct {
	// Field is the field of the subnet.
	Field           string
	Subnet, Network netip.Prefix
}

// Inside reports whether the subnet is a small part of a larger network.
func (c Clash) Inside() bool { return c.Network.Bits() < c.Subnet.Bits() }

// Refusal is a clash as an error; what describes the network.
func (c Clash) Refusal(what string) error {
	return fmt.Errorf("%s: %s overlaps %s, %s; choose another: %w", c.Field, c.Subnet, c.Network, what, errs.Invalid)
}

// Clashes returns the cluster's subnets that overlap networks in use.
func (c *Cluster) Clashes(networks []netip.Prefix) ([]Clash, error) {
	var all []Clash
	for _, subnet := range []struct {
		field string
		parse func() ([]netip.Prefix, error)
	}{
		{"networking.podSubnet", c.Networking.PodSubnets},
		{"networking.serviceSubnet", c.Networking.ServiceSubnets},
	} {
		prefixes, err := subnet.parse()
		if err != nil {
			return nil, fmt.Errorf("%s: %w: %w", subnet.field, errs.Invalid, err)
		}
		for _, p := range prefixes {
			for _, n := range networks {
				if p.Overlaps(n) {
					all = append(all, Clash{subnet.field, p, n})
				}
			}
		}
	}
	return all, nil
}
