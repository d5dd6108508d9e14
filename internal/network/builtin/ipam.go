package builtin

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"slices"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/network"
)

// pool has the addresses of one subnet. It returns the next one after the last, so that a
// freed address is unused as long as possible. Offset 0 is the subnet, 1 the gateway, and
// the last of an IPv4 subnet the broadcast address.
type pool struct {
	subnet netip.Prefix
	last   uint64 // the highest offset
	next   uint64
	used   map[netip.Addr]bool
	// taken is Config.Taken.
	taken func(netip.Addr) bool
}

// maxPool bounds the offsets in use of a large subnet: far more than a bridge has
// ports.
const maxPool = 1 << 16

func newPool(subnet netip.Prefix) *pool {
	bits := subnet.Addr().BitLen() - subnet.Bits()
	last := uint64(maxPool - 1)
	if bits < 16 {
		last = 1<<bits - 1
	}
	if subnet.Addr().Is4() && bits <= 16 {
		last-- // broadcast
	}
	return &pool{subnet: subnet, last: last, next: 2, used: map[netip.Addr]bool{}}
}

func (p *pool) gateway() netip.Addr { return at(p.subnet, 1) }

// take returns a free address; kind Exhausted when there is none.
func (p *pool) take() (netip.Prefix, error) {
	for range p.last {
		addr := at(p.subnet, p.next)
		p.next++
		if p.next > p.last {
			p.next = 2
		}
		if p.isFree(addr) {
			p.used[addr] = true
			return netip.PrefixFrom(addr, p.subnet.Bits()), nil
		}
	}
	return netip.Prefix{}, fmt.Errorf("no address of %s is free, %d are in use: %w", p.subnet, len(p.used), errs.Exhausted)
}

func (p *pool) isFree(addr netip.Addr) bool {
	return !p.used[addr] && (p.taken == nil || !p.taken(addr))
}

// claim takes one address. It returns false when the address is taken.
func (p *pool) claim(addr netip.Addr) (netip.Prefix, bool, error) {
	if offset := offsetOf(p.subnet, addr); offset < 2 || offset > p.last {
		return netip.Prefix{}, false, network.InvalidAddresses("%s is not for a pod: those of %s are from %s to %s", addr, p.subnet, at(p.subnet, 2), at(p.subnet, p.last))
	}
	if !p.isFree(addr) {
		return netip.Prefix{}, false, nil
	}
	p.used[addr] = true // take continues after its last address
	return netip.PrefixFrom(addr, p.subnet.Bits()), true, nil
}

// reserve takes the address of a record.
func (p *pool) reserve(addr netip.Addr) {
	p.used[addr] = true
	if offset := offsetOf(p.subnet, addr); offset >= p.next && offset < p.last {
		p.next = offset + 1
	}
}

func (p *pool) free(addr netip.Addr) { delete(p.used, addr) }

// at is the address at an offset from the subnet's start.
func at(subnet netip.Prefix, offset uint64) netip.Addr {
	if subnet.Addr().Is4() {
		b := subnet.Masked().Addr().As4()
		binary.BigEndian.PutUint32(b[:], binary.BigEndian.Uint32(b[:])+uint32(offset))
		return netip.AddrFrom4(b)
	}
	b := subnet.Masked().Addr().As16()
	binary.BigEndian.PutUint64(b[8:], binary.BigEndian.Uint64(b[8:])+offset)
	return netip.AddrFrom16(b)
}

// offsetOf is the inverse of at.
func offsetOf(subnet netip.Prefix, addr netip.Addr) uint64 {
	if !subnet.Contains(addr) {
		return 0
	}
	a, b := addr.As16(), subnet.Masked().Addr().As16()
	return binary.BigEndian.Uint64(a[8:]) - binary.BigEndian.Uint64(b[8:])
}

// takeAddrs takes one address of each subnet, the requested ones among them, or none. The
// caller holds n.mu.
func (n *Network) takeAddrs(requested []netip.Addr) ([]netip.Prefix, error) {
	for _, addr := range requested {
		if !slices.ContainsFunc(n.pools, func(p *pool) bool { return p.subnet.Contains(addr) }) {
			return nil, network.InvalidAddresses("%s is in none of the network's subnets, %s", addr, joinPrefixes(n.subnets))
		}
	}
	var addrs []netip.Prefix
	for _, p := range n.pools {
		addr, err := n.takeAddr(p, requested)
		if err != nil {
			n.freeAddrs(addrs)
			return nil, err
		}
		addrs = append(addrs, addr)
	}
	return addrs, nil
}

// takeAddr takes the requested address of a subnet, else the next one.
func (n *Network) takeAddr(p *pool, requested []netip.Addr) (netip.Prefix, error) {
	i := slices.IndexFunc(requested, p.subnet.Contains)
	if i < 0 {
		return p.take()
	}
	addr, free, err := p.claim(requested[i])
	if err == nil && !free {
		err = &takenError{requested[i], n.holderOf(requested[i])}
	}
	return addr, err
}

// takenError names the holder of an address. A released one is free soon.
type takenError struct {
	addr   netip.Addr
	holder *record
}

func (e *takenError) Error() string {
	who := "another pod"
	if e.holder != nil {
		who = fmt.Sprintf("pod %s/%s (sandbox %s)", e.holder.Namespace, e.holder.Name, e.holder.Sandbox)
	}
	return fmt.Sprintf("config.annotations[%q]: %s has %s: %v", network.AnnotationAddresses, who, e.addr, errs.Exists)
}

func (e *takenError) Unwrap() error { return errs.Exists }

// holderOf is the record that has an address, nil when none is written yet.
func (n *Network) holderOf(addr netip.Addr) *record {
	for _, rec := range n.records.All() {
		if slices.ContainsFunc(rec.Addrs, func(p netip.Prefix) bool { return p.Addr() == addr }) {
			return rec
		}
	}
	return nil
}

// freeAddrs frees addresses. The caller holds n.mu.
func (n *Network) freeAddrs(addrs []netip.Prefix) {
	for _, addr := range addrs {
		for _, p := range n.pools {
			p.free(addr.Addr())
		}
	}
}
