package innode

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"os/exec"
	"strconv"
	"strings"
)

// embedded is docker's own DNS server. It listens on loopback of every container, on ports that are
// unknown before the container starts. docker's rules redirect port 53 of that address to them, for
// processes of the container only.
const embedded = "127.0.0.11"

// resolver lets pods query docker's DNS server, the only one that knows the names of the other
// nodes. A pod gets the node's resolv.conf, but in a pod 127.0.0.11 is the pod itself. So the file
// gets the node's gateway, and packets to its port 53, from pods or from the node, are redirected
// to docker's server. docker writes the file again at each start, and listens on other ports.
func (n node) resolver(ctx context.Context, own []netip.Addr) error {
	file := n.path("etc/resolv.conf")
	text, err := os.ReadFile(file)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("cannot read the node's name servers: %w", err)
	}
	if !names(string(text), embedded) {
		return nil
	}
	if err := n.redirect(ctx, own, string(text)); err != nil {
		return fmt.Errorf("cannot let pods query docker's DNS server: %w", err)
	}
	return nil
}

func (n node) redirect(ctx context.Context, own []netip.Addr, resolv string) error {
	address, err := n.gateway()
	if err != nil {
		return err
	}
	if !address.IsValid() {
		// A network without a gateway: use the node's own address.
		if len(own) == 0 || !own[0].Is4() {
			return errors.New("the node has neither a gateway nor an address of IPv4")
		}
		address = own[0]
	}
	udp, err := n.listener("udp")
	if err != nil {
		return err
	}
	tcp, err := n.listener("tcp")
	if err != nil {
		return err
	}
	// An answer to a pod has a loopback address as source.
	if err := os.WriteFile(n.path("proc/sys/net/ipv4/conf/all/route_localnet"), []byte("1"), 0o644); err != nil {
		return err
	}
	cmd := exec.CommandContext(ctx, "nft", "-f", "-")
	cmd.Stdin = strings.NewReader(redirection(address, udp, tcp))
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("nft: %w: %s", err, bytes.TrimSpace(out))
	}
	// The engine mounts the file: it cannot be replaced, only overwritten.
	return os.WriteFile(n.path("etc/resolv.conf"), []byte(withServer(resolv, embedded, address.String())), 0o644)
}

// redirection are rules that redirect port 53 of an address to the server's ports. Packets from
// outside to loopback are dropped before: route_localnet would let them in.
func redirection(address netip.Addr, udp, tcp uint16) string {
	rules := fmt.Sprintf("\t\tip daddr %s udp dport 53 dnat to %s:%d\n\t\tip daddr %[1]s tcp dport 53 dnat to %[2]s:%[4]d\n", address, embedded, udp, tcp)
	return "table ip berth-dns\ndelete table ip berth-dns\ntable ip berth-dns {\n" +
		"\tchain guard {\n\t\ttype filter hook prerouting priority -300\n\t\tiifname != \"lo\" ip daddr 127.0.0.0/8 drop\n\t}\n" +
		"\tchain pods {\n\t\ttype nat hook prerouting priority -105\n" + rules + "\t}\n" +
		"\tchain node {\n\t\ttype nat hook output priority -105\n" + rules + "\t}\n}\n"
}

// names reports whether a resolv.conf names a server.
func names(resolv, server string) bool { return withServer(resolv, server, "") != resolv }

// withServer is a resolv.conf with one server replaced by another.
func withServer(resolv, old, now string) string {
	var out strings.Builder
	for line := range strings.Lines(resolv) {
		if fields := strings.Fields(line); len(fields) >= 2 && fields[0] == "nameserver" && fields[1] == old {
			line = strings.Replace(line, old, now, 1)
		}
		out.WriteString(line)
	}
	return out.String()
}

// gateway is the gateway of the node's default IPv4 route; the zero value for none.
func (n node) gateway() (netip.Addr, error) {
	text, err := os.ReadFile(n.path("proc/net/route"))
	if err != nil {
		return netip.Addr{}, err
	}
	for line := range strings.Lines(string(text)) {
		// Iface Destination Gateway Flags RefCnt Use Metric Mask
		fields := strings.Fields(line)
		if len(fields) < 8 || fields[1] != "00000000" || fields[7] != "00000000" {
			continue
		}
		if address, err := kernelAddress(fields[2]); err == nil && !address.IsUnspecified() {
			return address, nil
		}
	}
	return netip.Addr{}, nil
}

// listener is the port on which docker's server listens.
func (n node) listener(protocol string) (uint16, error) {
	text, err := os.ReadFile(n.path("proc/net/" + protocol))
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(text)) {
		// sl local_address rem_address st
		fields := strings.Fields(line)
		if len(fields) < 4 || !strings.HasSuffix(fields[2], ":0000") {
			continue
		}
		host, port, _ := strings.Cut(fields[1], ":")
		address, err := kernelAddress(host)
		if err != nil || address.String() != embedded {
			continue
		}
		number, err := strconv.ParseUint(port, 16, 16)
		if err == nil {
			return uint16(number), nil
		}
	}
	return 0, fmt.Errorf("/etc/resolv.conf names %s, and no server listens there for %s", embedded, protocol)
}

// kernelAddress reads an address in the format of the kernel's tables: a number in the machine's
// byte order.
func kernelAddress(text string) (netip.Addr, error) {
	raw, err := hex.DecodeString(text)
	if err != nil || len(raw) != 4 {
		return netip.Addr{}, fmt.Errorf("%q is not an IPv4 address", text)
	}
	var address [4]byte
	binary.NativeEndian.PutUint32(address[:], binary.BigEndian.Uint32(raw))
	return netip.AddrFrom4(address), nil
}
