package policy

import (
	"cmp"
	"net/netip"
	"slices"
)

// prefixRange is the range of a prefix.
func prefixRange(p netip.Prefix) Range {
	p = p.Masked()
	last := p.Addr().AsSlice()
	for bit := p.Bits(); bit < p.Addr().BitLen(); bit++ {
		last[bit/8] |= 0x80 >> (bit % 8)
	}
	end, _ := netip.AddrFromSlice(last)
	return Range{p.Addr(), end}
}

// without returns a range without another one: no range, one, or two.
func (r Range) without(hole Range) []Range {
	if hole.First.BitLen() != r.First.BitLen() || hole.Last.Less(r.First) || r.Last.Less(hole.First) {
		return []Range{r}
	}
	var rest []Range
	if r.First.Less(hole.First) {
		rest = append(rest, Range{r.First, hole.First.Prev()})
	}
	if hole.Last.Less(r.Last) {
		rest = append(rest, Range{hole.Last.Next(), r.Last})
	}
	return rest
}

// mergeRanges sorts ranges, and joins those that overlap or touch. Ranges of IPv4 come first.
func mergeRanges(all []Range) []Range {
	slices.SortFunc(all, func(a, b Range) int { return cmp.Or(a.First.Compare(b.First), a.Last.Compare(b.Last)) })
	var merged []Range
	for _, r := range all {
		if n := len(merged); n > 0 {
			last := &merged[n-1]
			sameFamily := last.First.BitLen() == r.First.BitLen()
			if after := last.Last.Next(); sameFamily && (!after.IsValid() || !after.Less(r.First)) {
				if last.Last.Less(r.Last) {
					last.Last = r.Last
				}
				continue
			}
		}
		merged = append(merged, r)
	}
	return merged
}

func inRanges(ranges []Range, addr netip.Addr) bool {
	return slices.ContainsFunc(ranges, func(r Range) bool {
		return r.First.BitLen() == addr.BitLen() && !addr.Less(r.First) && !r.Last.Less(addr)
	})
}

// mergePorts sorts ranges of ports, and joins those that overlap or touch.
func mergePorts(all []PortRange) []PortRange {
	slices.SortFunc(all, func(a, b PortRange) int {
		return cmp.Or(cmp.Compare(a.Proto, b.Proto), cmp.Compare(a.First, b.First), cmp.Compare(a.Last, b.Last))
	})
	var merged []PortRange
	for _, p := range all {
		if n := len(merged); n > 0 && merged[n-1].Proto == p.Proto && int(p.First) <= int(merged[n-1].Last)+1 {
			merged[n-1].Last = max(merged[n-1].Last, p.Last)
			continue
		}
		merged = append(merged, p)
	}
	return merged
}
