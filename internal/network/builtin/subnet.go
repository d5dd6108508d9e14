package builtin

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/hostnet"
	"github.com/berthrun/berth/internal/network"
)

// settleSubnets decides the subnets of this run. While sandboxes are attached these are their
// subnets, else the configured ones, else those that the kubelet sent too late last time, else
// those chosen before, else new ones.
func (n *Network) settleSubnets() error {
	choice, err := n.chosen.Get(choiceID)
	if errors.Is(err, errs.NotFound) {
		choice, err = &subnetChoice{}, n.chosen.Create(choiceID, &subnetChoice{})
	}
	if err != nil {
		return err
	}
	if err := network.CheckSubnets(n.cfg.Subnets); err != nil {
		return fmt.Errorf("network.subnets: %w", err)
	}
	want, next, err := n.wantedSubnets(choice)
	if err != nil {
		return err
	}
	from := sent
	switch {
	case len(n.records.IDs()) > 0 || len(n.cfg.Subnets) == 0 && !n.cfg.AwaitPodCIDR && len(choice.Next) == 0:
		from = running
	case len(n.cfg.Subnets) > 0:
		from = configured
	}
	if err := n.checkHost(want, from); err != nil {
		return err
	}
	own := choice.Own
	if from == configured || !slices.Equal(want, choice.Subnets) {
		own = !slices.Equal(want, choice.Next) && !slices.Equal(want, choice.PodCIDR)
	}
	return n.useSubnets(want, next, own)
}

func (n *Network) wantedSubnets(choice *subnetChoice) (want, next []netip.Prefix, err error) {
	preferred := choice.Next
	if len(n.cfg.Subnets) > 0 {
		preferred = sortFamilies(n.cfg.Subnets)
	}
	if current := n.attachedSubnets(choice); len(current) > 0 {
		if len(preferred) > 0 && !slices.Equal(preferred, current) {
			next = preferred
		}
		return current, next, nil
	}
	if len(preferred) > 0 {
		return preferred, nil, nil
	}
	if n.cfg.AwaitPodCIDR {
		return choice.sent(n.cfg.Instance), nil, nil
	}
	taken, err := n.host.takenPrefixes(n.cfg.Bridge)
	if err != nil {
		return nil, nil, err
	}
	if len(choice.Subnets) > 0 && !slices.ContainsFunc(choice.Subnets, func(p netip.Prefix) bool { return overlapsAny(p, taken) }) {
		return choice.Subnets, nil, nil
	}
	want, err = chooseSubnets(n.cfg.Instance, taken, n.host.hasIPv6())
	return want, nil, err
}

// attachedSubnets returns the subnets of attached sandboxes, none without such. Without a record of
// the choice they follow from the addresses of the sandboxes.
func (n *Network) attachedSubnets(choice *subnetChoice) []netip.Prefix {
	attached := n.records.All()
	if len(attached) == 0 {
		return nil
	}
	if len(choice.Subnets) > 0 {
		return choice.Subnets
	}
	var subnets []netip.Prefix
	for _, p := range attached[0].Addrs {
		subnets = append(subnets, p.Masked())
	}
	return subnets
}

// useSubnets records subnets and makes them the current ones.
func (n *Network) useSubnets(subnets, next []netip.Prefix, own bool) error {
	if err := n.writeChoice(func(c *subnetChoice) { c.Subnets, c.Next, c.Own = subnets, next, own }); err != nil {
		return err
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.setPools(subnets)
	for _, rec := range n.records.All() {
		for _, addr := range rec.Addrs {
			for _, p := range n.pools {
				if p.subnet.Contains(addr.Addr()) {
					p.reserve(addr.Addr())
				}
			}
		}
		if !rec.Released {
			if err := n.ports.Take(rec.holder(), rec.sockets()); err != nil {
				n.log.Error("two attachments have the same host port", "error", err)
			}
		}
	}
	n.notePending(next)
	return nil
}

func (n *Network) writeChoice(change func(*subnetChoice)) error {
	_, err := n.chosen.Update(choiceID, func(c *subnetChoice) error {
		change(c)
		return nil
	})
	if err != nil {
		return fmt.Errorf("cannot record the network's subnets: %w", err)
	}
	return nil
}

// setPools starts with all addresses free. The caller holds n.mu.
func (n *Network) setPools(subnets []netip.Prefix) {
	n.subnets, n.pools = subnets, nil
	for _, s := range subnets {
		p := newPool(s)
		p.taken = n.cfg.Taken
		n.pools = append(n.pools, p)
	}
}

// notePending sets what Info says of subnets that wait for a restart. The caller holds n.mu.
func (n *Network) notePending(next []netip.Prefix) {
	delete(n.notes, "pendingSubnets")
	if len(next) > 0 {
		n.notes["pendingSubnets"] = joinPrefixes(next) + " will be used at the next start with nothing attached"
	}
}

// SetPodCIDR uses the first range of each family: now when nothing is attached, else from the next
// start without attachments on. Configured subnets stay. Kind Invalid for what is no list of
// subnets.
func (n *Network) SetPodCIDR(ctx context.Context, cidr string) error {
	if err := n.ready(ctx); err != nil {
		return err
	}
	want, err := parseCIDRs(cidr)
	if err != nil || len(want) == 0 {
		return err
	}
	if len(n.cfg.Subnets) > 0 {
		// A later start without configured subnets uses it.
		if err := n.writeChoice(func(c *subnetChoice) { c.PodCIDR = want }); err != nil {
			return err
		}
		n.mu.Lock()
		defer n.mu.Unlock()
		n.notes["podCIDR"] = joinPrefixes(want) + " was asked for; the configured subnets stay"
		return nil
	}
	if err := n.checkHost(want, sent); err != nil {
		return err
	}
	return n.host.do(func() error {
		if adopted, err := n.rebuildFor(want); err != nil || !adopted {
			return err
		}
		n.fire.EnsureLegacy(ctx)
		return nil
	})
}

// rebuildFor is adoptIfIdle, and makes what the subnets need.
func (n *Network) rebuildFor(want []netip.Prefix) (adopted bool, err error) {
	n.repairing.Lock()
	defer n.repairing.Unlock()
	if adopted, err = n.adoptIfIdle(want); err != nil || !adopted {
		return false, err
	}
	return true, n.build()
}

// adoptIfIdle makes want the current subnets when no address is taken, and
// otherwise those of the next start.
func (n *Network) adoptIfIdle(want []netip.Prefix) (bool, error) {
	n.mu.Lock()
	current := n.subnets
	idle := n.idlePools() && !slices.Equal(want, current)
	n.mu.Unlock()
	if idle {
		if err := n.writeChoice(func(c *subnetChoice) { *c = subnetChoice{Subnets: want, PodCIDR: want} }); err != nil {
			return false, err
		}
		n.mu.Lock()
		// An address may have been taken while the disk was busy.
		if idle = n.idlePools(); idle {
			n.setPools(want)
			n.notePending(nil)
		}
		n.mu.Unlock()
	}
	if idle {
		return true, nil
	}
	next := want
	if slices.Equal(want, current) {
		next = nil
	}
	if err := n.writeChoice(func(c *subnetChoice) { c.Subnets, c.Next, c.PodCIDR = current, next, want }); err != nil {
		return false, err
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.notePending(next)
	return false, nil
}

// idlePools reports whether no address is taken. The caller holds n.mu.
func (n *Network) idlePools() bool {
	return !slices.ContainsFunc(n.pools, func(p *pool) bool { return len(p.used) > 0 })
}

// parseCIDRs reads the kubelet's comma separated list and keeps the first range of
// each family, IPv4 first.
func parseCIDRs(list string) ([]netip.Prefix, error) {
	var first []netip.Prefix
	for text := range strings.SplitSeq(list, ",") {
		if text = strings.TrimSpace(text); text == "" {
			continue
		}
		p, err := netip.ParsePrefix(text)
		if err != nil {
			return nil, fmt.Errorf("pod CIDR %q is no subnet: %w", text, errs.Invalid)
		}
		if !slices.ContainsFunc(first, func(f netip.Prefix) bool { return f.Addr().Is4() == p.Addr().Is4() }) {
			first = append(first, p.Masked())
		}
	}
	if err := network.CheckSubnets(first); err != nil {
		return nil, err
	}
	return sortFamilies(first), nil
}

func sortFamilies(subnets []netip.Prefix) []netip.Prefix {
	sorted := slices.Clone(subnets)
	slices.SortFunc(sorted, func(a, b netip.Prefix) int { return a.Addr().BitLen() - b.Addr().BitLen() })
	return sorted
}

func overlapsAny(p netip.Prefix, taken []netip.Prefix) bool {
	return slices.ContainsFunc(taken, p.Overlaps)
}

// chooseSubnets picks a /22 (as many addresses as a bridge has ports) and a ULA
// /64. The first candidate follows from the instance's name, so that an instance
// usually gets the same subnets on every host; the next ones are tried in turn.
func chooseSubnets(instance string, taken []netip.Prefix, ipv6 bool) ([]netip.Prefix, error) {
	sum := sha256.Sum256([]byte("berth subnet " + instance))
	seed := binary.BigEndian.Uint32(sum[:])
	v4, err := choose4(seed, taken)
	if err != nil {
		return nil, err
	}
	if !ipv6 {
		return []netip.Prefix{v4}, nil
	}
	// fdXX:XXXX:XXXX::/48 has 65,536 subnets; one of them is free.
	b := [16]byte{0: 0xfd}
	copy(b[1:6], sum[4:9])
	for i := range uint32(1 << 16) {
		binary.BigEndian.PutUint16(b[6:], uint16(i))
		if v6 := netip.PrefixFrom(netip.AddrFrom16(b), 64); !overlapsAny(v6, taken) {
			return []netip.Prefix{v4, v6}, nil
		}
	}
	return nil, fmt.Errorf("cannot choose an IPv6 subnet: the host uses every candidate; configure one: %w", errs.Exhausted)
}

// choose4 looks where clusters and other runtimes seldom are first.
func choose4(seed uint32, taken []netip.Prefix) (netip.Prefix, error) {
	for _, space := range []string{"10.160.0.0/11", "172.20.0.0/14", "192.168.0.0/16", "10.0.0.0/8"} {
		whole := netip.MustParsePrefix(space)
		count := uint32(1) << (22 - whole.Bits())
		for i := range count {
			offset := uint64((seed+i)%count) << 10
			if p := netip.PrefixFrom(at(whole, offset), 22); !overlapsAny(p, taken) {
				return p, nil
			}
		}
	}
	return netip.Prefix{}, fmt.Errorf("cannot choose an IPv4 subnet: the host uses every candidate; configure one: %w", errs.Exhausted)
}

// CheckOverlaps refuses configured subnets that contain the gateway of one of the host's routes, or an address of the host
// on another link than the bridge: the bridge or a pod would take it. With adopted, addresses are no reason: the links of a
// former runtime still have addresses of the subnet. The error is kind Invalid, and names the subnet, the address and the
// link.
func CheckOverlaps(h hostnet.Host, bridge string, subnets []netip.Prefix, adopted bool) error {
	for _, s := range subnets {
		for _, o := range h.Overlaps(s, hostnet.Own{Links: []string{bridge}}) {
			if o.Severe() && (!adopted || o.IsGateway()) {
				return fmt.Errorf("subnet %s contains %s: the bridge %s or a pod would take it; choose a subnet without it: %w", s, o, bridge, errs.Invalid)
			}
		}
	}
	return nil
}

// origin is where subnets come from.
type origin int

const (
	running    origin = iota // pods have addresses of them, or berth has chosen them
	configured               // network.subnets
	sent                     // the kubelet's pod CIDR
)

// checkHost refuses subnets that would take addresses of the host, and logs what else of the host they overlap. Running
// pods keep theirs. A kubelet's pod CIDR is refused for a gateway alone: the links of a former runtime, which still have
// addresses of it, are no reason to keep the node from its pods. That holds for adopted pods as well.
func (n *Network) checkHost(subnets []netip.Prefix, from origin) error {
	h, err := hostnet.Read(n.host.handle)
	if err != nil {
		return err
	}
	if from == configured {
		if err := CheckOverlaps(h, n.cfg.Bridge, subnets, n.cfg.Taken != nil); err != nil {
			return fmt.Errorf("network.subnets: %w", err)
		}
	}
	for _, s := range subnets {
		for _, o := range h.Overlaps(s, hostnet.Own{Links: []string{n.cfg.Bridge}}) {
			if from == sent && o.IsGateway() {
				return fmt.Errorf("the pod CIDR %s contains %s: the bridge %s or a pod would take it; give the node another pod CIDR, or the host another gateway: %w", s, o, n.cfg.Bridge, errs.Invalid)
			}
			n.log.Warn("a subnet of the built-in network overlaps the host: pods and the host may not reach the addresses that both have; choose another subnet, or remove what overlaps it",
				"subnet", s, "overlaps", o.String())
		}
	}
	return nil
}
