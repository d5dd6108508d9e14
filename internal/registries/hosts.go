package registries

import (
	"fmt"
	"net/url"
	"slices"
	"strings"

	"github.com/berthrun/berth/internal/credential"
	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/hoststoml"
)

// HostsTOML returns the hosts.toml of a registry. It calls server for the registry itself,
// unless that is none, and then for each mirror. at is the path of the server's fields in the
// entry of the registry: "" or "mirrors[0].". HostsTOML returns the first error of server.
func (r Registry) HostsTOML(server func(at, url string, a Access) (hoststoml.Server, error)) (hoststoml.File, error) {
	var file hoststoml.File
	var err error
	if url := hoststoml.URL(r.Host, r.Server); url != "" {
		if file.Registry, err = server("", url, r.Access); err != nil {
			return hoststoml.File{}, err
		}
	}
	for i, m := range r.Mirrors {
		s, err := server(fmt.Sprintf("mirrors[%d].", i), m.URL, m.Access)
		if err != nil {
			return hoststoml.File{}, err
		}
		file.Mirrors = append(file.Mirrors, hoststoml.Mirror{Server: s, Capabilities: m.Capabilities, OverridePath: m.OverridePath})
	}
	return file, nil
}

// HasCredentials reports whether an entry names credentials, so that its hosts.toml is a secret.
func (r Registry) HasCredentials() bool {
	return r.Credentials != "" || slices.ContainsFunc(r.Mirrors, func(m Mirror) bool { return m.Credentials != "" })
}

// Server returns a server as hosts.toml has it, without Authorization.
func (a Access) Server(url string) hoststoml.Server {
	return hoststoml.Server{URL: url, CA: a.CA, ClientCert: a.ClientCert, ClientKey: a.ClientKey, SkipVerify: a.SkipVerify}
}

// Authorization returns the header for a server, from the text of the file Credentials. The
// error is errs.Invalid for a text of no known form, errs.Unsupported for a config.json that
// leaves credentials to a helper, and errs.NotFound for one that does not name the server. No
// error quotes the text.
func (a Access) Authorization(server, text string) (string, error) {
	parsed, err := credential.Parse(a.Credentials, text)
	if err != nil {
		return "", err
	}
	u, err := url.Parse(server)
	if err != nil {
		return "", fmt.Errorf("credentials: %s: %w: %w", server, errs.Invalid, err)
	}
	header := parsed.Header(u.Host, true)
	if header == "" {
		return "", fmt.Errorf("credentials: %s has none for %s; want one beside those for %s: %w", a.Credentials, u.Host, strings.Join(parsed.Hosts(), ", "), errs.NotFound)
	}
	return header, nil
}
