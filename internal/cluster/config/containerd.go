package config

import (
	"fmt"
	"maps"
	"net/url"
	"slices"
	"strings"

	"github.com/pelletier/go-toml/v2"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/registries"
)

// ContainerdPatches is what a node whose runtime is berth uses of patches of containerd's
// configuration.
type ContainerdPatches struct {
	// HostDirs are directories of hosts.toml files, which berth reads, too.
	HostDirs []string
	// Registries are those of the form that containerd had before hosts.toml.
	Registries []registries.Registry
	// Ignored are the settings that berth has no use for, as dotted paths, sorted.
	Ignored []string
}

// registryTables are the tables with registries in containerd's configuration, by its version.
func registryTables() []string {
	return []string{
		"plugins.io.containerd.grpc.v1.cri.registry", // version 2
		"plugins.io.containerd.cri.v1.images.registry",
	}
}

// ReadContainerdPatches returns what berth uses of a cluster file's containerd patches: users
// configure registries by them, and expect the registries in every node.
func (c *Cluster) ReadContainerdPatches() (ContainerdPatches, error) {
	var p ContainerdPatches
	for i, text := range c.ContainerdConfigPatches {
		var doc map[string]any
		if err := toml.Unmarshal([]byte(text), &doc); err != nil {
			return p, fmt.Errorf("cannot read containerdConfigPatches[%d]: %w: %w", i, errs.Invalid, err)
		}
		delete(doc, "version")
		p.walk("", doc)
	}
	for i := range c.ContainerdConfigPatchesJSON6902 {
		p.Ignored = append(p.Ignored, fmt.Sprintf("containerdConfigPatchesJSON6902[%d]", i))
	}
	p.verifyMirrors()
	slices.Sort(p.Ignored)
	p.Ignored = slices.Compact(p.Ignored)
	return p, nil
}

// verifyMirrors applies the settings of each host to the mirrors on that host, as containerd does: it
// looks them up by the endpoint.
func (p *ContainerdPatches) verifyMirrors() {
	for _, reg := range p.Registries {
		for i, m := range reg.Mirrors {
			u, err := url.Parse(m.URL)
			if err != nil {
				continue // containerd refuses it
			}
			reg.Mirrors[i].SkipVerify = slices.ContainsFunc(p.Registries, func(r registries.Registry) bool { return r.SkipVerify && r.Host == u.Host })
		}
	}
}

// walk descends to the tables of registries, and notes all else as ignored.
func (p *ContainerdPatches) walk(at string, table map[string]any) {
	for _, key := range slices.Sorted(maps.Keys(table)) {
		path := strings.TrimPrefix(at+"."+key, ".")
		inner, isTable := table[key].(map[string]any)
		switch {
		case isTable && slices.Contains(registryTables(), path):
			p.registry(path, inner)
		case isTable && len(inner) > 0:
			p.walk(path, inner)
		case !isTable:
			p.Ignored = append(p.Ignored, path)
		}
	}
}

func (p *ContainerdPatches) registry(at string, table map[string]any) {
	for _, key := range slices.Sorted(maps.Keys(table)) {
		inner, isTable := table[key].(map[string]any)
		dirs, isText := table[key].(string)
		switch {
		case key == "config_path" && isText:
			for _, dir := range strings.Split(dirs, ":") {
				if dir != "" && !slices.Contains(p.HostDirs, dir) {
					p.HostDirs = append(p.HostDirs, dir)
				}
			}
		case key == "mirrors" && isTable:
			for _, host := range slices.Sorted(maps.Keys(inner)) {
				p.mirror(at, host, inner[host])
			}
		case key == "configs" && isTable:
			for _, host := range slices.Sorted(maps.Keys(inner)) {
				p.config(at, host, inner[host])
			}
		default:
			p.Ignored = append(p.Ignored, at+"."+key)
		}
	}
}

// mirror reads mirrors."host".endpoint.
func (p *ContainerdPatches) mirror(at, host string, value any) {
	table, _ := value.(map[string]any)
	endpoints, _ := table["endpoint"].([]any)
	reg := p.of(host)
	for _, endpoint := range endpoints {
		if text, ok := endpoint.(string); ok {
			reg.Mirrors = append(reg.Mirrors, registries.Mirror{URL: text, Capabilities: []string{"pull", "resolve"}})
		}
	}
	p.rest(at+".mirrors."+host, table, "endpoint")
}

// config reads configs."host".tls.insecure_skip_verify.
func (p *ContainerdPatches) config(at, host string, value any) {
	table, _ := value.(map[string]any)
	at += ".configs." + host
	tls, ok := table["tls"].(map[string]any)
	if !ok {
		p.rest(at, table)
		return
	}
	if skip, ok := tls["insecure_skip_verify"].(bool); ok {
		p.of(host).SkipVerify = skip
	}
	p.rest(at, table, "tls")
	p.rest(at+".tls", tls, "insecure_skip_verify")
}

// rest notes the keys of a table that are not known.
func (p *ContainerdPatches) rest(at string, table map[string]any, known ...string) {
	for key := range table {
		if !slices.Contains(known, key) {
			p.Ignored = append(p.Ignored, at+"."+key)
		}
	}
}

// of is the entry of a host, made if it is not there.
func (p *ContainerdPatches) of(host string) *registries.Registry {
	i := slices.IndexFunc(p.Registries, func(r registries.Registry) bool { return r.Host == host })
	if i < 0 {
		i = len(p.Registries)
		p.Registries = append(p.Registries, registries.Registry{Host: host})
	}
	return &p.Registries[i]
}
