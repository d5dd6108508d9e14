package cluster

import (
	"cmp"
	"fmt"
	"os"
	"path"
	"strings"

	"github.com/berthrun/berth/internal/cluster/config"
	"github.com/berthrun/berth/internal/cluster/provider"
)

// registriesDir is where berth in a node looks for registries, a folder each.
const registriesDir = "/etc/berth/certs.d"

// mirrors are the files that tell a node where images come from, with certificates of this
// host.
func mirrors(registries []config.Registry) ([]provider.File, error) {
	var files []provider.File
	for _, reg := range registries {
		more, err := mirrorsOf(reg)
		if err != nil {
			return nil, fmt.Errorf("registries: %s: %w", reg.Host, err)
		}
		files = append(files, more...)
	}
	return files, nil
}

// mirrorsOf is the hosts.toml of one registry, which has its mirrors in their order, and the
// certificates that it names.
func mirrorsOf(reg config.Registry) ([]provider.File, error) {
	dir, server := path.Join(registriesDir, reg.Host), cmp.Or(reg.Server, "https://"+reg.Host)
	switch {
	case reg.Host == "*":
		dir, server = path.Join(registriesDir, "_default"), reg.Server
	case reg.Host == "docker.io" && reg.Server == "":
		server = "https://registry-1.docker.io" // it answers under another name
	}
	var text strings.Builder
	var files []provider.File
	body := func(ca []string, skipVerify bool) error {
		var names []string
		for _, file := range ca {
			certificate, err := os.ReadFile(file)
			if err != nil {
				return fmt.Errorf("cannot read the authority's certificate: %w", err)
			}
			name := path.Join(dir, fmt.Sprintf("ca-%d.crt", len(files)))
			files = append(files, provider.File{Path: name, Content: certificate})
			names = append(names, name)
		}
		if len(names) > 0 {
			fmt.Fprintf(&text, "ca = %s\n", tomlList(names))
		}
		if skipVerify {
			text.WriteString("skip_verify = true\n")
		}
		return nil
	}
	if server != "" {
		fmt.Fprintf(&text, "server = %s\n", tomlString(server))
		if err := body(reg.CA, reg.SkipVerify); err != nil {
			return nil, err
		}
	}
	for _, m := range reg.Mirrors {
		fmt.Fprintf(&text, "\n[host.%s]\ncapabilities = %s\n", tomlString(m.URL), tomlList(m.Capabilities))
		if m.OverridePath {
			text.WriteString("override_path = true\n")
		}
		if err := body(m.CA, m.SkipVerify); err != nil {
			return nil, err
		}
	}
	return append(files, provider.File{Path: path.Join(dir, "hosts.toml"), Content: []byte(text.String())}), nil
}

// tomlString is a basic string of TOML.
func tomlString(text string) string {
	return `"` + strings.NewReplacer(`\`, `\\`, `"`, `\"`).Replace(text) + `"`
}

func tomlList(texts []string) string {
	var quoted []string
	for _, text := range texts {
		quoted = append(quoted, tomlString(text))
	}
	return "[" + strings.Join(quoted, ", ") + "]"
}
