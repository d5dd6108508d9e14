// Package noderoutes keeps the routes of a node to the pods of other nodes: a file with the routes, and the kernel's
// routes, which follow the file.
//
// It owns the routes of protocol 177 that it has recorded, and no others. It does not know who writes the file: an
// operator, `berth net route` or `berth cluster`.
package noderoutes

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/berthrun/berth/internal/errs"
)

// Route leads to the pods of another node.
type Route struct {
	// To is the pod CIDR of the other node, without bits behind its length.
	To netip.Prefix `json:"to"`
	// Via is the address of the other node, or of a router that knows the way. It is of the family of To.
	Via netip.Addr `json:"via"`
	// Link is the link of this host that leads to Via; "" where the kernel chooses it.
	Link string `json:"link,omitempty"`
}

// String is the route as a line of the file.
func (r Route) String() string {
	text := r.To.String() + " via " + r.Via.String()
	if r.Link != "" {
		text += " dev " + r.Link
	}
	return text
}

// Line is a route with the number of its line, from 1.
type Line struct {
	Number int
	Route
}

// Parse reads the text of a file. Each line has one route, SUBNET via GATEWAY [dev LINK], in ip-route's words. Empty lines
// count for nothing, and so does what follows a #. The error has all faults, each with file and line, and is
// kind Invalid.
func Parse(file string, text []byte) ([]Line, error) {
	var lines []Line
	var faults []error
	seen := map[netip.Prefix]int{}
	number := 0
	for line := range strings.Lines(string(text)) {
		number++
		line, _, _ = strings.Cut(line, "#")
		fields := strings.Fields(line)
		if len(fields) == 0 {
			continue
		}
		route, err := ParseRoute(fields)
		if err == nil && seen[route.To] > 0 {
			err = fmt.Errorf("line %d has a route to %s, too; keep one of them: %w", seen[route.To], route.To, errs.Invalid)
		}
		if err != nil {
			faults = append(faults, fmt.Errorf("%s:%d: %w", file, number, err))
			continue
		}
		seen[route.To] = number
		lines = append(lines, Line{Number: number, Route: route})
	}
	return lines, errors.Join(faults...)
}

// ParseRoute reads the words of one line. The error is kind Invalid.
func ParseRoute(words []string) (Route, error) {
	const form = "want SUBNET via GATEWAY [dev LINK]"
	var r Route
	switch {
	case (len(words) == 3 || len(words) == 5) && words[1] != "via", len(words) == 5 && words[3] != "dev":
		return r, fmt.Errorf("%q is not a route; %s: %w", strings.Join(words, " "), form, errs.Invalid)
	case len(words) != 3 && len(words) != 5:
		return r, fmt.Errorf("%q has %d words; %s: %w", strings.Join(words, " "), len(words), form, errs.Invalid)
	}
	var err error
	if r.To, err = ParseSubnet(words[0]); err != nil {
		return r, err
	}
	if r.Via, err = netip.ParseAddr(words[2]); err != nil || r.Via.Zone() != "" {
		return r, fmt.Errorf("gateway %q is not an IP address: %w", words[2], errs.Invalid)
	}
	if len(words) == 5 {
		r.Link = words[4]
	}
	return r, r.check()
}

// ParseSubnet reads the pod CIDR of a node. The error is kind Invalid.
func ParseSubnet(text string) (netip.Prefix, error) {
	to, err := netip.ParsePrefix(text)
	switch {
	case err != nil || to.Addr().Is4In6():
		return to, fmt.Errorf("%q is not a subnet in CIDR notation: %w", text, errs.Invalid)
	case to != to.Masked():
		return to, fmt.Errorf("subnet %s has bits behind its length; want %s: %w", to, to.Masked(), errs.Invalid)
	case to.Bits() == 0 || to.Addr().IsUnspecified() || to.Addr().IsLoopback() || to.Addr().IsMulticast() || to.Addr().IsLinkLocalUnicast():
		return to, fmt.Errorf("subnet %s is not a subnet of pods: %w", to, errs.Invalid)
	}
	return to, nil
}

func (r Route) check() error {
	switch {
	case r.Via.Is4In6() || r.Via.Is4() != r.To.Addr().Is4():
		return fmt.Errorf("gateway %s is not of the address family of %s: %w", r.Via, r.To, errs.Invalid)
	case r.Via.IsUnspecified() || r.Via.IsLoopback() || r.Via.IsMulticast():
		return fmt.Errorf("gateway %s is not the address of another host: %w", r.Via, errs.Invalid)
	case r.To.Contains(r.Via):
		return fmt.Errorf("gateway %s is inside of %s, which it leads to: %w", r.Via, r.To, errs.Invalid)
	case r.Via.Is6() && r.Via.IsLinkLocalUnicast() && r.Link == "":
		return fmt.Errorf("gateway %s is a link-local address; name its link with dev: %w", r.Via, errs.Invalid)
	case len(r.Link) >= unix.IFNAMSIZ || strings.ContainsAny(r.Link, "/"):
		return fmt.Errorf("%q is not the name of a link: %w", r.Link, errs.Invalid)
	}
	return nil
}
