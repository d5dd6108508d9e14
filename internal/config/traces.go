package config

import (
	"net/url"
	"path/filepath"
	"strings"
)

// maxSamplingRate keeps every trace.
const maxSamplingRate = 1_000_000

func (t *Traces) check(report func(key, format string, args ...any)) {
	checkRange("traces.sampling_rate_per_million", t.SamplingRate, 0, maxSamplingRate, report)
	endpoint, err := url.Parse(t.Endpoint)
	switch {
	case t.Endpoint == "":
	case err != nil || endpoint.Host == "" || endpoint.Port() == "" || endpoint.Scheme != "http" && endpoint.Scheme != "https":
		report("traces.endpoint", "%q: want http://HOST:PORT or https://HOST:PORT, such as http://127.0.0.1:4317", withoutUser(t.Endpoint))
	case endpoint.User != nil || endpoint.RawQuery != "" || endpoint.Fragment != "":
		report("traces.endpoint", "%q: want no user, query or fragment", withoutUser(t.Endpoint))
	case t.Protocol == "grpc" && strings.Trim(endpoint.Path, "/") != "":
		report("traces.endpoint", "%q: has a path, which gRPC does not know; remove it, or set traces.protocol = \"http\"", t.Endpoint)
	}
	for _, file := range []struct{ key, path, with, other string }{
		{"traces.tls_ca_file", t.CA, "", "-"},
		{"traces.tls_cert_file", t.TLSCert, "traces.tls_key_file", t.TLSKey},
		{"traces.tls_key_file", t.TLSKey, "traces.tls_cert_file", t.TLSCert},
	} {
		switch {
		case file.path == "":
		case err == nil && endpoint.Scheme != "https":
			report(file.key, "%q: is not used, as traces.endpoint does not begin with https://", file.path)
		case !filepath.IsAbs(file.path):
			report(file.key, "%q: want an absolute path", file.path)
		case file.other == "":
			report(file.key, "%q: is of no use without %s", file.path, file.with)
		}
	}
}

// withoutUser hides what stands before the host of an address: it may be a password.
func withoutUser(address string) string {
	scheme, rest, ok := strings.Cut(address, "://")
	if !ok {
		scheme, rest = "", address
	} else {
		scheme += "://"
	}
	if at := strings.LastIndexByte(rest, '@'); at >= 0 {
		rest = Hidden + rest[at:]
	}
	return scheme + rest
}
