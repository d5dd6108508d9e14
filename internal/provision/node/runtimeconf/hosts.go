package runtimeconf

import (
	"fmt"
	"net/url"
	"strings"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/hoststoml"
	"github.com/berthrun/berth/internal/provision/credential"
	"github.com/berthrun/berth/internal/provision/node/nodefile"
)

// HostsFile is one hosts.toml.
type HostsFile struct {
	// Dir is the name of the directory below the registry directory.
	Dir     string
	Content string
	// Secret is true if it contains credentials.
	Secret bool
}

// Hosts writes the hosts.toml tree that berth and containerd read. credentials maps
// the files that the node file names to their content.
func Hosts(registries []nodefile.Registry, credentials map[string]string) ([]HostsFile, error) {
	files := make([]HostsFile, 0, len(registries))
	for i, reg := range registries {
		file, err := hosts(fmt.Sprintf("registries[%d]", i), reg, credentials)
		if err != nil {
			return nil, err
		}
		files = append(files, file)
	}
	return files, nil
}

// hosts writes the file of one registry; at is its path in the node file.
func hosts(at string, reg nodefile.Registry, credentials map[string]string) (HostsFile, error) {
	file := HostsFile{Dir: hoststoml.Dir(reg.Host), Content: header}
	var said hoststoml.File
	if url := hoststoml.URL(reg.Host, reg.Server); url != "" {
		said.Registry = hoststoml.Server{URL: url, CA: reg.CA, ClientCert: reg.ClientCert, ClientKey: reg.ClientKey, SkipVerify: reg.SkipVerify}
		if err := authorize(&said.Registry, reg.Credentials, credentials); err != nil {
			return file, fmt.Errorf("%s.%w", at, err)
		}
	}
	for i, m := range reg.Mirrors {
		server := hoststoml.Server{URL: m.URL, CA: m.CA, ClientCert: m.ClientCert, ClientKey: m.ClientKey, SkipVerify: m.SkipVerify}
		if err := authorize(&server, m.Credentials, credentials); err != nil {
			return file, fmt.Errorf("%s.mirrors[%d].%w", at, i, err)
		}
		said.Mirrors = append(said.Mirrors, hoststoml.Mirror{Server: server, Capabilities: m.Capabilities, OverridePath: m.OverridePath})
		file.Secret = file.Secret || m.Credentials != ""
	}
	if text := said.Text(); text != "" {
		file.Content += "\n" + text
	}
	file.Secret = file.Secret || reg.Credentials != ""
	return file, nil
}

// authorize adds the header that a credentials file has for a server; an empty name is no file.
func authorize(server *hoststoml.Server, file string, credentials map[string]string) error {
	if file == "" {
		return nil
	}
	text, known := credentials[file]
	if !known {
		return fmt.Errorf("credentials: cannot read %s; write it: %w", file, errs.NotFound)
	}
	parsed, err := credential.Parse(file, text)
	if err != nil {
		return err
	}
	u, err := url.Parse(server.URL)
	if err != nil {
		return fmt.Errorf("credentials: %s: %w: %w", server.URL, errs.Invalid, err)
	}
	server.Authorization = parsed.Header(u.Host, true)
	if server.Authorization == "" {
		return fmt.Errorf("credentials: %s has none for %s; want one beside those for %s: %w", file, u.Host, strings.Join(parsed.Hosts(), ", "), errs.NotFound)
	}
	return nil
}
