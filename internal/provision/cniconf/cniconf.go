// Package cniconf reads which plugins a machine's CNI configuration needs.
package cniconf

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"path"
	"slices"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/provision"
)

// Config is a network's configuration.
type Config struct {
	// File is its path; empty for none.
	File string
	// Plugins are the types of its plugins, IPAM plugins included.
	Plugins []string
	// Needs are the files that the plugins read.
	Needs []Need
	// Content is what the file has.
	Content []byte
}

// Need is a file that a plugin reads.
type Need struct{ Plugin, File string }

// flannelFile is where the plugin flannel finds the node's subnet, unless its configuration names another file. The daemon
// of flannel writes it.
const flannelFile = "/run/flannel/subnet.env"

// Reference are the plugins of the CNI project, which the packages of distributions have.
func Reference() []string {
	return []string{
		"bandwidth", "bridge", "dhcp", "dummy", "firewall", "host-device", "host-local", "ipvlan", "loopback", "macvlan", "portmap", "ptp", "sbr", "static", "tap", "tuning", "vlan", "vrf",
	}
}

// readLimit bounds a configuration.
const readLimit = 1 << 20

// First reads the configuration that runtimes use: the first in dir, by name. If it is not JSON,
// the error is errs.Invalid and names the file.
func First(files provision.Files, dir string) (Config, error) {
	names, err := files.ReadDir(dir)
	if err != nil {
		return Config{}, errs.IgnoreNotFound(err)
	}
	i := slices.IndexFunc(names, Is)
	if i < 0 {
		return Config{}, nil
	}
	file := path.Join(dir, names[i])
	r, err := files.Open(file)
	if err != nil {
		return Config{File: file}, fmt.Errorf("cannot read %s: %w", file, err)
	}
	defer r.Close()
	return Parse(file, r)
}

// Is reports whether a file of this name is a configuration.
func Is(name string) bool {
	return slices.Contains([]string{".conf", ".conflist", ".json"}, path.Ext(name))
}

// Parse reads the configuration of a file. Its errors are those of First.
func Parse(file string, r io.Reader) (Config, error) {
	c := Config{File: file}
	type plugin struct {
		Type string
		IPAM struct{ Type string }
		// SubnetFile is flannel's. Kubeconfig is that of Multus and others, and Kubernetes has that of Calico. In other
		// plugins they may be of any type.
		SubnetFile, Kubeconfig, Kubernetes any
	}
	var text struct {
		plugin
		Plugins []plugin
	}
	content, err := io.ReadAll(io.LimitReader(r, readLimit))
	if err != nil {
		return c, fmt.Errorf("cannot read %s: %w", c.File, err)
	}
	c.Content = content
	if err := json.NewDecoder(bytes.NewReader(c.Content)).Decode(&text); err != nil {
		return c, fmt.Errorf("%s is not JSON: %w: %w", c.File, errs.Invalid, err)
	}
	for _, p := range append([]plugin{text.plugin}, text.Plugins...) {
		for _, name := range []string{p.Type, p.IPAM.Type} {
			if name != "" && !slices.Contains(c.Plugins, name) {
				c.Plugins = append(c.Plugins, name)
			}
		}
		if p.Type == "flannel" && p.SubnetFile == nil {
			p.SubnetFile = flannelFile
		}
		kubernetes, _ := p.Kubernetes.(map[string]any)
		for _, value := range []any{p.SubnetFile, p.Kubeconfig, kubernetes["kubeconfig"]} {
			if file, _ := value.(string); path.IsAbs(file) {
				c.Needs = append(c.Needs, Need{p.Type, file})
			}
		}
	}
	return c, nil
}

// Missing lists plugins that are in none of dirs.
func (c Config) Missing(files provision.Files, dirs []string) []string {
	return slices.DeleteFunc(slices.Clone(c.Plugins), func(plugin string) bool {
		return slices.ContainsFunc(dirs, func(dir string) bool {
			_, err := files.Stat(path.Join(dir, plugin))
			return err == nil
		})
	})
}
