package bridgeaddress

import (
	"fmt"
	"net/netip"
	"testing"
)

// TestConflict: which addresses of a bridge a configuration does not accept.
func TestConflict(t *testing.T) {
	const conf = `{"type":"bridge","isGateway":true%s,"ipam":{"type":"host-local",%s}}`
	of := func(ipam string) string { return fmt.Sprintf(conf, "", ipam) }
	for _, c := range []struct{ conf, has, want string }{
		{of(`"subnet":"10.95.0.0/24"`), "10.94.0.1/24", "10.94.0.1/24 10.95.0.1/24"},
		{of(`"subnet":"10.95.0.0/24"`), "10.95.0.1/24", ""},
		{of(`"subnet":"10.95.0.0/24"`), "10.95.0.1/16", "10.95.0.1/16 10.95.0.1/24"},
		{of(`"subnet":"10.95.0.0/24","gateway":"10.95.0.9"`), "10.95.0.1/24", "10.95.0.1/24 10.95.0.9/24"},
		{of(`"ranges":[[{"subnet":"10.95.0.0/24"}],[{"subnet":"fd95::/64"}]]`), "fd94::1/64", ""},
		{of(`"ranges":[[{"subnet":"10.95.0.0/24"}],[{"subnet":"fd95::/64"}]]`), "fd95::1/48", "fd95::1/48 fd95::1/64"},
		{of(`"ranges":[[{"subnet":"10.95.0.0/24"},{"subnet":"10.96.0.0/24"}]]`), "10.96.0.1/24", ""},
		{fmt.Sprintf(conf, `,"forceAddress":true`, `"subnet":"10.95.0.0/24"`), "10.94.0.1/24", ""},
		{`{"type":"bridge","ipam":{"type":"host-local","subnet":"10.95.0.0/24"}}`, "10.94.0.1/24", ""},
		{`{"type":"bridge","isGateway":true,"ipam":{"type":"dhcp"}}`, "10.94.0.1/24", ""},
		{`{"type":"bridge","isGateway":true,"ipam":{"type":"host-local","subnet":10}}`, "10.94.0.1/24", ""},
	} {
		_, wants := wanted([]byte(c.conf))
		have, want, ok := conflict([]netip.Prefix{netip.MustParsePrefix(c.has)}, wants)
		got := ""
		if ok {
			got = have.String() + " " + want.String()
		}
		if got != c.want {
			t.Errorf("%s with %s: %q, want %q", c.conf, c.has, got, c.want)
		}
	}
}
