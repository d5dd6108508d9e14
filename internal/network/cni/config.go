package cni

import (
	"errors"

	"github.com/containernetworking/cni/libcni"
	"github.com/containernetworking/cni/pkg/types"

	"github.com/berthrun/berth/internal/network"
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
