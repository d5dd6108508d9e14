package doctor

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/berthrun/berth/internal/doctor"
	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/hostnet"
	"github.com/berthrun/berth/internal/provision/cniconf"
)

// podRanges reports ranges for pods that overlap addresses and routes of the host.
func podRanges(_ context.Context, m *Machine, r *doctor.Report) error {
	if m.HostNet == nil {
		r.NotNeeded("the host's addresses and routes are not examined here")
		return nil
	}
	host, err := m.HostNet()
	if err != nil {
		return err
	}
	if m.onlyBerth() && m.Berth.Network != "cni" {
		for _, subnet := range m.subnetsOfBerth(host) {
			of := hostnet.Range{Subnet: subnet, Own: hostnet.Own{Links: []string{m.Berth.Bridge}}}
			reportOverlaps(host, of, fmt.Sprintf("the subnet %s of berth's network", subnet), "set network.subnets in "+m.Berth.orFile()+" to another subnet", r)
		}
		return nil
	}
	config, err := cniconf.First(m.host.Files(), m.cniDir())
	if errors.Is(err, errs.Invalid) {
		return nil // the check of the network reports it
	}
	for _, of := range hostnet.RangesOf(config.Content) {
		reportOverlaps(host, of, fmt.Sprintf("the range %s of host-local in %s", of, config.File), "choose another range in "+config.File, r)
	}
	return err
}

// orFile is the configuration of berth, also where there is none yet.
func (b Berth) orFile() string {
	if b.File == "" {
		return "/etc/berth/berth.toml"
	}
	return b.File
}

// subnetsOfBerth are those of the configuration, and those that the bridge has.
func (m *Machine) subnetsOfBerth(host hostnet.Host) []netip.Prefix {
	var all []netip.Prefix
	for _, text := range m.Berth.Subnets {
		if subnet, err := netip.ParsePrefix(text); err == nil {
			all = append(all, subnet.Masked())
		}
	}
	for _, a := range host.Addresses {
		subnet := netip.PrefixFrom(a.Addr, a.Bits).Masked()
		if a.Link == m.Berth.Bridge && !slices.Contains(all, subnet) {
			all = append(all, subnet)
		}
	}
	return all
}

// reportOverlaps reports what a range overlaps. what begins a sentence about it.
func reportOverlaps(host hostnet.Host, of hostnet.Range, what, fix string, r *doctor.Report) {
	for _, o := range host.Overlaps(of.Subnet, of.Own) {
		if o.Severe() {
			r.Add(problem, of.String(), fmt.Sprintf("%s contains %s: a pod or its bridge may take it", what, o), fix)
			continue
		}
		r.Add(warning, of.String(), fmt.Sprintf("%s overlaps %s: pods and the host may not reach the addresses that both have", what, o), fix+", or remove the route")
	}
}
