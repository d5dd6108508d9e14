// Package all lists the CNI plugins that berth has.
package all

import (
	"slices"

	"github.com/berthrun/berth/internal/network/cni/plugin"
	"github.com/berthrun/berth/internal/network/cni/plugin/bandwidth"
	"github.com/berthrun/berth/internal/network/cni/plugin/bridge"
	"github.com/berthrun/berth/internal/network/cni/plugin/firewall"
	"github.com/berthrun/berth/internal/network/cni/plugin/hostlocal"
	"github.com/berthrun/berth/internal/network/cni/plugin/loopback"
	"github.com/berthrun/berth/internal/network/cni/plugin/portmap"
	"github.com/berthrun/berth/internal/network/cni/plugin/ptp"
	"github.com/berthrun/berth/internal/network/cni/plugin/tuning"
)

// Plugins returns the plugins, by name.
func Plugins() []*plugin.Plugin {
	return []*plugin.Plugin{bandwidth.New(), bridge.New(), firewall.New(), hostlocal.New(), loopback.New(), portmap.New(), ptp.New(), tuning.New()}
}

// ByType returns a plugin, nil for one that berth does not have.
func ByType(name string) *plugin.Plugin {
	all := Plugins()
	if i := slices.IndexFunc(all, func(p *plugin.Plugin) bool { return p.Type == name }); i >= 0 {
		return all[i]
	}
	return nil
}
