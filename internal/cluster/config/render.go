package config

import (
	"fmt"
	"net/netip"
	"slices"

	"sigs.k8s.io/yaml"

	"github.com/berthrun/berth/internal/errs"
)

// Render writes a description as Load returned it, so that Load returns it again: a
// cluster keeps it, for when it is changed. It is in berth's format; that it came from
// a file of kind's is lost, but paths, names and defaults are settled.
func Render(c *Cluster) ([]byte, error) {
	kept := *c
	kept.APIVersion, kept.Kind = APIVersion, Kind
	// The nodes of pools come from the pools again.
	kept.Nodes = slices.DeleteFunc(slices.Clone(c.Nodes), func(n Node) bool { return n.Pool != "" })
	text, err := yaml.Marshal(kept)
	if err != nil {
		return nil, fmt.Errorf("cannot write the description of cluster %s: %w", c.Name, err)
	}
	return text, nil
}

// Overlap tells which of the cluster's subnets overlap networks that are in use, as
// one error of kind Invalid; what says whose those are, in words. nil: none does.
func (c *Cluster) Overlap(networks []netip.Prefix, what string) error {
	for _, subnet := range []struct {
		field string
		parse func() ([]netip.Prefix, error)
	}{
		{"networking.podSubnet", c.Networking.PodSubnets},
		{"networking.serviceSubnet", c.Networking.ServiceSubnets},
	} {
		prefixes, err := subnet.parse()
		if err != nil {
			return fmt.Errorf("%s: %w: %w", subnet.field, errs.Invalid, err)
		}
		for _, p := range prefixes {
			if i := slices.IndexFunc(networks, p.Overlaps); i >= 0 {
				return fmt.Errorf("%s: %s overlaps %s, %s; choose another: %w", subnet.field, p, networks[i], what, errs.Invalid)
			}
		}
	}
	return nil
}
