package addons

import (
	"testing"
)

// TestDNSPrefersUDP: kubeadm's Corefile gets the option, once; where there is none, or another one,
// nothing is changed.
func TestDNSPrefersUDP(t *testing.T) {
	const (
		begin = ".:53 {\n    errors\n    forward . /etc/resolv.conf {\n"
		end   = "       max_concurrent 1000\n    }\n    cache 30\n}\n"
	)
	for before, after := range map[string]string{
		begin + end:                            begin + "       prefer_udp\n" + end,
		begin + "       prefer_udp\n" + end:    begin + "       prefer_udp\n" + end,
		".:53 {\n    forward . 192.0.2.1\n}\n": ".:53 {\n    forward . 192.0.2.1\n}\n",
		"":                                     "",
	} {
		if got := withPreferUDP(before); got != after {
			t.Errorf("of %q came %q, want %q", before, got, after)
		}
	}
}
