package cni

import (
	"errors"
	"os"
	"path/filepath"
	"sync"

	"github.com/containernetworking/cni/libcni"
	"github.com/containernetworking/cni/pkg/types"

	"github.com/berthrun/berth/internal/network"
	"github.com/berthrun/berth/internal/network/cni/conftemplate"
)

// shown is the configuration in the shape in which containerd's verbose status has it, for
// the tools that read it there.
type shown struct {
	PluginDirs       []string
	PluginConfDir    string
	PluginMaxConfNum int
	Prefix           string
	Networks         []shownNetwork
}

type shownNetwork struct {
	Config shownList
	IFName string
}

type shownList struct {
	Name, CNIVersion string
	Plugins          []shownPlugin
	Source           string
}

type shownPlugin struct {
	Network *types.PluginConf
	Source  string
}

var _ network.Configured = (*Network)(nil)

// LoadedConfig implements network.Configured.
func (n *Network) LoadedConfig() (config any, fault error) {
	confs, fault := n.confs.look()
	all := shown{PluginDirs: n.cfg.BinDirs, PluginConfDir: n.cfg.ConfDir, PluginMaxConfNum: n.cfg.MaxNetworks, Prefix: "eth", Networks: []shownNetwork{}}
	for i, conf := range confs {
		all.Networks = append(all.Networks, shownNetwork{Config: shownOf(conf.list), IFName: linkName(i)})
	}
	return all, errors.Join(fault, n.status.tolerated())
}

func shownOf(list *libcni.NetworkConfigList) shownList {
	out := shownList{Name: list.Name, CNIVersion: list.CNIVersion, Plugins: []shownPlugin{}, Source: string(list.Bytes)}
	for _, p := range list.Plugins {
		out.Plugins = append(out.Plugins, shownPlugin{Network: p.Network, Source: string(p.Bytes)})
	}
	return out
}

// templated is the configuration that berth makes for the node's pod CIDR.
type templated struct {
	mu sync.Mutex
	// parsed is nil where the operator writes the configuration.
	parsed *conftemplate.Template
	// instead is the configuration in use because of which the template is not applied, fault why the template's file
	// cannot be used. Each is logged once.
	instead, fault string
	// stale: the configuration may not be what the template makes for the node's ranges.
	stale bool
}

// openTemplate reads the template of the configuration, if there is one, and applies it to the
// ranges that the kubelet has sent before.
func (n *Network) openTemplate() (err error) {
	if n.cfg.Template == "" || n.cfg.Retired {
		return nil
	}
	if n.template.parsed, err = conftemplate.Load(n.cfg.Template); err != nil {
		return err
	}
	return n.applyTemplate()
}

// followTemplate writes the configuration again if its template has changed, or if somebody has removed it. A template
// with a fault changes nothing.
func (n *Network) followTemplate() {
	t := &n.template
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.parsed == nil {
		return
	}
	current, err := t.parsed.Current()
	t.stale = t.stale || current != t.parsed
	t.parsed = current
	if _, gone := os.Lstat(n.templateFile()); err == nil && (t.stale || errors.Is(gone, os.ErrNotExist)) {
		err = n.writeTemplate()
	}
	fault := ""
	if err != nil {
		fault = err.Error()
	}
	if fault != "" && fault != t.fault {
		n.log.Warn("cannot follow the template of the CNI configuration; what it made before stays in use", "template", n.cfg.Template, "error", err)
	}
	t.fault = fault
}

// applyTemplate writes the configuration for the node's ranges.
func (n *Network) applyTemplate() error {
	n.template.mu.Lock()
	defer n.template.mu.Unlock()
	return n.writeTemplate()
}

// templateFile is the configuration that berth writes.
func (n *Network) templateFile() string { return filepath.Join(n.cfg.ConfDir, conftemplate.File) }

// writeTemplate writes the configuration for the node's ranges, unless another one is in use: then
// an operator or a network of the cluster has installed it. Pods that run keep theirs. The caller holds n.template.mu.
func (n *Network) writeTemplate() error {
	t := &n.template
	r, err := n.ranges.Get(nodeID)
	if t.parsed == nil || err != nil {
		return nil // the kubelet has not sent the ranges yet
	}
	file, instead := n.templateFile(), ""
	if confs, err := n.confs.current(); err == nil && confs[0].file != file {
		instead = confs[0].file
	}
	if instead != "" && instead != t.instead {
		n.log.Info("the template of the CNI configuration is not applied: another configuration is in use", "template", n.cfg.Template, "configuration", instead)
	}
	t.stale = true
	if t.instead = instead; instead != "" {
		return nil
	}
	changed, err := t.parsed.Write(n.cfg.ConfDir, conftemplate.ValuesOf(r.Ranges))
	if changed {
		n.log.Info("wrote the CNI configuration for the node's pod CIDR", "file", file, "template", n.cfg.Template, "ranges", r.Ranges)
	}
	t.stale = err != nil
	return err
}
