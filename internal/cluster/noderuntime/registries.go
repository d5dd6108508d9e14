package noderuntime

import (
	"context"
	"fmt"
	"os"
	"path"

	"github.com/berthrun/berth/internal/cluster/config"
	"github.com/berthrun/berth/internal/cluster/provider"
	"github.com/berthrun/berth/internal/hoststoml"
	"github.com/berthrun/berth/internal/registries"
)

// HostsFiles returns the hosts.toml files of registries, and the certificates and keys of this host
// that they name. root is the directory that the runtime reads, with one directory for each registry.
func HostsFiles(root string, all []registries.Registry) ([]provider.File, error) {
	var files []provider.File
	for _, reg := range all {
		more, err := hostsFilesOf(root, reg)
		if err != nil {
			return nil, fmt.Errorf("registries: %s: %w", reg.Host, err)
		}
		files = append(files, more...)
	}
	return files, nil
}

// WriteRegistries adds registries to a running node. Its runtime reads them at the next pull.
func WriteRegistries(ctx context.Context, p provider.Provider, node string, runtime Runtime, all []registries.Registry) error {
	if !runtime.IsBerth() {
		return ConfigureContainerd(ctx, p, node, config.Settings{}, all)
	}
	files, err := HostsFiles(runtime.RegistriesDir, all)
	if err != nil || len(files) == 0 {
		return err
	}
	return p.Exec(ctx, node, provider.Command{Files: files})
}

// secretMode is that of files in a node which only root may read.
const secretMode = 0o600

// hostsFilesOf returns the hosts.toml of one registry, and the files that it names.
func hostsFilesOf(root string, reg registries.Registry) ([]provider.File, error) {
	dir := registryDir{path: path.Join(root, hoststoml.Dir(reg.Host))}
	hosts, err := reg.HostsTOML(dir.server)
	if err != nil {
		return nil, err
	}
	file := provider.File{Path: path.Join(dir.path, hoststoml.Name), Content: []byte(hosts.Text())}
	if reg.HasCredentials() {
		file.Mode = secretMode
	}
	return append(dir.files, file), nil
}

// registryDir is the directory of one registry in a node.
type registryDir struct {
	path string
	// files are copies of this host's files.
	files []provider.File
}

// server copies the files that a server is reached with, and returns the server with the names of
// the copies.
func (d *registryDir) server(_, url string, a registries.Access) (hoststoml.Server, error) {
	copied := registries.Access{SkipVerify: a.SkipVerify}
	for _, file := range a.CA {
		name, err := d.copy(file, "ca-%d.crt", 0)
		if err != nil {
			return hoststoml.Server{}, fmt.Errorf("cannot read the authority's certificate: %w", err)
		}
		copied.CA = append(copied.CA, name)
	}
	var err error
	if a.ClientCert != "" {
		// The key may be in the same file.
		if copied.ClientCert, err = d.copy(a.ClientCert, "client-%d.cert", secretMode); err != nil {
			return hoststoml.Server{}, fmt.Errorf("cannot read the client certificate: %w", err)
		}
	}
	if a.ClientKey != "" {
		if copied.ClientKey, err = d.copy(a.ClientKey, "client-%d.key", secretMode); err != nil {
			return hoststoml.Server{}, fmt.Errorf("cannot read the client certificate's key: %w", err)
		}
	}
	server := copied.Server(url)
	if a.Credentials != "" {
		text, err := os.ReadFile(a.Credentials)
		if err != nil {
			return hoststoml.Server{}, fmt.Errorf("cannot read the credentials: %w", err)
		}
		if server.Authorization, err = a.Authorization(url, string(text)); err != nil {
			return hoststoml.Server{}, err
		}
	}
	return server, nil
}

// copy adds a copy of a file of this host, and returns its path in the node. name has a number in it.
func (d *registryDir) copy(from, name string, mode int64) (string, error) {
	content, err := os.ReadFile(from)
	if err != nil {
		return "", err
	}
	to := path.Join(d.path, fmt.Sprintf(name, len(d.files)))
	d.files = append(d.files, provider.File{Path: to, Mode: mode, Content: content})
	return to, nil
}
