package network

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/berthrun/berth/internal/errs"
)

// AnnotationAddresses of a pod are the addresses that it requests, comma separated, at most
// one of each family. It is for privileged pods with their own network: any user of a
// cluster may annotate pods, and must not be able to take the address of another pod.
const AnnotationAddresses = "run.berth.addresses"

// RequestedAddresses reads AnnotationAddresses; none when a pod does not have it. Errors have
// kind Invalid.
func RequestedAddresses(annotations map[string]string) ([]netip.Addr, error) {
	text, requested := annotations[AnnotationAddresses]
	if !requested {
		return nil, nil
	}
	var all []netip.Addr
	for word := range strings.SplitSeq(text, ",") {
		address, err := netip.ParseAddr(word)
		switch {
		case err != nil || address.Zone() != "" || address.Is4In6() || !address.IsGlobalUnicast():
			return nil, InvalidAddresses("%q is not an address for a pod", word)
		case slices.ContainsFunc(all, func(other netip.Addr) bool { return other.Is4() == address.Is4() }):
			return nil, InvalidAddresses("%q is a second one of its family", word)
		}
		all = append(all, address)
	}
	return all, nil
}

// InvalidAddresses is the error, of kind Invalid, for addresses that cannot be requested.
func InvalidAddresses(format string, args ...any) error {
	return fmt.Errorf("config.annotations[%q]: %s: %w", AnnotationAddresses, fmt.Sprintf(format, args...), errs.Invalid)
}
