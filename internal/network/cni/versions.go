package cni

import (
	"context"
	"debug/buildinfo"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/containernetworking/cni/pkg/invoke"
	"golang.org/x/sync/errgroup"

	"github.com/berthrun/berth/internal/network"
)

// versionTimeout bounds one VERSION.
const versionTimeout = 5 * time.Second

// Networks implements network.Plugged.
func (n *Network) Networks(ctx context.Context) ([]network.Described, error) {
	confs, fault := n.confs.look()
	all := []network.Described{}
	for i, c := range confs {
		d := network.Described{Name: c.list.Name, File: c.file, CNIVersion: c.list.CNIVersion, Interface: linkName(i)}
		for _, p := range c.list.Plugins {
			for _, name := range []string{p.Network.Type, p.Network.IPAM.Type} {
				if name != "" && !slices.ContainsFunc(d.Plugins, func(known network.Plugin) bool { return known.Type == name }) {
					d.Plugins = append(d.Plugins, network.Plugin{Type: name})
				}
			}
		}
		n.describe(ctx, d.Plugins)
		all = append(all, d)
	}
	return all, errors.Join(fault, n.status.tolerated())
}

// describe finds each plugin and asks for its versions.
func (n *Network) describe(ctx context.Context, plugins []network.Plugin) {
	var g errgroup.Group
	g.SetLimit(checkParallel)
	for i := range plugins {
		g.Go(func() error {
			p := &plugins[i]
			if p.Path, p.Fault = invoke.FindInPath(p.Type, n.cfg.BinDirs); p.Fault != nil {
				return nil
			}
			// Not every plugin is a Go program, and distributions build without a version.
			if info, err := buildinfo.ReadFile(p.Path); err == nil && info.Main.Version != "" && info.Main.Version != "(devel)" {
				p.Build = info.Main.Path + "@" + info.Main.Version
			}
			ctx, cancel := context.WithTimeout(ctx, versionTimeout)
			defer cancel()
			versions, err := n.lib.GetVersionInfo(ctx, p.Type)
			if err != nil {
				p.Fault = fmt.Errorf("CNI VERSION: %w", err)
				return nil
			}
			p.Versions = versions.SupportedVersions()
			return nil
		})
	}
	_ = g.Wait() // each plugin has its own fault
}
