package config

import (
	"net"
	"net/netip"
	"path/filepath"
	"strconv"
	"strings"
)

// served is where one of the daemon's HTTP servers listens: the keys listen, tls_cert_file, tls_key_file and
// client_ca_file of a section.
type served struct {
	section, listen, cert, key, ca string
	// example is an address for messages; socket says that it may be unix:///PATH.
	example string
	socket  bool
	// client can be given a port; plain begins a sentence about what has no TLS.
	client, plain string
}

func (m *Metrics) check(report func(key, format string, args ...any)) {
	(&served{
		section: "metrics", listen: m.Listen, cert: m.TLSCert, key: m.TLSKey, ca: m.ClientCA, example: "127.0.0.1:9717", socket: true,
		client: "Prometheus", plain: "metrics without TLS are",
	}).check(report)
}

func (p *Page) check(report func(key, format string, args ...any)) {
	s := &served{
		section: "page", listen: p.Listen, cert: p.TLSCert, key: p.TLSKey, ca: p.ClientCA, example: "127.0.0.1:9718",
		client: "a browser", plain: "a page without TLS is",
	}
	s.check(report)
	if host, _, err := net.SplitHostPort(p.Listen); err == nil && p.Auth == "none" && !isLoopback(host) {
		report("page.auth", "%q: is for loopback addresses only, and page.listen is %q; use token", p.Auth, p.Listen)
	}
}

func (s *served) check(report func(key, format string, args ...any)) {
	path, isSocket := strings.CutPrefix(s.listen, "unix://")
	isSocket = isSocket && s.socket
	switch {
	case s.listen == "":
	case isSocket && (!filepath.IsAbs(path) || len(path) > 107):
		report(s.section+".listen", "%q: want unix:///ABSOLUTE/PATH, with a path of at most 107 bytes", s.listen)
	case !isSocket:
		s.checkAddress(report)
	}
	plain := s.listen == "" || isSocket
	for _, file := range []struct{ key, path, with, other string }{
		{"tls_cert_file", s.cert, "tls_key_file", s.key},
		{"tls_key_file", s.key, "tls_cert_file", s.cert},
		{"client_ca_file", s.ca, "tls_cert_file", s.cert},
	} {
		key, with := s.section+"."+file.key, s.section+"."+file.with
		switch {
		case file.path == "":
		case plain:
			report(key, "%q: is not used, as %s.listen is %q and TLS needs HOST:PORT there", file.path, s.section, s.listen)
		case !filepath.IsAbs(file.path):
			report(key, "%q: want an absolute path", file.path)
		case file.other == "":
			report(key, "%q: is of no use without %s", file.path, with)
		}
	}
}

// checkAddress checks that an address which others can reach has TLS.
func (s *served) checkAddress(report func(key, format string, args ...any)) {
	key := s.section + ".listen"
	host, port, err := net.SplitHostPort(s.listen)
	number, portErr := strconv.ParseUint(port, 10, 16)
	_, hostErr := netip.ParseAddr(host)
	switch {
	case err != nil || portErr != nil:
		or := ""
		if s.socket {
			or = ", or unix:///ABSOLUTE/PATH"
		}
		report(key, "%q: want HOST:PORT, such as %s%s", s.listen, s.example, or)
	case number == 0:
		report(key, "%q: want a port from 1 to 65535, which %s can be given", s.listen, s.client)
	case host != "" && host != "localhost" && hostErr != nil:
		report(key, "%q: want an IP address of this host or localhost before the port", s.listen)
	case !isLoopback(host) && (s.cert == "" || s.key == ""):
		report(key, "%q: is not a loopback address, and %s for loopback only; "+
			"set %s.tls_cert_file and %s.tls_key_file, or listen on 127.0.0.1", s.listen, s.plain, s.section, s.section)
	}
}

func isLoopback(host string) bool {
	address, err := netip.ParseAddr(host)
	return host == "localhost" || err == nil && address.IsLoopback()
}
