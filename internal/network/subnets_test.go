package network

import (
	"errors"
	"net/netip"
	"strings"
	"testing"

	"github.com/berthrun/berth/internal/errs"
)

func TestCheckSubnets(t *testing.T) {
	parse := func(texts string) (all []netip.Prefix) {
		for text := range strings.FieldsSeq(texts) {
			all = append(all, netip.MustParsePrefix(text))
		}
		return all
	}
	for bad, why := range map[string]string{
		"10.0.0.1/24": "the subnet is 10.0.0.0/24", "10.0.0.0/31": "too small", "fd00::/127": "too small", "10.0.0.0/24 10.1.0.0/24": "10.1.0.0/24 is a second subnet",
		"127.0.0.0/8": "loopback", "0.0.0.0/0": "all addresses", "224.0.0.0/24": "multicast",
	} {
		if err := CheckSubnets(parse(bad)); !errors.Is(err, errs.Invalid) || !strings.Contains(err.Error(), why) {
			t.Errorf("%s: %v, want kind Invalid with %q", bad, err, why)
		}
	}
	if err := CheckSubnets([]netip.Prefix{{}}); !errors.Is(err, errs.Invalid) {
		t.Errorf("the zero subnet: %v, want kind Invalid", err)
	}
	if err := CheckSubnets(parse("10.0.0.0/30 fd00::/126")); err != nil {
		t.Error(err)
	}
}
