// Package hostport finds out whether a port of the host is taken by another sandbox, or
// by a program that listens on it. It maps nothing.
package hostport

import (
	"fmt"
	"log/slog"
	"net/netip"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/network"
)

// Families are the address families of the pods.
type Families struct{ V4, V6 bool }

// Socket is one address, protocol and port of the host; the zero address of a
// family (0.0.0.0 or ::) stands for all of that family.
type Socket struct {
	Proto string
	Port  uint16
	Addr  netip.Addr
}

// String names the socket for people.
func (s Socket) String() string {
	text := fmt.Sprintf("%d/%s", s.Port, s.Proto)
	if s.Addr.IsUnspecified() {
		return text
	}
	return text + " on " + s.Addr.String()
}

// Clash reports whether two sockets could not be bound at once.
func (s Socket) Clash(o Socket) bool {
	return s.Proto == o.Proto && s.Port == o.Port && s.Addr.Is4() == o.Addr.Is4() &&
		(s.Addr == o.Addr || s.Addr.IsUnspecified() || o.Addr.IsUnspecified())
}

// Protocols lists the protocols that a port may have, by name and by the kernel's
// number.
func Protocols() map[string]byte {
	return map[string]byte{"tcp": unix.IPPROTO_TCP, "udp": unix.IPPROTO_UDP, "sctp": unix.IPPROTO_SCTP}
}

// Wanted normalizes each port (lower-case protocol, shortest address), drops ports without a
// host port, and refuses one that is requested twice, with kind Invalid. A port may have no socket
// on the host: see UnservedOf. Package cri/shape has checked the numbers, protocols and addresses.
func Wanted(requested []network.Port, families Families) ([]network.Port, error) {
	ports, err := wanted(requested, families)
	if err != nil {
		return nil, fmt.Errorf("config.port_mappings: %w", err)
	}
	return ports, nil
}

func wanted(requested []network.Port, families Families) ([]network.Port, error) {
	var ports []network.Port
	taken := map[key][]network.Port{}
	for _, p := range requested {
		if p.HostPort == 0 {
			continue
		}
		p, err := normal(p)
		if err != nil {
			return nil, err
		}
		at := key{p.Protocol, p.HostPort}
		for _, other := range taken[at] {
			if s, clash := clashing(p, other, families); clash {
				return nil, fmt.Errorf("host port %s is requested twice: %w", s, errs.Invalid)
			}
		}
		ports, taken[at] = append(ports, p), append(taken[at], p)
	}
	return ports, nil
}

func normal(p network.Port) (network.Port, error) {
	if p.Protocol = strings.ToLower(p.Protocol); p.Protocol == "" {
		p.Protocol = "tcp"
	}
	if p.HostIP != "" {
		addr, err := netip.ParseAddr(p.HostIP)
		if err != nil {
			return p, fmt.Errorf("host IP %q of host port %d is no address: %w", p.HostIP, p.HostPort, errs.Invalid)
		}
		p.HostIP = addr.Unmap().String()
	}
	return p, nil
}

func clashing(p, other network.Port, families Families) (Socket, bool) {
	for _, a := range Sockets(p, families) {
		for _, b := range Sockets(other, families) {
			if a.Clash(b) {
				return a, true
			}
		}
	}
	return Socket{}, false
}

// Sockets lists what a port takes on the host: without a host IP one socket of
// each family.
func Sockets(p network.Port, families Families) []Socket {
	var all []Socket
	for _, any := range []netip.Addr{netip.IPv4Unspecified(), netip.IPv6Unspecified()} {
		if v4 := any.Is4(); v4 && !families.V4 || !v4 && !families.V6 {
			continue
		}
		addr := any
		if p.HostIP != "" {
			given, err := netip.ParseAddr(p.HostIP)
			if err != nil || given.Is4() != any.Is4() {
				continue
			}
			addr = given
		}
		all = append(all, Socket{p.Protocol, p.HostPort, addr})
	}
	return all
}

// Unserved is a port that leads nowhere. Why says the reason.
type Unserved struct {
	network.Port
	Why string
}

// UnservedOf returns the ports whose host IP the pod or the host cannot serve: of a family that the pod has no address of,
// or one that the host does not have. has reports whether the host has an address; it is not asked about loopback and
// link-local ones.
func UnservedOf(ports []network.Port, families Families, has func(netip.Addr) bool) []Unserved {
	var all []Unserved
	for _, p := range ports {
		addr, err := netip.ParseAddr(p.HostIP)
		if err != nil {
			continue // none: the port is on all addresses
		}
		switch {
		case len(Sockets(p, families)) == 0 && addr.Is6():
			all = append(all, Unserved{p, "the host IP is of IPv6, and the pod has no IPv6 address"})
		case len(Sockets(p, families)) == 0:
			all = append(all, Unserved{p, "the host IP is of IPv4, and the pod has no IPv4 address"})
		case !addr.IsUnspecified() && !addr.IsLoopback() && !addr.IsLinkLocalUnicast() && !has(addr):
			all = append(all, Unserved{p, "the host does not have the host IP"})
		}
	}
	return all
}

// Warn logs ports that lead nowhere.
func Warn(log *slog.Logger, pod Holder, ports []Unserved) {
	for _, p := range ports {
		log.Warn("a host port of a pod leads nowhere", "pod", pod.Namespace+"/"+pod.Name, "sandbox", pod.Sandbox,
			"port", fmt.Sprintf("%d/%s", p.HostPort, p.Protocol), "hostIP", p.HostIP, "reason", p.Why)
	}
}

// Index finds the sandbox that holds a socket. The zero value is ready. It is safe
// for concurrent use.
type Index struct {
	mu   sync.Mutex
	held map[key]map[Socket]Holder
}

type key struct {
	proto string
	port  uint16
}

// Holder is the pod that holds sockets.
type Holder struct{ Sandbox, Namespace, Name string }

func (h Holder) String() string {
	return fmt.Sprintf("pod %s/%s (sandbox %s)", h.Namespace, h.Name, h.Sandbox)
}

// Take gives all sockets to the holder, or none: then its error of kind Exists names the
// holder of one.
func (x *Index) Take(holder Holder, sockets []Socket) error {
	x.mu.Lock()
	defer x.mu.Unlock()
	for _, s := range sockets {
		for held, by := range x.held[key{s.Proto, s.Port}] {
			if held.Clash(s) && by.Sandbox != holder.Sandbox {
				return Taken(s, by.String())
			}
		}
	}
	for _, s := range sockets {
		k := key{s.Proto, s.Port}
		if x.held == nil {
			x.held = map[key]map[Socket]Holder{}
		}
		if x.held[k] == nil {
			x.held[k] = map[Socket]Holder{}
		}
		x.held[k][s] = holder
	}
	return nil
}

// Free takes the sockets away from a sandbox; those of others stay.
func (x *Index) Free(sandbox string, sockets []Socket) {
	x.mu.Lock()
	defer x.mu.Unlock()
	for _, s := range sockets {
		k := key{s.Proto, s.Port}
		if x.held[k][s].Sandbox == sandbox {
			delete(x.held[k], s)
		}
		if len(x.held[k]) == 0 {
			delete(x.held, k)
		}
	}
}

// Taken is the error for a socket that owner has.
func Taken(s Socket, owner string) error {
	return fmt.Errorf("host port %s is taken by %s: %w", s, owner, errs.Exists)
}
