package builtin

import (
	"encoding/binary"
	"fmt"
	"net/netip"

	"github.com/berthrun/berth/internal/errs"
)

// pool hands out the addresses of one subnet, the one after the last first, so
// that an address rests as long as possible. Offset 0 is the subnet, 1 the
// gateway, and the last of an IPv4 subnet the broadcast address.
type pool struct {
	subnet netip.Prefix
	last   uint64 // the highest offset
	next   uint64
	used   map[netip.Addr]bool
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
		if !p.used[addr] {
			p.used[addr] = true
			return netip.PrefixFrom(addr, p.subnet.Bits()), nil
		}
	}
	return netip.Prefix{}, fmt.Errorf("no address of %s is free, %d are in use: %w", p.subnet, len(p.used), errs.Exhausted)
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

// takeAddrs takes one address of each subnet, or none. The caller holds n.mu.
func (n *Network) takeAddrs() ([]netip.Prefix, error) {
	var addrs []netip.Prefix
	for _, p := range n.pools {
		addr, err := p.take()
		if err != nil {
			n.freeAddrs(addrs)
			return nil, err
		}
		addrs = append(addrs, addr)
	}
	return addrs, nil
}

// freeAddrs gives addresses back. The caller holds n.mu.
func (n *Network) freeAddrs(addrs []netip.Prefix) {
	for _, addr := range addrs {
		for _, p := range n.pools {
			p.free(addr.Addr())
		}
	}
}
