package network

import (
	"fmt"
	"net/netip"

	"github.com/berthrun/berth/internal/errs"
)

// CheckSubnets refuses subnets of the built-in network that have no room for a gateway and a pod, those that no pod can
// have, and a second one of a family. The error is kind Invalid and about the first of them.
func CheckSubnets(subnets []netip.Prefix) error {
	seen := map[bool]bool{}
	for _, s := range subnets {
		v4 := s.Addr().Is4()
		switch addr := s.Addr(); {
		case !s.IsValid() || addr.Is4In6():
			return fmt.Errorf("subnet %s is not a subnet such as 10.88.0.0/16: %w", s, errs.Invalid)
		case s != s.Masked():
			return fmt.Errorf("subnet %s has host bits set; the subnet is %s: %w", s, s.Masked(), errs.Invalid)
		case s.Bits() == 0:
			return fmt.Errorf("subnet %s has all addresses, also those of other hosts; choose one such as 10.88.0.0/16: %w", s, errs.Invalid)
		case addr.BitLen()-s.Bits() < 2:
			return fmt.Errorf("subnet %s is too small for a gateway and a pod; a subnet has at most %d bits: %w", s, addr.BitLen()-2, errs.Invalid)
		case addr.IsUnspecified() || addr.IsLoopback() || addr.IsMulticast():
			return fmt.Errorf("subnet %s has loopback, multicast or reserved addresses, which no pod can have: %w", s, errs.Invalid)
		case seen[v4]:
			return fmt.Errorf("subnet %s is a second subnet of one family: %w", s, errs.Invalid)
		}
		seen[v4] = true
	}
	return nil
}
