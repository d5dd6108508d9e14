package daemon

import (
	"path/filepath"

	"github.com/berthrun/berth/internal/berthapi"
	"github.com/berthrun/berth/internal/config"
	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/hostnet"
	"github.com/berthrun/berth/internal/leaks"
	"github.com/berthrun/berth/internal/network/builtin"
)

// owned is what this daemon has records of.
func (p *parts) owned() (berthapi.Owned, error) {
	ids, err := p.pods.RecordIDs()
	cfg := p.config.Load()
	return berthapi.Owned{Root: cfg.Root, State: cfg.State, NetworkMode: cfg.Network.Mode, IDs: ids}, err
}

// Leftovers says where the daemon of a configuration has what may be left behind, for `berth doctor`.
// The caller adds how the daemon is asked, and the host.
func Leftovers(cfg *config.Daemon) leaks.Config {
	instance := instanceOf(cfg)
	return leaks.Config{
		Instance: instance, Root: Resolved(cfg.Root), State: Resolved(cfg.State), Native: cfg.Engine == "native",
		Socket:   cfg.SocketPath(),
		NetNSDir: Resolved(cfg.Network.NetNSDir), CNIConfDir: cfg.Network.ConfDir,
		Bridge: bridgeOf(cfg, instance), Table: builtin.TableName(instance), Builtin: cfg.Network.Mode != "cni",
	}
}

// bridgeOf is the name of the bridge of the built-in network.
func bridgeOf(cfg *config.Daemon, instance string) string {
	switch {
	case cfg.Network.Bridge != "":
		return cfg.Network.Bridge
	case cfg.Network.Mode == "kubenet":
		return kubenetBridge
	}
	return builtin.BridgeName(instance)
}

// Resolved is a directory as the mount table has it, without links.
func Resolved(dir string) string {
	if real, err := filepath.EvalSymlinks(dir); err == nil {
		return real
	}
	return filepath.Clean(dir)
}

// CheckSubnets is the config.Check of what a start of the built-in network refuses because of this host's addresses and
// routes. It reports nothing while pods run: they keep their subnet.
func CheckSubnets(cfg *config.Daemon, report func(key, format string, args ...any)) {
	if cfg.Network.Mode == "cni" || len(cfg.Network.Subnets) == 0 {
		return
	}
	subnets, err := prefixes(cfg.Network.Subnets)
	if err != nil {
		return // that is a fault already
	}
	if attached, err := builtin.ReadAttached(filepath.Join(cfg.State, networkDir)); err != nil || len(attached) > 0 {
		return
	}
	host, err := HostNet()
	if err != nil {
		return // a start reports it
	}
	if err := builtin.CheckOverlaps(host, bridgeOf(cfg, instanceOf(cfg)), subnets, hasFormer(cfg)); err != nil {
		report("network.subnets", "%s", errs.Message(err))
	}
}

// HostNet returns the addresses and routes of this host.
func HostNet() (hostnet.Host, error) { return hostnet.In("") }
