//go:build integration

package builtin_test

import (
	"encoding/binary"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// A pod that starts sends nothing to all other pods: its reports of multicast groups end at the
// bridge, and its link-local address is usable at once. Other multicast reaches them.
func TestStartsAreNotFloodedToAllPods(t *testing.T) {
	l := newSpoofLab(t, false)
	mac := macOfAddr(l.me[0])
	to := openWire(t, l.other.NetNS, "eth0")
	from := openWire(t, l.forger.NetNS, "eth0")
	multicast := func(group string) []byte {
		b := netip.MustParseAddr(group).As16()
		return append([]byte{0x33, 0x33}, b[12:]...)
	}
	packet := func(group, text string) []byte {
		udp := slices.Concat([]byte{0x30, 0x39, 0x30, 0x39}, binary.BigEndian.AppendUint16(nil, uint16(8+len(text))), []byte{0, 0}, []byte(text))
		return ethernet(multicast(group), mac, unix.ETH_P_IPV6, ipv6(localOf(mac), netip.MustParseAddr(group), unix.IPPROTO_UDP, udp))
	}
	from.send(packet("ff02::16", "forged:report"))
	from.send(packet("ff02::77", "fence"))
	if got := to.until("fence"); len(got) > 0 {
		t.Errorf("other pods get %v", got)
	}

	late := l.pod()
	l.attach(l.n, late)
	shown := l.run(late.NetNS, "ip", "-6", "addr", "show", "dev", "eth0", "scope", "link")
	if !strings.Contains(shown, "inet6 fe80:") || strings.Contains(shown, "tentative") {
		t.Errorf("the link-local address of a pod that was just attached:\n%s", shown)
	}
	if err := l.n.Detach(t.Context(), late); err != nil {
		t.Error(err)
	}
}
