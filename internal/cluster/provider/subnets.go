package provider

import (
	"bytes"
	"crypto/sha1"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io/fs"
	"net/netip"
	"slices"
	"strconv"
	"strings"
)

// subnet6 is an unique local subnet for a network of the name; try is 0 for the first choice. It is
// kind's, so that both tools conflict on the same one.
func subnet6(name string, try int) netip.Prefix {
	h := sha1.New()
	h.Write([]byte(name))
	// A write to a hash does not fail, and the number has a fixed size.
	_ = binary.Write(h, binary.LittleEndian, int32(try))
	address := [16]byte{0: 0xfc}
	copy(address[2:8], h.Sum(nil)[2:8])
	return netip.PrefixFrom(netip.AddrFrom16(address), 64)
}

// freeSubnets4 are IPv4 subnets that no route of this host leads to: those that docker uses itself,
// from a start that depends on the name.
func (e *CLI) freeSubnets4(name string) []netip.Prefix {
	if !e.subnet4 {
		return nil
	}
	const first, count = 18, 14 // 172.18.0.0/16 to 172.31.0.0/16
	var used []netip.Prefix
	if !e.facts.Remote {
		used = routes4(e.host)
	}
	sum := sha1.Sum([]byte(name))
	var free []netip.Prefix
	for i := range count {
		subnet := netip.PrefixFrom(netip.AddrFrom4([4]byte{172, byte(first + (int(sum[0])+i)%count), 0, 0}), 16)
		if !slices.ContainsFunc(used, subnet.Overlaps) {
			free = append(free, subnet)
		}
	}
	return free
}

// Routes are the destinations of this host's routes in both families, but the default ones.
func Routes(host fs.FS) []netip.Prefix { return append(routes4(host), routes6(host)...) }

// routes4 are the destinations of this host's routes, but the default one.
func routes4(host fs.FS) []netip.Prefix {
	text, err := fs.ReadFile(host, "proc/net/route")
	if err != nil {
		return nil
	}
	var all []netip.Prefix
	for line := range strings.Lines(string(text)) {
		fields := strings.Fields(line)
		if len(fields) < 8 {
			continue
		}
		// Both are in the machine's byte order; all machines that berth runs on are little-endian.
		destination, err1 := hex.DecodeString(fields[1])
		mask, err2 := hex.DecodeString(fields[7])
		if err1 != nil || err2 != nil || len(destination) != 4 || len(mask) != 4 {
			continue
		}
		slices.Reverse(destination)
		bits := 0
		for _, b := range mask {
			for ; b != 0; b &= b - 1 {
				bits++
			}
		}
		if bits > 0 {
			all = append(all, netip.PrefixFrom(netip.AddrFrom4([4]byte(destination)), bits))
		}
	}
	return all
}

// routes6 are the same of IPv6, without those that refuse, and addresses of the host itself.
func routes6(host fs.FS) []netip.Prefix {
	text, err := fs.ReadFile(host, "proc/net/ipv6_route")
	if err != nil {
		return nil
	}
	const refuses, local = 0x200, 0x80000000
	var all []netip.Prefix
	for line := range strings.Lines(string(text)) {
		// Destination, its length, source, its length, next hop, metric, two counters, flags,
		// device.
		fields := strings.Fields(line)
		if len(fields) < 10 {
			continue
		}
		destination, err1 := hex.DecodeString(fields[0])
		bits, err2 := strconv.ParseUint(fields[1], 16, 8)
		flags, err3 := strconv.ParseUint(fields[8], 16, 32)
		if err1 != nil || err2 != nil || err3 != nil || len(destination) != 16 || flags&(refuses|local) != 0 {
			continue
		}
		if prefix := netip.PrefixFrom(netip.AddrFrom16([16]byte(destination)), int(bits)); bits > 0 && prefix.IsValid() {
			all = append(all, prefix)
		}
	}
	return all
}

// inspectedNetwork has the fields that are read of a network.
type inspectedNetwork struct {
	id         string
	labels     map[string]string
	containers int
	subnets    []netip.Prefix
}

// readNetworks reads `network inspect` of any engine: docker's and nerdctl's with IPAM,
// podman's of netavark with subnets, and podman's of CNI, which is a CNI configuration.
func readNetworks(text []byte) ([]inspectedNetwork, error) {
	var raw []struct {
		ID         string                     `json:"Id"` // netavark's "id" matches it, too
		Labels     map[string]string          `json:"Labels"`
		Containers map[string]json.RawMessage `json:"Containers"`
		IPAM       struct {
			Config []struct{ Subnet string }
		}
		Subnets []struct {
			Subnet string `json:"subnet"`
		} `json:"subnets"`
		Args struct {
			Labels map[string]string `json:"podman_labels"`
		} `json:"args"`
		Plugins []struct {
			IPAM struct {
				Ranges [][]struct {
					Subnet string `json:"subnet"`
				} `json:"ranges"`
			} `json:"ipam"`
		} `json:"plugins"`
	}
	if err := json.NewDecoder(bytes.NewReader(text)).Decode(&raw); err != nil {
		return nil, fmt.Errorf("the engine's report of networks is not a JSON list: %w", err)
	}
	var all []inspectedNetwork
	for _, r := range raw {
		n := inspectedNetwork{id: r.ID, labels: r.Labels, containers: len(r.Containers)}
		if n.labels == nil {
			n.labels = r.Args.Labels
		}
		var texts []string
		for _, c := range r.IPAM.Config {
			texts = append(texts, c.Subnet)
		}
		for _, s := range r.Subnets {
			texts = append(texts, s.Subnet)
		}
		for _, p := range r.Plugins {
			for _, ranges := range p.IPAM.Ranges {
				for _, one := range ranges {
					texts = append(texts, one.Subnet)
				}
			}
		}
		for _, text := range texts {
			subnet, err := netip.ParsePrefix(text)
			if err != nil {
				return nil, fmt.Errorf("subnet %q: %w", text, err)
			}
			n.subnets = append(n.subnets, subnet.Masked())
		}
		all = append(all, n)
	}
	return all, nil
}
