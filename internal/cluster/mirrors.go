package cluster

import (
	"context"
	"fmt"
	"os"
	"path"

	"github.com/berthrun/berth/internal/cluster/config"
	"github.com/berthrun/berth/internal/cluster/provider"
	"github.com/berthrun/berth/internal/hoststoml"
)

// mirrors are the files that tell a node where images come from, with certificates of this
// host. root is where its runtime looks for them, a folder for each registry.
func mirrors(root string, registries []config.Registry) ([]provider.File, error) {
	var files []provider.File
	for _, reg := range registries {
		more, err := mirrorsOf(root, reg)
		if err != nil {
			return nil, fmt.Errorf("registries: %s: %w", reg.Host, err)
		}
		files = append(files, more...)
	}
	return files, nil
}

// writeRegistries gives a node that runs more registries, which its runtime reads at the next
// pull.
func (c *Clusters) writeRegistries(ctx context.Context, node string, runtime nodeRuntime, registries []config.Registry) error {
	if !runtime.ours() {
		return c.configureContainerd(ctx, node, config.Settings{}, registries)
	}
	files, err := mirrors(runtime.registriesDir, registries)
	if err != nil || len(files) == 0 {
		return err
	}
	return c.Provider.Exec(ctx, node, provider.Command{Files: files})
}

// mirrorsOf is the hosts.toml of one registry, and the certificates that it names.
func mirrorsOf(root string, reg config.Registry) ([]provider.File, error) {
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
