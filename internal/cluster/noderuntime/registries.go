package noderuntime

import (
	"context"
	"fmt"
	"os"
	"path"

	"github.com/berthrun/berth/internal/cluster/config"
	"github.com/berthrun/berth/internal/cluster/provider"
	"github.com/berthrun/berth/internal/hoststoml"
)

// HostsFiles returns the hosts.toml files of registries, and the certificates of this host that
// they name. root is the directory that the runtime reads, with one directory for each registry.
func HostsFiles(root string, registries []config.Registry) ([]provider.File, error) {
	var files []provider.File
	for _, reg := range registries {
		more, err := hostsFilesOf(root, reg)
		if err != nil {
			return nil, fmt.Errorf("registries: %s: %w", reg.Host, err)
		}
		files = append(files, more...)
	}
	return files, nil
}

// WriteRegistries adds registries to a running node. Its runtime reads them at the next pull.
func WriteRegistries(ctx context.Context, p provider.Provider, node string, runtime Runtime, registries []config.Registry) error {
	if !runtime.IsBerth() {
		return ConfigureContainerd(ctx, p, node, config.Settings{}, registries)
	}
	files, err := HostsFiles(runtime.RegistriesDir, registries)
	if err != nil || len(files) == 0 {
		return err
	}
	return p.Exec(ctx, node, provider.Command{Files: files})
}

// hostsFilesOf returns the hosts.toml of one registry, and the certificates that it names.
func hostsFilesOf(root string, reg config.Registry) ([]provider.File, error) {
	dir := path.Join(root, hoststoml.Dir(reg.Host))
	var files []provider.File
	server := func(url string, ca []string, skipVerify bool) (hoststoml.Server, error) {
		s := hoststoml.Server{URL: url, SkipVerify: skipVerify}
		for _, file := range ca {
			certificate, err := os.ReadFile(file)
			if err != nil {
				return s, fmt.Errorf("cannot read the authority's certificate: %w", err)
			}
			name := path.Join(dir, fmt.Sprintf("ca-%d.crt", len(files)))
			files = append(files, provider.File{Path: name, Content: certificate})
			s.CA = append(s.CA, name)
		}
		return s, nil
	}
	var file hoststoml.File
	if url := hoststoml.URL(reg.Host, reg.Server); url != "" {
		var err error
		if file.Registry, err = server(url, reg.CA, reg.SkipVerify); err != nil {
			return nil, err
		}
	}
	for _, m := range reg.Mirrors {
		s, err := server(m.URL, m.CA, m.SkipVerify)
		if err != nil {
			return nil, err
		}
		file.Mirrors = append(file.Mirrors, hoststoml.Mirror{Server: s, Capabilities: m.Capabilities, OverridePath: m.OverridePath})
	}
	return append(files, provider.File{Path: path.Join(dir, hoststoml.Name), Content: []byte(file.Text())}), nil
}
