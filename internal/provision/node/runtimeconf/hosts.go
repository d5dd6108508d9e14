package runtimeconf

import (
	"fmt"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/hoststoml"
	"github.com/berthrun/berth/internal/registries"
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
func Hosts(all []registries.Registry, credentials map[string]string) ([]HostsFile, error) {
	files := make([]HostsFile, 0, len(all))
	for i, reg := range all {
		file, err := hosts(fmt.Sprintf("registries[%d]", i), reg, credentials)
		if err != nil {
			return nil, err
		}
		files = append(files, file)
	}
	return files, nil
}

// hosts writes the file of one registry, which is at a place of the description.
func hosts(at string, reg registries.Registry, credentials map[string]string) (HostsFile, error) {
	file, err := reg.HostsTOML(func(field, url string, a registries.Access) (hoststoml.Server, error) {
		server := a.Server(url)
		if a.Credentials == "" {
			return server, nil
		}
		text, known := credentials[a.Credentials]
		if !known {
			return server, fmt.Errorf("%s.%scredentials: cannot read %s; write it: %w", at, field, a.Credentials, errs.NotFound)
		}
		var err error
		if server.Authorization, err = a.Authorization(url, text); err != nil {
			return server, fmt.Errorf("%s.%s%w", at, field, err)
		}
		return server, nil
	})
	if err != nil {
		return HostsFile{}, err
	}
	content := header
	if text := file.Text(); text != "" {
		content += "\n" + text
	}
	return HostsFile{Dir: hoststoml.Dir(reg.Host), Content: content, Secret: reg.HasCredentials()}, nil
}
